"""The error for mistakes of the user. It carries option, value and problem; each interface writes them in its own way.

The command line shows `--perturb all: …`, Python `perturb="all": …`, a federation `federation.perturb all: …`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from typing import Any

NOT_SHOWN: Any = object()  # in place of a value that the message should not repeat
LONGEST = 200  # characters of a value that a message repeats
Spelling = Callable[[str, Any], str]  # how an option and its value (or NOT_SHOWN) are written
_MENTION = re.compile("\ue000(.*?)\ue001(.*?)\ue002", re.DOTALL)
_LONG_WORD = re.compile(rf"\S{{{LONGEST + 1},}}")


class UserError(ValueError):
    """Something the user gave cannot be used. The command line shows one line and exits with code 2.

    Args:
        option: the field it was given to, such as "perturb"; None where `value` names the thing itself (a run, a file).
        value: what was given, NOT_SHOWN to leave it out.
        problem: what is wrong and what is allowed; other options are written with `mention`. May be another UserError,
            where `option` says in what it was found (a configuration file).
    """

    def __init__(self, option: str | None, value: Any, problem: str | UserError) -> None:
        super().__init__(option, value, problem)
        self.option, self.value, self.problem = option, value, problem

    def message(self, spell: Spelling) -> str:
        """The whole line, with options and values as `spell` writes them, and without words longer than LONGEST."""
        if isinstance(self.problem, UserError):
            problem = self.problem.message(spell)
        else:
            problem = _MENTION.sub(lambda found: spell(found[1], _mentioned(found[2])), self.problem)
        subject = shorten(self.value) if self.option is None else spell(self.option, self.value)
        return _LONG_WORD.sub(lambda word: shorten(word[0]), f"{subject}: {problem}")

    def __str__(self) -> str:
        return self.message(_spelling.get())


def mention(option: str, value: Any = NOT_SHOWN) -> str:
    """An option, and a value where it is given, inside the text of a problem: "use " + mention("perturb", "all")."""
    return f"\ue000{option}\ue001{'' if value is NOT_SHOWN else json.dumps(value, default=str)}\ue002"


def _mentioned(text: str) -> Any:
    return json.loads(text) if text else NOT_SHOWN


def python_spelling(option: str, value: Any) -> str:
    """perturb="all", or perturb alone."""
    if value is NOT_SHOWN:
        return option
    return f'{option}="{shorten(value)}"' if isinstance(value, str | Path) else f"{option}={shorten(value)}"


_spelling: ContextVar[Spelling] = ContextVar("spelling", default=python_spelling)


@contextmanager
def spelled_by(spell: Spelling) -> Iterator[None]:
    """Let messages be written with `spell` inside the block; the command line does this around every command."""
    token = _spelling.set(spell)
    try:
        yield
    finally:
        _spelling.reset(token)


def shorten(value: Any) -> str:
    """A value as text of at most LONGEST characters."""
    try:
        text = str(value)
    except ValueError:  # Python refuses to write whole numbers of thousands of digits
        text = "a number of too many digits"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def import_extra(module: str, extra: str, option: str, value: Any) -> Any:
    """Return a module of an optional part of the package; raise UserError if it is not installed.

    Args:
        module: such as "transformers".
        extra: the name of the part in pyproject.toml, such as "hf".
        option: the option that needs the module.
        value: that option's value.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise UserError(option, value, f"needs {module}; run: pip install 'fedflat[{extra}]' ({error})") from None


ALIASES = {  # what people write elsewhere, and our word for it
    "learning_rate": "lr",
    "eta": "lr",
    "seed": "seeds",
    "epochs": "local_epochs",
    "num_rounds": "rounds",
    "num_clients": "clients",
    "clients_per_round": "cohort",
    "participation": "cohort",
    "data": "dataset",
    "net": "model",
    "wd": "weight_decay",
    "bs": "batch_size",
    "optimizer": "optimiser",
    "optim": "optimiser",
    "nesterov": "optimiser",
    "adamw": "optimiser",
    "clip": "clip_grad",
    "warmup": "lr_warmup",
    "scheduler": "lr_schedule",
    "output": "out",
    "gpu": "device",
    "continue": "resume",
    "train": "run",
    "fit": "run",
    "plot": "report",
    "show": "report",
    "list": "methods",
}


def near_miss(word: str, known: Iterable[str], prefix: str = "") -> str:
    """' (did you mean X?)' where a known word is close or means the same, else ''.

    Args:
        word: what was given.
        known: what is allowed.
        prefix: what all of these begin with (`--`); it does not make words close.
    """
    bare = {_plain(name.removeprefix(prefix)): name for name in known}
    given = _plain(word.removeprefix(prefix))
    alias = _plain(ALIASES.get(word.removeprefix(prefix).replace("-", "_").lower(), ""))
    close = [alias] if alias in bare else difflib.get_close_matches(given, bare, n=1)
    return f" (did you mean {bare[close[0]]}?)" if close else ""


def _plain(word: str) -> str:
    """A word as near misses compare it: CIFAR-10 is cifar10."""
    return word.lower().replace("-", "").replace("_", "")
