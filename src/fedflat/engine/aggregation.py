"""From the replies of a cohort to the means that a method sees: clip long replies, then average them by a rule.

    mean           Σ p_k r_k and Σ r_k / n, what every method expects
    median         the median of every coordinate (Yin et al., 2018)
    trimmed:β      the mean of every coordinate without its ⌊β n⌋ largest and smallest values (Yin et al., 2018)
    krum:f         the one reply that is closest to its n − f − 2 nearest neighbours (Blanchard et al., 2017)

All but `mean` ignore the weights, which clients could claim, and give the method one average in place of both means.

The norm of a reply is that of all its tensors together, except bookkeeping: scalars that a method declares, such as the
number of steps. They say nothing about samples, have another unit than the model, and scaling them would change what
they mean. Rules treat them like any coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedflat.core.state import bookkeeping_names, pack_state, states_to_rows, tree_map, unpack_state
from fedflat.errors import UserError, mention

RULES = "must be mean, median, trimmed:SHARE (cut at each end, below 0.5) or krum:NUMBER (of attackers)"
SMALLEST_SHARE = 1e-9  # that `trimmed` may cut: of smaller ones no cohort has a client
FEWEST_NORMS = 3  # the median of one or two norms follows a single long reply


class ClipBound(NamedTuple):
    """The largest norm of a reply: `value` itself, or `value` times the median norm of the cohort's replies."""

    value: float
    of_median: bool


@dataclass(frozen=True)
class Aggregation:
    """How the replies of a cohort are averaged; the defaults are the plain means.

    Args:
        clip: replies with a larger norm are scaled down to it; None leaves them as they are.
        rule: mean, median, trimmed or krum.
        share: the share β that `trimmed` cuts at each end.
        attackers: the number f of attackers that `krum` expects.
        bookkeeping: names of the reply's tensors that are not part of its norm.
    """

    clip: ClipBound | None = None
    rule: str = "mean"
    share: float = 0.0
    attackers: int = 0
    bookkeeping: tuple[str, ...] = ()

    @property
    def needs_all_replies(self) -> bool:
        """Whether means of parts of a cohort cannot be put together to the means of the cohort."""
        return self.rule != "mean" or (self.clip is not None and self.clip.of_median)

    @property
    def fewest_replies(self) -> int:
        """The smallest number of replies with which the rule differs from the mean, or is defined at all."""
        at_least = {"mean": 1, "median": 3, "krum": 2 * self.attackers + 3}
        return at_least[self.rule] if self.rule in at_least else math.ceil(1 / self.share)

    def average(self, replies: Any, weights: Tensor) -> tuple[Any, Any]:
        """Return what takes the place of the weighted and of the plain mean.

        Args:
            replies: the clients' replies, stacked along the first axis of each tensor.
            weights: their weights [clients], not normalised.
        """
        replies = self._clip(replies) if self.clip else replies
        if self.rule == "mean":
            shares = weights / weights.sum()
            mean = tree_map(lambda r: torch.tensordot(shares.to(r.dtype), r, 1), replies)
            return mean, tree_map(lambda r: r.mean(0), replies)
        robust = self._robust_average(replies, len(weights))
        return robust, robust

    def _clip(self, replies: Any) -> Any:
        """Scale replies down to the bound; a reply that is not finite becomes 0."""
        factors = self.clip_factors(replies)

        def scaled(tensor: Tensor) -> Tensor:
            factor = factors.to(tensor.dtype).view(-1, *[1] * (tensor.dim() - 1))
            return torch.where(factor > 0, tensor * factor, 0.0)

        named = pack_state(replies)
        kept = bookkeeping_names(replies, self.bookkeeping)
        return unpack_state(replies, {n: t if n in kept else scaled(t) for n, t in named.items()})

    def clip_factors(self, replies: Any) -> Tensor:
        """Return the factor by which each reply is scaled, [clients]: 1 where nothing is clipped, 0 if not finite."""
        norms = reply_norms(replies, self.bookkeeping)
        if self.clip is None:
            return torch.ones_like(norms)
        bound = self.clip.value * (_median(norms) if self.clip.of_median else torch.ones_like(norms[0]))
        return torch.where(norms.isfinite() & (norms <= bound), 1.0, (bound / norms).nan_to_num(0.0))

    def _robust_average(self, replies: Any, count: int) -> Any:
        if self.rule == "median":
            return tree_map(_median, replies)
        if self.rule == "trimmed":
            cut = math.floor(self.share * count + 1e-9)
            return tree_map(lambda r: r.sort(0).values[cut : count - cut].mean(0), replies)
        chosen = krum_choice(states_to_rows(_without(replies, self.bookkeeping)), self.attackers)
        return tree_map(lambda r: r[chosen], replies)


PLAIN_MEANS = Aggregation()


def reply_norms(replies: Any, bookkeeping: Collection[str]) -> Tensor:
    """Return the norm of each reply, [clients]; infinite where it is not a number.

    Args:
        replies: the clients' replies, stacked.
        bookkeeping: names of tensors that do not count.
    """
    rows = states_to_rows(_without(replies, bookkeeping))
    rows = rows if rows.device.type == "mps" else rows.double()  # Apple's GPUs have no float64
    return torch.linalg.vector_norm(rows, dim=1).nan_to_num(math.inf, math.inf)


def _without(replies: Any, bookkeeping: Collection[str]) -> tuple[Tensor, ...]:
    left_out = bookkeeping_names(replies, bookkeeping)
    return tuple(tensor for name, tensor in pack_state(replies).items() if name not in left_out)


def _median(values: Tensor) -> Tensor:
    """Return the median over the first axis: of an even number of values the mean of the two in the middle."""
    ordered, count = values.sort(0).values, len(values)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def krum_choice(rows: Tensor, attackers: int) -> Tensor:
    """Return the position of the row with the smallest sum of squared distances to its n − attackers − 2 nearest.

    Args:
        rows: one row for each reply, [n, P].
        attackers: the number of attackers that is expected.
    """
    squares = torch.stack([(rows - row).double().square().sum(1) for row in rows]).nan_to_num(math.inf, math.inf)
    squares.fill_diagonal_(math.inf)
    nearest = squares.sort(1).values[:, : max(len(rows) - attackers - 2, 1)]
    return nearest.sum(1).argmin()


def parse_aggregation(clip_replies: float | str | None, aggregate: str, bookkeeping: tuple[str, ...]) -> Aggregation:
    """Return the aggregation that the options `clip_replies` and `aggregate` describe; raise UserError if none.

    Args:
        clip_replies: the option `clip_replies`: a number, a text such as "2x" for a multiple of the median, or None.
        aggregate: the option `aggregate`, such as "trimmed:0.2".
        bookkeeping: what the method declares.
    """
    rule, _, number = aggregate.partition(":")
    share = _number(number, float) if rule == "trimmed" else 0.0
    attackers = _number(number, int) if rule == "krum" else 0
    known = aggregate in ("mean", "median") or (rule == "trimmed" and SMALLEST_SHARE <= share < 0.5)
    if not known and not (rule == "krum" and 0 <= attackers < math.inf):
        raise UserError("aggregate", aggregate, RULES)
    return Aggregation(_parse_clip(clip_replies), rule, share, int(attackers), bookkeeping)


def check_cohort_suffices(aggregation: Aggregation, aggregate: str, cohort: int, why: str = "") -> None:
    """Raise UserError if a rule would be the mean of a cohort of this size, or undefined, or a clip bounds nothing.

    Args:
        aggregation: the rule.
        aggregate: the option that describes it.
        cohort: clients in the smallest round.
        why: where rounds may have fewer than the option `cohort`, what the end of the message says about it.
    """
    why = why or f"{mention('cohort')} is {cohort}"
    if cohort < aggregation.fewest_replies:
        raise UserError("aggregate", aggregate, f"needs a cohort of at least {aggregation.fewest_replies}; {why}")
    clip = aggregation.clip
    if clip and clip.of_median and cohort < FEWEST_NORMS:
        raise UserError("clip_replies", f"{clip.value:g}x", f"needs a cohort of at least {FEWEST_NORMS}; {why}")


def _parse_clip(option: float | str | None) -> ClipBound | None:
    if not isinstance(option, str):
        return None if option is None else ClipBound(option, of_median=False)
    value = _number(option.removesuffix("x"), float)
    if not option.endswith("x") or not 0 < value < math.inf:
        problem = "must be a number more than 0, or a multiple of the cohort's median norm, such as 2x"
        raise UserError("clip_replies", option, problem)
    return ClipBound(value, of_median=True)


def _number(text: str, kind: type[float] | type[int]) -> float:
    """Return the number that a text stands for, NaN if it stands for none."""
    try:
        return kind(text)
    except (ValueError, OverflowError):
        return math.nan
