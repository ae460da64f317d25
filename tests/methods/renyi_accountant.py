"""A Rényi accountant in float64 under the names of dp-accounting, where that package cannot be installed.

Order α of the Gaussian mechanism: α / (2σ²), times its uses. Sampling without replacement: Wang, Balle and
Kasiviswanathan (2019), Theorem 9. Poisson sampling: Mironov, Talwar and Zhang (2019), Section 3.3. From orders to ε:
Canonne, Kamath and Steinke (2020), Proposition 12.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy.special import gammaln, logsumexp

ORDERS = range(2, 257)


class NeighboringRelation(Enum):
    REPLACE_ONE = 1
    REPLACE_SPECIAL = 2


@dataclass
class GaussianDpEvent:
    noise_multiplier: float

    def order(self, alpha: int) -> float:
        return alpha / (2 * self.noise_multiplier**2)


@dataclass
class SelfComposedDpEvent:
    event: GaussianDpEvent
    count: int

    def order(self, alpha: int) -> float:
        return self.count * self.event.order(alpha)


@dataclass
class PoissonSampledDpEvent:
    sampling_probability: float
    event: SelfComposedDpEvent

    def order(self, alpha: int) -> float:
        q, k = self.sampling_probability, np.arange(alpha + 1)
        exponents = [j * (j - 1) * self.event.order(2) / 2 for j in k]
        terms = _log_binomial(alpha, k) + (alpha - k) * math.log1p(-q) + k * math.log(q) + exponents
        return float(logsumexp(terms)) / (alpha - 1)


@dataclass
class SampledWithoutReplacementDpEvent:
    source_dataset_size: int
    sample_size: int
    event: SelfComposedDpEvent

    def order(self, alpha: int) -> float:
        share, second = self.sample_size / self.source_dataset_size, self.event.order(2)
        smaller = min(math.log(4 * math.expm1(second)), math.log(2) + second)
        terms = [0.0, 2 * math.log(share) + float(_log_binomial(alpha, 2)) + smaller]
        for j in range(3, alpha + 1):
            chosen = j * math.log(share) + float(_log_binomial(alpha, j))
            terms.append(chosen + math.log(2) + (j - 1) * self.event.order(j))
        return float(logsumexp(terms)) / (alpha - 1)


def _log_binomial(n: int, k: Any) -> Any:
    return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)


class RdpAccountant:
    def __init__(self, neighboring_relation: NeighboringRelation) -> None:
        self.relation, self.orders = neighboring_relation, np.zeros(len(ORDERS))

    def compose(self, event: Any, count: int) -> RdpAccountant:
        wanted = "REPLACE_SPECIAL" if isinstance(event, PoissonSampledDpEvent) else "REPLACE_ONE"
        assert isinstance(event, SelfComposedDpEvent) or self.relation is NeighboringRelation[wanted]
        self.orders += count * np.array([event.order(alpha) for alpha in ORDERS])
        return self

    def get_epsilon(self, delta: float) -> float:
        alpha = np.array(ORDERS)
        return max(0.0, float((self.orders + np.log1p(-1 / alpha) - np.log(delta * alpha) / (alpha - 1)).min()))


rdp = SimpleNamespace(RdpAccountant=RdpAccountant)
