"""The Hessian of the mean loss as a linear map: largest eigenvalues, trace and spectral density."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor
from torch.func import jvp, vmap

from fedflat.core.task import Batch, Task
from fedflat.core.vectors import norm
from fedflat.errors import UserError
from fedflat.flatness.objective import Objective, full_precision, random_signs, uniform_noise
from fedflat.progress import counting_bar, with_bar


class Hessian:
    """H = ∇²F(w) with F the mean loss over `data`.

    Hv = d/dt ∇F(w + t v) at t = 0: forward mode over reverse mode, summed over the batches, about four gradients' work.
    """

    def __init__(self, task: Task, w: Tensor, data: Objective) -> None:
        self.task, self.w, self.data, self.size = task, w, data, len(w)

    @torch.no_grad()
    @full_precision()
    def apply(self, v: Tensor) -> Tensor:
        """Hv."""
        return self.data.mean(lambda batch: self._product(batch, v))

    def _product(self, batch: Batch, v: Tensor) -> Tensor:
        return jvp(lambda w: self.task.grad(w, batch), (self.w,), (v,))[1]

    def matrix(self) -> Tensor:
        """H itself [P, P], symmetric up to rounding."""
        identity = torch.eye(self.size, dtype=self.w.dtype, device=self.w.device)
        return check_finite(vmap(self.apply, chunk_size=64)(identity))

    def operator(self, advance: Callable[[], None] = lambda: None) -> LinearOperator:
        """H for SciPy; `advance` hears of every product."""
        kind = np.float64 if self.w.dtype == torch.float64 else np.float32

        def product(v: np.ndarray) -> np.ndarray:
            advance()
            return check_finite(self.apply(torch.from_numpy(v.ravel().astype(kind)).to(self.w))).cpu().numpy()

        return LinearOperator((self.size, self.size), matvec=product, dtype=kind)


def check_finite(products: Tensor) -> Tensor:
    """What solvers may be given; else a UserError."""
    if not torch.isfinite(products).all():
        raise UserError(
            "the Hessian is not finite: the loss overflows; train with a lower --lr, or leave this out of --what"
        )
    return products


Pairs = tuple[np.ndarray, np.ndarray]  # values [k], vectors [P, k]


LANCZOS_RESTARTS = 300  # of Lanczos, each of about 2k products; networks need fewer than ten


class Eigenpairs(NamedTuple):
    """Eigenvalues [k], largest first, and unit eigenvectors [k, P]."""

    values: Tensor
    vectors: Tensor

    def ratio(self, number: int = 5) -> float | None:
        """λ1 / λ_number, None where there are not as many or the latter is not positive."""
        if len(self.values) < number or self.values[number - 1] <= 0:
            return None
        return float(self.values[0] / self.values[number - 1])


def largest_eigenpairs(hessian: Hessian, k: int = 5, tolerance: float = 1e-4, seed: int = 0) -> Eigenpairs:
    """The k largest eigenvalues by SciPy's implicitly restarted Lanczos, to `tolerance` relative to each."""
    if hessian.size <= max(2 * k + 1, 20):
        values, vectors = np.linalg.eigh(hessian.matrix().cpu().numpy())
    else:
        values, vectors = _lanczos(hessian, k, tolerance, seed)
    order = np.argsort(values)[::-1][:k].copy()
    return Eigenpairs(*(torch.from_numpy(part).to(hessian.w) for part in (values[order], vectors[:, order].T.copy())))


def _lanczos(hessian: Hessian, k: int, tolerance: float, seed: int) -> Pairs:
    """k pairs that none exceeds: Lanczos may miss copies of an eigenvalue, so it looks again beside what it found."""
    starts = (uniform_noise(hessian.w, seed, "lanczos", turn).cpu().numpy() for turn in range(k))
    with counting_bar(f"{hessian.data.label} eigenvalues") as advance:
        operator = hessian.operator(advance)
        values, vectors = _solve(operator, k, tolerance, next(starts))
        rounding = 100 * np.finfo(operator.dtype).eps * abs(values).max()
        for start in starts:
            value, vector = _highest_beside(operator, values, vectors, tolerance, start)
            least = values.argmin()
            if not value > values[least] + max(tolerance * abs(values[least]), rounding):
                break
            values[least], vectors[:, least] = value, vector
    return values, vectors


def _highest_beside(
    operator: LinearOperator, values: np.ndarray, vectors: np.ndarray, tolerance: float, start: np.ndarray
) -> tuple[float, np.ndarray]:
    """The top pair of (I − VVᵀ) H (I − VVᵀ) + λ VVᵀ with λ the least of the values: λ where V lacks none above it."""

    def outside(v: np.ndarray) -> np.ndarray:
        return v - vectors @ (vectors.T @ v)

    def product(v: np.ndarray) -> np.ndarray:
        v = v.ravel()
        return outside(operator @ outside(v)) + values.min() * (v - outside(v))

    beside = LinearOperator(operator.shape, matvec=product, dtype=operator.dtype)
    top = _solve(beside, 1, tolerance, outside(start))[1][:, 0]
    vector, length = outside(top), np.linalg.norm(outside(top))
    if not length > 0.5 * np.linalg.norm(top):
        return float(values.min()), vector
    vector = vector / length
    return float(vector @ (operator @ vector)), vector  # not ARPACK's value, which is wild where only rounding is left


def _solve(operator: LinearOperator, k: int, tolerance: float, start: np.ndarray) -> Pairs:
    """The k largest pairs from one start; any vectors with value 0 where the operator is 0."""
    try:
        return eigsh(operator, k, which="LA", v0=start, tol=tolerance, maxiter=LANCZOS_RESTARTS)
    except ArpackNoConvergence as stopped:
        found = len(stopped.eigenvalues)
        raise UserError(f"eigenvalues: {found} of {k} found after {LANCZOS_RESTARTS} restarts; ask for fewer") from None
    except (ArpackError, np.linalg.LinAlgError) as error:
        if not (operator @ start).any():
            return np.zeros(k, operator.dtype), np.eye(len(start), k, dtype=operator.dtype)
        raise UserError(f"eigenvalues: {error}; try --solver power") from None


def power_iteration(
    hessian: Hessian, k: int = 5, steps: int = 20, tolerance: float = 1e-4, seed: int = 0
) -> Eigenpairs:
    """Power iteration with deflation from a start uniform on [0, 1]; the defaults are FedGloSS's.

    v ← unit(H_j v), λ = vᵀ H_j v, H_j = H − Σ_{i<j} λ_i v_i v_iᵀ, until λ changes by less than `tolerance` of itself.
    Finds the eigenvalues largest in absolute value, in that order, as exactly as so few steps allow.
    """
    values: list[Tensor] = []
    vectors = hessian.w.new_empty(0, hessian.size)
    for j in with_bar(range(min(k, hessian.size)), f"{hessian.data.label} power iteration"):
        value, vector = _dominant(
            hessian, values, vectors, steps, tolerance, uniform_noise(hessian.w, seed, "power", j)
        )
        values, vectors = [*values, value], torch.cat([vectors, vector[None]])
    return Eigenpairs(torch.stack(values), vectors)


def _dominant(
    hessian: Hessian, values: list[Tensor], vectors: Tensor, steps: int, tolerance: float, start: Tensor
) -> tuple[Tensor, Tensor]:
    """The dominant pair of the deflated Hessian."""
    found = torch.stack(values) if values else hessian.w.new_empty(0)
    value, v = hessian.w.new_zeros(()), _unit_direction(start)
    for _ in range(steps):
        product = hessian.apply(v) - (found * (vectors @ v)) @ vectors
        before, value = value, v @ product
        v = _unit_direction(product)
        if abs(value - before) < tolerance * abs(value):
            break
    return value, v


def _unit_direction(v: Tensor) -> Tensor:
    """v / ‖v‖ however short v is, and 0 where it is 0; scaled first, since squares of small numbers vanish."""
    tiny = torch.finfo(v.dtype).tiny
    scaled = v / abs(v).max().clamp(min=tiny)
    return scaled / norm(scaled).clamp(min=tiny)


class TraceEstimate(NamedTuple):
    """An estimate of tr H and its standard error, 0 where it is exact."""

    value: float
    error: float


def hessian_trace(hessian: Hessian, probes: int = 10, seed: int = 0) -> TraceEstimate:
    """tr H ≈ mean of vᵀHv over random signs v (Hutchinson, 1990); exact where P products are no more than `probes`.

    The variance of one probe is 2 Σ_{i≠j} H_ij².
    """
    if hessian.size <= probes:
        return TraceEstimate(float(hessian.matrix().trace()), 0.0)
    values = []
    for number in with_bar(range(probes), f"{hessian.data.label} trace"):
        v = random_signs(hessian.w, seed, "trace", number)
        values.append(v @ hessian.apply(v))
    return _mean(torch.stack(values).double())


def _mean(values: Tensor) -> TraceEstimate:
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return TraceEstimate(float(values.mean()), error)


class SpectralDensity(NamedTuple):
    """Eigenvalues seen by the probes (`nodes`) with their share of the whole spectrum (`weights`, sum 1)."""

    nodes: Tensor
    weights: Tensor
    trace: TraceEstimate

    def density(self, points: int = 401, width: float = 0.01) -> tuple[Tensor, Tensor]:
        """φ(x) = Σ_j weight_j N(x; node_j, s²) on a grid, with s = `width` times the range of the nodes."""
        low, high = self.nodes.min(), self.nodes.max()
        spread = width * (high - low).clamp(min=1e-12)
        grid = torch.linspace(float(low - 5 * spread), float(high + 5 * spread), points, dtype=self.nodes.dtype)
        bells = torch.exp(-0.5 * ((grid[:, None] - self.nodes) / spread) ** 2) / (spread * math.sqrt(2 * math.pi))
        return grid, bells @ self.weights


def spectral_density(hessian: Hessian, probes: int = 5, steps: int = 40, seed: int = 0) -> SpectralDensity:
    """Stochastic Lanczos quadrature (Golub and Meurant; Ghorbani et al., 2019).

    From a random unit v, `steps` of Lanczos give a tridiagonal T = U Θ Uᵀ; nodes Θ_j with weights U_{1j}² integrate
    every polynomial of degree < 2 · steps exactly over the spectrum as v sees it; the mean over v is the estimate.
    """
    found = []
    for number in with_bar(range(probes), f"{hessian.data.label} spectrum"):
        diagonal, beside = lanczos_tridiagonal(hessian, random_signs(hessian.w, seed, "spectrum", number), steps)
        matrix = torch.diag(diagonal) + torch.diag(beside, 1) + torch.diag(beside, -1)
        nodes, vectors = torch.linalg.eigh(matrix)
        found.append((nodes, vectors[0] ** 2 / probes, diagonal[0] * hessian.size))
    nodes, weights, traces = zip(*found, strict=True)
    return SpectralDensity(torch.cat(nodes), torch.cat(weights), _mean(torch.stack(traces)))


def lanczos_tridiagonal(hessian: Hessian, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
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
