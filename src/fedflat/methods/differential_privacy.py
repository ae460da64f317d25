"""DP-FedAvg (McMahan et al., 2018, Algorithm 1): clip the clients' replies and add Gaussian noise to their mean.

down … | up … | client keeps … | server keeps …, t, key

client:  w_k ← w + (w_k − w) min(1, C / ‖w_k − w‖), then the inner method's reply r_k;  r_k ← r_k min(1, C / ‖r_k‖)
server:  r = (Σ_S r_k + N(0, (z C)² I)) / |S| replaces every mean that the inner method sees

C is `clip` and z is `noise`. The guarantee (ε, δ) protects all data of one client: neighbouring federations differ in
the data of one client. A sum of replies, each of norm at most C, then differs by at most 2C, so noise of standard
deviation z C on the sum is a Gaussian mechanism with multiplier z / 2. A method with two exchanges uses the mechanism
twice in a round.

If clients are drawn by Poisson sampling, the sum is divided by the mean of |S| instead, as in McMahan et al.: |S|
itself would tell who took part. Noise is added in a round without replies too. Poisson sampling is accounted for
exactly, for federations with and without one client's data: the sum then differs by at most C, and the multiplier is z.
For cohorts drawn without replacement the bound of Wang, Balle and Kasiviswanathan (2019) is used.

r_k here is the reply without bookkeeping, such as FedNova's number of steps (`Method.bookkeeping`). Bookkeeping is sent
as it is. It depends on how many samples a client has, not on what they are; the guarantee does not cover this number.
Its mean may tell who took part, so that cohorts count as known, and Poisson sampling is refused with such methods.
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
from fedflat.core.state import bookkeeping_names, pack_state, tree_map, unpack_state
from fedflat.core.vectors import norm
from fedflat.errors import UserError
from fedflat.methods import METHODS
from fedflat.methods.wrappers import Wrapper
from fedflat.options import NonNegative, Range

KEY_WORDS = 4  # a noise key is stored as this many integers of 24 bits, which float32 holds exactly


class PrivateServer(NamedTuple):
    """The server's state.

    Args:
        inner: the inner method's state.
        round: the number t of updates so far, [].
        key: the key from which the noise is drawn, [KEY_WORDS].
    """

    inner: Any
    round: Tensor
    key: Tensor

    @property
    def params(self) -> Tensor:
        """The model that is evaluated, [P]."""
        return self.inner.params


@dataclass(frozen=True)
class Private(Wrapper):
    """Client-level differential privacy: clipped replies, and Gaussian noise on their mean."""

    citation: ClassVar[str] = """@inproceedings{mcmahan2018dpfedavg,
  title = {Learning Differentially Private Recurrent Language Models},
  author = {McMahan, H. Brendan and Ramage, Daniel and Talwar, Kunal and Zhang, Li},
  booktitle = {ICLR},
  year = {2018}
}"""

    clip: Annotated[float, Range(0, open=True, finite=False)] = 1.0
    """Largest norm C of a reply; a longer reply is scaled down to it."""
    noise: NonNegative = 1.0
    """Noise multiplier z: the sum of the replies gets noise of standard deviation z C."""
    privacy_delta: Annotated[float, Range(0, 1, open=True)] = 1e-5
    """δ for which the spent ε is reported; should be less than 1 / number of clients."""

    def init_server(self, params: Tensor) -> PrivateServer:
        """Return the inner method's initial state and a key of zeros, which `set_noise_key` replaces."""
        return PrivateServer(self.inner.init_server(params), params.new_zeros(()), params.new_zeros(KEY_WORDS))

    def reply(self, w: Tensor, msg: Any, client: Any, local: Local) -> tuple[Any, Any]:
        """Return the clipped reply of the inner method, which sees the client's model with a clipped change."""
        change = w - msg.params
        reply, kept = self.inner.reply(msg.params + self._clip(change, norm(change)), msg, client, local)
        named, public = pack_state(reply), bookkeeping_names(reply, self.bookkeeping)
        length = torch.stack([norm(t.reshape(-1)) for name, t in named.items() if name not in public]).norm()
        clipped = {name: t if name in public else self._clip(t, length) for name, t in named.items()}
        return unpack_state(reply, clipped), kept

    def _clip(self, t: Tensor, length: Tensor) -> Tensor:
        """Return t · min(1, C / length), and 0 if training diverged and the length is not finite.

        `length` is the norm of t, or of the whole reply that t is a part of.
        """
        return torch.where(length.isfinite(), t * (self.clip / length).clamp(max=1.0), 0.0)

    def update(self, server: PrivateServer, cohort: Cohort) -> PrivateServer:
        """Return the state after the inner method's update with the noisy plain mean in place of both means.

        A weighted mean is not used: a client with a large weight could change it by more than C / |S|.
        """
        size = cohort.expected_size or cohort.size
        mean = cohort.uniform
        if size != cohort.size:
            mean = tree_map(lambda t: t * (cohort.size / size), mean)
        mean = self._add_noise(server, mean, size) if self.noise else mean
        inner = self.inner.update(server.inner, cohort._replace(mean=mean, uniform=mean, size=size))
        return PrivateServer(inner, server.round + 1, server.key)

    def _add_noise(self, server: PrivateServer, mean: Any, size: int) -> Any:
        """Return a sum of replies divided by `size` with noise that depends on the key, the round and the tensor."""
        key = hash_words(purpose_key("privacy"), *server.key.to(torch.int64), server.round.to(torch.int64))
        named, public = pack_state(mean), bookkeeping_names(mean, self.bookkeeping)
        noisy = {
            name: tensor + self.noise * self.clip / size * _normal_like(tensor, hash_words(key, number))
            for number, (name, tensor) in enumerate(named.items())
            if name not in public
        }
        return unpack_state(mean, named | noisy)


def _normal_like(tensor: Tensor, key: Tensor) -> Tensor:
    """Return standard normal numbers of the tensor's shape and dtype, drawn from the key."""
    index = torch.arange(tensor.numel(), device=tensor.device)
    return normal_from(hash_words(key, index)).to(tensor.dtype).view_as(tensor)


def set_noise_key(server: Any, secret: int) -> Any:
    """Return the same server state with `secret` as the key of its noise, unchanged if the method adds no noise.

    In a simulation the secret is the seed, in a federation a random number that never leaves the server: whoever knows
    the key can compute the noise and subtract it.

    Args:
        server: the state of any method; a private method may be inside other wrappers.
        secret: the key, of which 96 bits are used.
    """
    if isinstance(server, PrivateServer):
        words = [secret >> 24 * i & 0xFFFFFF for i in range(KEY_WORDS)]
        server = server._replace(key=torch.tensor(words).to(server.key))
    return server._replace(inner=set_noise_key(server.inner, secret)) if "inner" in server._fields else server


def find_private(method: Method) -> Private | None:
    """Return the `Private` wrapper of a method, at any depth, or None if the method is not private.

    Args:
        method: any method.
    """
    if isinstance(method, Private):
        return method
    inner = getattr(method, "inner", None)
    return find_private(inner) if inner is not None else None


def check_clipped_last(method: Method) -> None:
    """Raise UserError if a wrapper changes replies that `Private` has clipped: they could be longer than C again.

    Args:
        method: any method.
    """
    inner = getattr(method, "inner", None)
    if inner is None:
        return
    if type(method).reply is not Wrapper.reply and not isinstance(method, Private) and find_private(inner):
        problem = "changes replies after dpfedavg has clipped them; put dpfedavg around it"
        raise UserError(None, f"method {METHODS.name_of(type(method))}", problem)
    check_clipped_last(inner)


def privacy_spent(
    method: Method,
    cohorts: Sequence[Sequence[int]],
    population: int,
    sampled: bool,
    poisson_size: int | None = None,
) -> dict[str, Any] | None:
    """Return the privacy that the rounds with these cohorts have spent, None for a method that is not private.

    The key `epsilon_known_cohorts` is the ε that holds even against somebody who knows which clients took part in which
    round. It counts the rounds of the client that took part most often. The key `epsilon` is the smaller ε that holds
    against somebody who does not know; it equals the former unless cohorts were sampled. Both are None if there is no
    noise or the package dp-accounting is not installed (see the key `note`).

    Args:
        method: any method.
        cohorts: the clients of every round played.
        population: the number of all clients.
        sampled: whether every cohort was drawn uniformly from all clients.
        poisson_size: the mean number of clients in a round, if every client was drawn on its own (Poisson sampling).
            The guarantee then compares federations with and without one client's data, else federations in which these
            are replaced; the key `neighbours` says which.
    """
    private = find_private(method)
    if private is None:
        return None
    rounds_of_client = Counter(client for cohort in cohorts for client in cohort)
    poisson = poisson_size is not None
    known = _epsilon(private, method.exchanges * max(rounds_of_client.values(), default=0), poisson=poisson)
    size = max(map(len, cohorts), default=0) if poisson_size is None else poisson_size
    amplified = known
    if poisson or (sampled and not method.bookkeeping):  # means without noise may tell who took part
        amplified = _epsilon(private, method.exchanges, len(cohorts), population, size, poisson)
    return {
        "epsilon": min((e for e in (amplified, known) if e is not None), default=None),
        "epsilon_known_cohorts": known,
        "delta": private.privacy_delta,
        "clip": private.clip,
        "noise": private.noise,
        "neighbours": "present or absent" if poisson else "replaced by others",
        "not_covered": list(method.bookkeeping),
        "note": "" if _accounting() else "install fedflat[privacy] to have epsilon computed",
    }


def describe_privacy(spent: dict[str, Any]) -> str:
    """Return one line about the privacy that was spent.

    Args:
        spent: what `privacy_spent` returned.
    """
    if spent["note"]:
        return f"privacy: {spent['note']}"
    numbers = ("infinite" if e is None else f"{e:.3g}" for e in (spent["epsilon"], spent["epsilon_known_cohorts"]))
    line = "privacy: ε = {} ({} where the cohorts are known) at δ = {:g}".format(*numbers, spent["delta"])
    names = ", ".join(spent.get("not_covered", ()))
    return f"{line}, for one client's data ({spent['neighbours']})" + (f"; not covered: {names}" if names else "")


def _accounting() -> Any:
    """Return the package dp-accounting, None if it is not installed."""
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        return None
    return dp_accounting


def _epsilon(
    private: Private, uses: int, rounds: int = 1, population: int = 1, size: int = 1, poisson: bool = False
) -> float | None:
    """Return ε after `rounds` rounds that each use the mechanism `uses` times on `size` of `population` clients.

    Cohorts smaller than the population are taken as drawn without replacement or, with `poisson`, by Poisson sampling.
    None if ε is infinite (no noise) or dp-accounting is missing.
    """
    dp = _accounting()
    if dp is None or not private.noise:
        return None
    if not uses or not rounds:
        return 0.0
    event = dp.SelfComposedDpEvent(dp.GaussianDpEvent(private.noise if poisson else private.noise / 2), uses)
    if size < population and poisson:
        event = dp.PoissonSampledDpEvent(size / population, event)
    elif size < population:
        event = dp.SampledWithoutReplacementDpEvent(population, size, event)
    relation = dp.NeighboringRelation.REPLACE_SPECIAL if poisson else dp.NeighboringRelation.REPLACE_ONE
    accountant = dp.rdp.RdpAccountant(neighboring_relation=relation)
    return float(accountant.compose(event, rounds).get_epsilon(private.privacy_delta))
