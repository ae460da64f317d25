"""DP-FedAvg (McMahan et al., 2018, Algorithm 1): bound what one client can change, and add Gaussian noise to the mean.

down … | up … | client keeps … | server keeps …, t, key

client:  w_k ← w + (w_k − w) min(1, C / ‖w_k − w‖), then the inner method's reply r_k;  r_k ← r_k min(1, C / ‖r_k‖)
server:  r = mean_S r_k + N(0, (z C / |S|)² I) stands for every mean that the inner method sees

The privacy spent is (ε, δ) for one client's whole data. Neighbouring federations differ in one client's data, so a sum
of replies no longer than C differs by at most 2C, and noise z C on the sum is a Gaussian mechanism of multiplier z / 2.
A method of two exchanges uses the mechanism twice in a round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedflat.core.method import Cohort, Local, Method
from fedflat.core.random import hash_words, normal_from, purpose_key
from fedflat.core.state import pack_state, tree_map, unpack_state
from fedflat.core.vectors import norm
from fedflat.methods.wrappers import Wrapper
from fedflat.options import NonNegative, Range

KEY_WORDS = 4  # of 24 bits each, which every floating-point type holds exactly


class PrivateServer(NamedTuple):
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

    def init_server(self, params: Tensor) -> PrivateServer:
        """No round played; the key is sealed later: with a simulation's seed, or a federation's server's secret."""
        return PrivateServer(self.inner.init_server(params), params.new_zeros(()), params.new_zeros(KEY_WORDS))

    def reply(self, w: Tensor, msg: Any, client: Any, local: Local) -> tuple[Any, Any]:
        """The inner method's reply to a change of bounded length, itself of bounded length."""
        change = w - msg.params
        reply, kept = self.inner.reply(msg.params + self._bounded(change, norm(change)), msg, client, local)
        length = torch.stack([norm(t.reshape(-1)) for t in pack_state(reply).values()]).norm()
        return tree_map(lambda t: self._bounded(t, length), reply), kept

    def _bounded(self, t: Tensor, length: Tensor) -> Tensor:
        """t of something that is `length` long, shortened with it to C; 0 of what has diverged, which has no length."""
        return torch.where(length.isfinite(), t * (self.clip / length).clamp(max=1.0), 0.0)

    def update(self, server: PrivateServer, cohort: Cohort) -> PrivateServer:
        """The inner update with noisy plain means; weights would make a large client's influence larger than C."""
        mean = self._noised(server, cohort.uniform, cohort.size) if self.noise else cohort.uniform
        inner = self.inner.update(server.inner, cohort._replace(mean=mean, uniform=mean))
        return PrivateServer(inner, server.round + 1, server.key)

    def _noised(self, server: PrivateServer, mean: Any, size: int) -> Any:
        words = hash_words(purpose_key("privacy"), *server.key.to(torch.int64), server.round.to(torch.int64))
        return unpack_state(
            mean,
            {
                name: tensor + self.noise * self.clip / size * _noise(hash_words(words, number), tensor)
                for number, (name, tensor) in enumerate(pack_state(mean).items())
            },
        )


def _noise(word: Tensor, like: Tensor) -> Tensor:
    """Standard normal numbers in the shape of `like`."""
    place = torch.arange(like.numel(), device=like.device)
    return normal_from(hash_words(word, place)).to(like.dtype).view_as(like)


def set_noise_key(server: Any, secret: int) -> Any:
    """The same server with `secret` as the key of its noise, where it has any: who knows the key can take it off."""
    if isinstance(server, PrivateServer):
        words = [secret >> 24 * i & 0xFFFFFF for i in range(KEY_WORDS)]
        server = server._replace(key=torch.tensor(words).to(server.key))
    return server._replace(inner=set_noise_key(server.inner, secret)) if "inner" in server._fields else server


def find_private(method: Method) -> Private | None:
    """The wrapper that makes a method private, if it has one."""
    if isinstance(method, Private):
        return method
    inner = getattr(method, "inner", None)
    return find_private(inner) if inner is not None else None


def privacy_spent(
    method: Method, cohorts: Sequence[Sequence[int]], population: int, sampled: bool
) -> dict[str, Any] | None:
    """What rounds with these cohorts have cost; None for a method without clipping and noise.

    `epsilon_known_cohorts` holds even against those who know who took part in which round: it counts the rounds of the
    client that took part most often. Where cohorts were `sampled` from all clients, `epsilon` is the smaller
    one that holds against those who do not know.
    """
    found = find_private(method)
    if found is None:
        return None
    rounds = Counter(client for each in cohorts for client in each)
    known = _epsilon(found, method.exchanges * max(rounds.values(), default=0))
    size = max(map(len, cohorts), default=0)
    drawn = _epsilon(found, method.exchanges, len(cohorts), population, size) if sampled else known
    return {
        "epsilon": min((e for e in (drawn, known) if e is not None), default=None),
        "epsilon_known_cohorts": known,
        "delta": found.privacy_delta,
        "clip": found.clip,
        "noise": found.noise,
        "note": "" if _accounting() else "install fedflat[privacy] to have epsilon computed",
    }


def describe_privacy(found: dict[str, Any]) -> str:
    """One line about what was spent."""
    if found["note"]:
        return f"privacy: {found['note']}"
    numbers = ("infinite" if e is None else f"{e:.3g}" for e in (found["epsilon"], found["epsilon_known_cohorts"]))
    return "privacy: ε = {} ({} where the cohorts are known) at δ = {:g}, for one client's data".format(
        *numbers, found["delta"]
    )


def _accounting() -> Any:
    """The package dp-accounting, None where it is not installed."""
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        return None
    return dp_accounting


def _epsilon(found: Private, uses: int, rounds: int = 1, population: int = 1, size: int = 1) -> float | None:
    """ε of `uses` of the mechanism in each round; None where there is no bound or nothing to compute it with."""
    dp = _accounting()
    if dp is None or not found.noise:
        return None
    if not uses or not rounds:
        return 0.0
    event = dp.SelfComposedDpEvent(dp.GaussianDpEvent(found.noise / 2), uses)
    if size < population:
        event = dp.SampledWithoutReplacementDpEvent(population, size, event)
    accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    return float(accountant.compose(event, rounds).get_epsilon(found.privacy_delta))
