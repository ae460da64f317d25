"""DP-FedAvg (McMahan et al., 2018, Algorithm 1): bound what one client can change, and drown the rest in noise.

down … | up … | client keeps … | server keeps …, t, key

client:  w_k ← w + (w_k − w) min(1, C / ‖w_k − w‖), then the inner method's reply r_k;  r_k ← r_k min(1, C / ‖r_k‖)
server:  r = mean_S r_k + N(0, (z C / |S|)² I) stands for every mean that the inner method sees
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedflat.engine.state import pack, tree_map, unpack
from fedflat.method import Cohort, Local
from fedflat.options import NonNegative, Range
from fedflat.random import fold, normal, purpose
from fedflat.vectors import norm
from fedflat.wrappers.wrapper import Wrapper

WORDS = 4  # of 24 bits each, which every floating-point type holds exactly


class Noisy(NamedTuple):
    inner: Any
    round: Tensor
    key: Tensor

    @property
    def params(self) -> Tensor:
        return self.inner.params


@dataclass(frozen=True)
class Private(Wrapper):
    """Client-level differential privacy: clipped replies, Gaussian noise on their mean."""

    citation: ClassVar[str] = """@inproceedings{mcmahan2018dpfedavg,
  title = {Learning Differentially Private Recurrent Language Models},
  author = {McMahan, H. Brendan and Ramage, Daniel and Talwar, Kunal and Zhang, Li},
  booktitle = {ICLR},
  year = {2018}
}"""

    clip: Annotated[float, Range(0, open=True, finite=False)] = 1.0
    """Largest length C of a reply; a longer one is shortened to it."""
    noise: NonNegative = 1.0
    """Noise multiplier z: the sum of the replies gets noise of standard deviation z C."""
    privacy_delta: Annotated[float, Range(0, 1, open=True)] = 1e-5
    """δ at which the spent ε is reported; less than one in the number of clients."""

    def init_server(self, params: Tensor) -> Noisy:
        """No round played; the key is sealed later: with a simulation's seed, or a federation's server's secret."""
        return Noisy(self.inner.init_server(params), params.new_zeros(()), params.new_zeros(WORDS))

    def reply(self, w: Tensor, msg: Any, client: Any, local: Local) -> tuple[Any, Any]:
        """The inner method's reply to a change of bounded length, itself of bounded length."""
        change = w - msg.params
        reply, kept = self.inner.reply(msg.params + self._bounded(change, norm(change)), msg, client, local)
        length = torch.stack([norm(t.reshape(-1)) for t in pack(reply).values()]).norm()
        return tree_map(lambda t: self._bounded(t, length), reply), kept

    def _bounded(self, t: Tensor, length: Tensor) -> Tensor:
        """t of something that is `length` long, shortened with it to C; 0 of what has diverged, which has no length."""
        return torch.where(length.isfinite(), t * (self.clip / length).clamp(max=1.0), 0.0)

    def update(self, server: Noisy, cohort: Cohort) -> Noisy:
        """The inner update with noisy plain means; weights would make a large client's influence larger than C."""
        mean = self._noised(server, cohort.uniform, cohort.size) if self.noise else cohort.uniform
        inner = self.inner.update(server.inner, cohort._replace(mean=mean, uniform=mean))
        return Noisy(inner, server.round + 1, server.key)

    def _noised(self, server: Noisy, mean: Any, size: int) -> Any:
        words = fold(purpose("privacy"), *server.key.to(torch.int64), server.round.to(torch.int64))
        return unpack(
            mean,
            {
                name: tensor + self.noise * self.clip / size * _noise(fold(words, number), tensor)
                for number, (name, tensor) in enumerate(pack(mean).items())
            },
        )


def _noise(word: Tensor, like: Tensor) -> Tensor:
    """Standard normal numbers in the shape of `like`."""
    place = torch.arange(like.numel(), device=like.device)
    return normal(fold(word, place)).to(like.dtype).view_as(like)


def seal(server: Any, secret: int) -> Any:
    """The same server with `secret` as the key of its noise, where it has any: who knows the key can take it off."""
    if isinstance(server, Noisy):
        words = [secret >> 24 * i & 0xFFFFFF for i in range(WORDS)]
        server = server._replace(key=torch.tensor(words).to(server.key))
    return server._replace(inner=seal(server.inner, secret)) if "inner" in server._fields else server
