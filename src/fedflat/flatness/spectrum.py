"""The whole spectrum of a Hessian without its eigenvectors: trace and density, from random probes."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fedflat.core.vectors import norm
from fedflat.flatness.hessian import Hessian, check_finite
from fedflat.flatness.noise import signs
from fedflat.progress import with_bar


class Trace(NamedTuple):
    """An estimate of tr H and its standard error, 0 where it is exact."""

    value: float
    error: float


def trace(hessian: Hessian, probes: int = 10, seed: int = 0) -> Trace:
    """tr H ≈ mean of vᵀHv over random signs v (Hutchinson, 1990); exact where P products are no more than `probes`.

    The variance of one probe is 2 Σ_{i≠j} H_ij².
    """
    if hessian.size <= probes:
        return Trace(float(hessian.matrix().trace()), 0.0)
    values = []
    for number in with_bar(range(probes), f"{hessian.data.label} trace"):
        v = signs(hessian.w, seed, "trace", number)
        values.append(v @ hessian.apply(v))
    return _mean(torch.stack(values).double())


def _mean(values: Tensor) -> Trace:
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Trace(float(values.mean()), error)


class Spectrum(NamedTuple):
    """Eigenvalues seen by the probes (`nodes`) with their share of the whole spectrum (`weights`, sum 1)."""

    nodes: Tensor
    weights: Tensor
    trace: Trace

    def density(self, points: int = 401, width: float = 0.01) -> tuple[Tensor, Tensor]:
        """φ(x) = Σ_j weight_j N(x; node_j, s²) on a grid, with s = `width` times the range of the nodes."""
        low, high = self.nodes.min(), self.nodes.max()
        spread = width * (high - low).clamp(min=1e-12)
        grid = torch.linspace(float(low - 5 * spread), float(high + 5 * spread), points, dtype=self.nodes.dtype)
        bells = torch.exp(-0.5 * ((grid[:, None] - self.nodes) / spread) ** 2) / (spread * math.sqrt(2 * math.pi))
        return grid, bells @ self.weights


def spectrum(hessian: Hessian, probes: int = 5, steps: int = 40, seed: int = 0) -> Spectrum:
    """Stochastic Lanczos quadrature (Golub and Meurant; Ghorbani et al., 2019).

    From a random unit v, `steps` of Lanczos give a tridiagonal T = U Θ Uᵀ; nodes Θ_j with weights U_{1j}² integrate
    every polynomial of degree < 2 · steps exactly over the spectrum as v sees it; the mean over v is the estimate.
    """
    found = []
    for number in with_bar(range(probes), f"{hessian.data.label} spectrum"):
        diagonal, beside = tridiagonal(hessian, signs(hessian.w, seed, "spectrum", number), steps)
        matrix = torch.diag(diagonal) + torch.diag(beside, 1) + torch.diag(beside, -1)
        nodes, vectors = torch.linalg.eigh(matrix)
        found.append((nodes, vectors[0] ** 2 / probes, diagonal[0] * hessian.size))
    nodes, weights, traces = zip(*found, strict=True)
    return Spectrum(torch.cat(nodes), torch.cat(weights), _mean(torch.stack(traces)))


def tridiagonal(hessian: Hessian, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Diagonal and off-diagonal of H in the Krylov basis of `start`, in float64; ends early in an invariant space."""
    basis = (start / norm(start))[None]
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    for _ in range(min(steps, hessian.size)):
        product = check_finite(hessian.apply(basis[-1]))
        diagonal.append(basis[-1] @ product)
        for _ in range(2):  # once more, since one pass in floating point leaves the basis not quite orthogonal
            product = product - (basis @ product) @ basis
        length = norm(product)
        if length <= 100 * torch.finfo(product.dtype).eps * abs(torch.stack(diagonal)).max():
            break
        beside.append(length)
        basis = torch.cat([basis, product[None] / length])
    tensors = [torch.stack(diagonal), torch.stack([*beside, diagonal[0]])[: len(diagonal) - 1]]
    return tensors[0].double().cpu(), tensors[1].double().cpu()
