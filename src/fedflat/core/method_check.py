"""Try out a method that is not of this package before it is trained, and say which rule of `Method` it breaks.

Without this, a mistake in a method shows up as dozens of lines from inside torch.func.vmap, or as a wrong model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import getfile, getsourcelines, isfunction, signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedflat.core.batch import Batch, map_batch
from fedflat.core.method import Cohort, Local, Method
from fedflat.core.state import bookkeeping_names, pack_state, tree_map
from fedflat.core.task import Task
from fedflat.errors import UserError, mention
from fedflat.own_code import explain_own_errors, name_error, where_in_file

MANY_CLIENTS = "step and reply run for many clients at once"
KEPT_ON_SELF = "nothing may be kept on the method itself; return it in a state"
RULES = {  # parts of torch's messages, and the rules of core/method.py that they mean
    "either (1) calling .item()": f"{MANY_CLIENTS}, so a tensor can neither become a number (.item(), float()) nor "
    "decide an `if` or `while`; use torch.where",
    "data-dependent control flow": f"{MANY_CLIENTS}, so `if` and `while` cannot look at a tensor; use torch.where",
    ".item()": f"{MANY_CLIENTS}, so a tensor cannot become a number, as .item(), float() and "
    f"f-strings make it; keep it a tensor, or look at it with {mention('engine', 'sequential')}",
    "Cannot access data pointer": f"{MANY_CLIENTS}, so a tensor cannot become a list or a numpy array; use torch",
    "dynamic shape": f"{MANY_CLIENTS}, so no shape may depend on a tensor's values; use torch.where in place of a mask",
    "does not require grad": "step computes without autograd; use task.grad(w, batch), or torch.func.grad of your loss",
    "inplace arithmetic": "nothing may be changed in place; write x = x + y instead of x += y",
    "random operation": "random numbers of torch differ between engines; use fedflat.core.random, which hashes keys",
    "cannot assign to field": KEPT_ON_SELF,
}


def is_own_method(method: Method) -> bool:
    """Return whether a method, or one that it wraps, is not of this package."""
    inner = getattr(method, "inner", None)
    return not type(method).__module__.startswith("fedflat.") or (isinstance(inner, Method) and is_own_method(inner))


def own_files(method: Method) -> list[Path]:
    """Return the files, or cells of a notebook, of a method and of those it wraps that are not of this package."""
    inner, cls = getattr(method, "inner", None), type(method)
    rest = own_files(inner) if isinstance(inner, Method) else []
    if cls.__module__.startswith("fedflat."):
        return rest
    names = [function.__code__.co_filename for function in vars(cls).values() if isfunction(function)]
    written = dict.fromkeys(name for name in names if name != "<string>")  # that is what dataclass generates
    return [*(Path(name).resolve() for name in written), *rest]


@contextmanager
def explain_method_errors(method: Method) -> Iterator[None]:
    """Turn an exception that arose in the file of the user's method into one line with its place and the rule."""
    with explain_own_errors(None, f"method {type(method).__name__}", own_files(method), RULES):
        yield


def check_own_method(method: Method, task: Task, params: Tensor, batch: Batch, vectorised: bool) -> None:
    """Play a round of one client and one step; raise UserError with the rule that the method breaks. Nothing is kept.

    Args:
        method: the method. One of this package is not checked.
        task: the model and its loss.
        params: the initial model, [P].
        batch: a batch of a client.
        vectorised: whether the engine trains many clients at once.
    """
    if not is_own_method(method):
        return
    with torch.no_grad(), explain_method_errors(method):
        _play_round(_Checker(method, params), task, batch, vectorised)


class _Checker:
    """Calls a method's functions and compares what they return with what `Method` asks for.

    Args:
        method: the method.
        params: the initial model, [P].
    """

    def __init__(self, method: Method, params: Tensor) -> None:
        self.method, self.params = method, params

    def call(self, name: str, *inputs: Any) -> Any:
        """Return what a function returns; refuse one that changes its inputs or the method."""
        states = [value for value in inputs if _is_state(value)]
        before, own = [tree_map(torch.clone, value) for value in states], dict(vars(self.method))
        result = self._call(name, *inputs)
        if own.keys() != vars(self.method).keys() or any(getattr(self.method, key) is not own[key] for key in own):
            raise self.error(name, KEPT_ON_SELF)
        for one, other in zip(before, states, strict=True):
            pairs = zip(pack_state(one).values(), pack_state(other).values(), strict=True)
            if not all(torch.equal(a, b) or bool((a != a).any()) for a, b in pairs):
                raise self.error(name, "changes its arguments in place; write x = x + y instead of x += y")
        return result

    def _call(self, name: str, *inputs: Any) -> Any:
        """Return what a function returns; explain an error that did not arise in a line of the user's files."""
        try:
            return getattr(self.method, name)(*inputs)
        except UserError:
            raise
        except Exception as error:
            if any(where_in_file(error, path) for path in own_files(self.method)):
                raise
            inherited = getattr(type(self.method), name) is getattr(Method, name)
            taken = ", ".join(list(signature(getattr(Method, name)).parameters)[1:])
            advice = "override it too, to suit your other functions" if inherited else f"it is given ({taken})"
            raise self.error(name, f"{name_error(error)}; {advice}") from error

    def pair(self, name: str, *inputs: Any) -> tuple[Any, Any]:
        """Return the two things that step and reply return."""
        result = self.call(name, *inputs)
        first = "direction" if name == "step" else "reply"
        if not isinstance(result, tuple) or hasattr(result, "_fields") or len(result) != 2:
            raise self.error(name, f"must return two things, the {first} and the client's state, not {_kind(result)}")
        return result

    def vector(self, name: str, what: str, value: Any) -> None:
        """Refuse what is not a vector like the model."""
        if not isinstance(value, Tensor) or value.shape != self.params.shape or value.dtype != self.params.dtype:
            raise self.error(name, f"{what} must be {_kind(self.params)} like w, not {_kind(value)}")

    def state(self, name: str, what: str, value: Any, like: Any = None) -> Any:
        """Return a state; refuse one that is not of tensors, or differs from `like` in names, shapes or types."""
        if not _is_state(value):
            raise self.error(name, f"{what} must be a NamedTuple of tensors, or (), not {_kind(value)}")
        if like is not None:
            old, new = ({k: _kind(v) for k, v in pack_state(state).items()} for state in (like, value))
            for key in [*old, *new]:
                if old.get(key) != new.get(key):
                    change = f"'{key}' was {old.get(key, 'not there')} and is {new.get(key, 'not there')}"
                    raise self.error(name, f"{what} must keep its names, shapes and types: {change}")
        return value

    def bookkeeping(self, reply: Any, untrained: Any) -> None:
        """Refuse bookkeeping that could tell of samples: it is neither clipped nor gets noise."""
        sent, plain = pack_state(reply), pack_state(untrained)
        for name in bookkeeping_names(reply, self.method.bookkeeping):
            if sent[name].numel() != 1 or not torch.equal(sent[name], plain[name]):
                raise self.error("reply", f"'{name}' is bookkeeping, so it must be a number that follows from `local`")

    def error(self, name: str, problem: str) -> UserError:
        """The error about a function, with its place."""
        function = getattr(type(self.method), name)
        if function is getattr(Method, name):
            return UserError(None, f"method {type(self.method).__name__}", f"{name} of fedflat.Method: {problem}")
        try:
            file, line = Path(getfile(function)).name, getsourcelines(function)[1]
            place = f"{name}, line {line} of {file}: "
        except (OSError, TypeError):
            place = f"{name}: "
        return UserError(None, f"method {type(self.method).__name__}", place + problem)


def _play_round(check: _Checker, task: Task, batch: Batch, vectorised: bool) -> None:
    """Call every function of the method as a round does."""
    method, params = check.method, check.params
    server = check.state("init_server", "the server's state", check.call("init_server", params))
    client = check.state("init_client", "the client's state", check.call("init_client", params))
    check.vector("init_server", "params of the server's state", getattr(server, "params", None))
    one = torch.ones((), dtype=params.dtype, device=params.device)
    for _ in range(method.exchanges):
        message = check.state("broadcast", "the message", check.call("broadcast", server))
        check.vector("broadcast", "params of the message", getattr(message, "params", None))
        direction, new = check.pair("step", task, params, batch, message, client)
        check.vector("step", "the direction", direction)
        check.state("step", "the client's state", new, client)
        reply, new = check.pair("reply", params - 0.01 * direction, message, new, Local(one, one, one))
        check.state("reply", "the reply", reply)
        check.bookkeeping(reply, check.pair("reply", params, message, client, Local(one, one, one))[0])
        check.state("reply", "the client's state", new, client)
        if vectorised:
            _take_vectorised_step(method, task, params, batch, message, client)
        updated = check.call("update", server, Cohort(reply, reply, 1, 1))
        server, client = check.state("update", "the server's state", updated, server), new


def _take_vectorised_step(method: Method, task: Task, w: Tensor, batch: Batch, message: Any, client: Any) -> None:
    """Call step and reply for two clients at once, which refuses whatever is not plain arithmetic on tensors."""
    one = torch.ones((), dtype=w.dtype, device=w.device)

    def train(w: Tensor, message: Any, client: Any, batch: Batch) -> Any:
        direction, new = method.step(task, w, batch, message, client)
        return method.reply(w - 0.01 * direction, message, new, Local(one, one, one))

    states = [tree_map(lambda t: torch.stack([t, t]), value) for value in (w, message, client)]
    inputs: list[Any] = [*states, map_batch(lambda t: torch.stack([t, t]), batch)]
    vmap(train)(*inputs)


def _is_state(value: Any) -> bool:
    """Whether a value is a tensor, or a tuple of states."""
    return isinstance(value, Tensor) or (isinstance(value, tuple) and all(map(_is_state, value)))


def _kind(value: Any) -> str:
    """A value in words: float32 [10], or its type."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        members = ", ".join(f"{name}: {_kind(member)}" for name, member in zip(value._fields, value, strict=True))
        return f"{type(value).__name__}({members})"
    if type(value) is tuple:
        return f"{len(value)} things" if value else "()"
    return type(value).__name__
