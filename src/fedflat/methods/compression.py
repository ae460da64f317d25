"""Compressed replies with error feedback: top-k, random-k and stochastic quantisation, around any method.

down … | up … | client keeps …, e_k | server keeps …

r_k the inner method's reply;  v = r_k + e_k;  send C(v);  e_k ← v − C(v)

C acts on every vector of the reply; single numbers are sent as they are. What one client leaves out now it adds to its
next reply (Seide et al., 2014; Stich et al., 2018), so that nothing is lost in the long run.

topk       the k entries of largest size                                            k numbers and k positions
randomk    k entries chosen at random                                               k numbers and the choice's key
quantise   every entry rounded up or down at random to one of 2^b − 1 levels        b bits an entry, a scale a block
           between −m and m, m = max |v| in its block of 256 entries; with one bit
           to one of −m and m, m = mean |v|

Without error feedback, randomk is multiplied by P / k, and m of one bit is max |v|: both are then right on average.
Rounding and choice are hashes of the client's key in the round, so that every engine draws the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedflat.core.local_training import example_messages
from fedflat.core.method import Cohort, Local, Method
from fedflat.core.random import hash_words, uniform_from
from fedflat.core.state import pack_state, state_tensors, tree_map, unpack_state
from fedflat.core.task import Batch, Task
from fedflat.errors import UserError, mention
from fedflat.methods.wrappers import Wrapper
from fedflat.options import Range

BLOCK = 256  # entries that share one scale
KEY_BYTES = 8  # of the key of a random choice


class Client(NamedTuple):
    """The client's state.

    Args:
        inner: the inner method's state.
        error: what is missing in the replies sent so far, e_k: built like a reply; () without error feedback.
    """

    inner: Any
    error: Any


@dataclass(frozen=True)
class Compressed(Wrapper):
    """Clients send compressed replies; the server averages what they stand for."""

    citation: ClassVar[str] = """@inproceedings{stich2018sparsified,
  title = {Sparsified {SGD} with Memory},
  author = {Stich, Sebastian U. and Cordonnier, Jean-Baptiste and Jaggi, Martin},
  booktitle = {NeurIPS},
  year = {2018}
}

@inproceedings{alistarh2017qsgd,
  title = {{QSGD}: Communication-Efficient {SGD} via Gradient Quantization and Encoding},
  author = {Alistarh, Dan and Grubic, Demjan and Li, Jerry and Tomioka, Ryota and Vojnovic, Milan},
  booktitle = {NeurIPS},
  year = {2017}
}"""

    compressor: Literal["topk", "randomk", "quantise"] = "quantise"
    """What is sent: the largest entries, entries chosen at random, or all entries with few bits."""
    bits: Literal[1, 4, 8] = 8
    """Bits b of an entry, for quantise."""
    keep: Annotated[float, Range(0, 1, open=True)] = 0.01
    """Share k / P of the entries that are sent, for topk and randomk."""
    error_feedback: bool = True
    """Clients add what they left out to their next reply."""

    def init_server(self, params: Tensor) -> Any:
        """Return the inner method's initial state."""
        return self.inner.init_server(params)

    def init_client(self, params: Tensor) -> Client:
        """Return the inner method's state of a client, and an error of zeros."""
        inner = self.inner.init_client(params)
        if not self.error_feedback:
            return Client(inner, ())
        _, reply, _ = example_messages(self.inner, params)
        return Client(inner, tree_map(torch.zeros_like, reply))

    def broadcast(self, server: Any) -> Any:
        """Return the inner method's message."""
        return self.inner.broadcast(server)

    def step(self, task: Task, w: Tensor, batch: Batch, msg: Any, client: Client) -> tuple[Tensor, Client]:
        """Return the inner method's direction."""
        direction, inner = self.inner.step(task, w, batch, msg, client.inner)
        return direction, client._replace(inner=inner)

    def reply(self, w: Tensor, msg: Any, client: Client, local: Local) -> tuple[Any, Client]:
        """Return the inner method's reply after compression and decompression, and what it misses as the new error."""
        reply, inner = self.inner.reply(w, msg, client.inner, local)
        if self.error_feedback:
            reply = tree_map(torch.add, reply, client.error)
        numbered = enumerate(pack_state(reply).items())
        sent = unpack_state(reply, {name: self.compress(v, hash_words(local.key, n)) for n, (name, v) in numbered})
        return sent, Client(inner, tree_map(torch.sub, reply, sent) if self.error_feedback else ())

    def update(self, server: Any, cohort: Cohort) -> Any:
        """Return the inner method's next state."""
        return self.inner.update(server, cohort)

    def personal(self, server: Any, client: Client) -> Tensor:
        """Return the inner method's model for a client."""
        return self.inner.personal(server, client.inner)

    def compress(self, v: Tensor, key: Tensor) -> Tensor:
        """Return C(v), of the shape of v: what the server reads in the message.

        Args:
            v: a tensor of a reply.
            key: a hash, int64 [], from which random numbers are drawn.
        """
        if v.numel() == 1:
            return v
        flat = v.reshape(-1)
        return (self._quantise(flat, key) if self.compressor == "quantise" else self._select(flat, key)).view_as(v)

    def _select(self, v: Tensor, key: Tensor) -> Tensor:
        """Return v [P] with all entries 0 but k. Ties are broken by position, in every engine alike."""
        if self.compressor == "topk":
            order = v.abs().argsort(descending=True, stable=True)
        else:
            order = hash_words(key, torch.arange(len(v), device=v.device)).argsort()
        chosen, factor = order[: self._kept(len(v))], 1.0
        if self.compressor == "randomk" and not self.error_feedback:
            factor = len(v) / self._kept(len(v))
        return torch.zeros_like(v).scatter(0, chosen, factor * v.gather(0, chosen))

    def _kept(self, entries: int) -> int:
        """Return k."""
        return math.ceil(self.keep * entries)

    def _quantise(self, v: Tensor, key: Tensor) -> Tensor:
        """Return v [P] rounded at random to the levels of its blocks."""
        blocks = pad(v, (0, -len(v) % BLOCK)).view(-1, BLOCK)
        sizes = pad(torch.ones_like(v), (0, -len(v) % BLOCK)).view(-1, BLOCK).sum(1, keepdim=True)
        mean = self.bits == 1 and self.error_feedback
        m = blocks.abs().sum(1, keepdim=True) / sizes if mean else blocks.abs().amax(1, keepdim=True)
        steps = max(2**self.bits - 2, 1)  # between −m and m
        position = ((blocks / torch.where(m > 0, m, 1.0) + 1) * (steps / 2)).clamp(0, steps)
        draw = uniform_from(hash_words(key, torch.arange(blocks.numel(), device=v.device)), v.dtype).view_as(blocks)
        level = position.floor() + (draw < position - position.floor())
        return ((level * (2 / steps) - 1) * m).view(-1)[: len(v)]

    def reply_bytes(self, reply: Any) -> int:
        """Return the bytes of the encoded reply."""
        return sum(self.encoded_bytes(tensor) for tensor in state_tensors(reply))

    def encoded_bytes(self, v: Tensor) -> int:
        """Return the bytes of one compressed tensor, at most those of the tensor itself.

        Args:
            v: a tensor of a reply.
        """
        entries, width = v.numel(), v.element_size()
        kept = self._kept(entries)
        encoded = {
            "quantise": math.ceil(entries * self.bits / 8) + math.ceil(entries / BLOCK) * width,
            "topk": kept * width + math.ceil(kept * (entries - 1).bit_length() / 8),
            "randomk": kept * width + KEY_BYTES,
        }
        return min(entries * width, encoded[self.compressor])


def find_compressed(method: Method) -> Compressed | None:
    """Return the `Compressed` wrapper of a method, at any depth, or None if the method compresses nothing.

    Args:
        method: any method.
    """
    if isinstance(method, Compressed):
        return method
    inner = getattr(method, "inner", None)
    return find_compressed(inner) if inner is not None else None


def check_errors_apart(method: Method) -> None:
    """Raise UserError if error feedback would add the error of one exchange of a round to the reply of another.

    Args:
        method: any method.
    """
    compressed = find_compressed(method)
    if compressed and compressed.error_feedback and compressed.exchanges > 1:
        problem = "the errors of two exchanges in a round would be mixed; use " + mention("error_feedback", False)
        raise UserError(None, "method compress", problem)
