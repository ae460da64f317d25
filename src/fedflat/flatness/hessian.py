"""The Hessian of the mean loss as a linear map: its largest eigenvalues, its trace and its spectral density."""

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
from fedflat.errors import UserError, mention
from fedflat.flatness.objective import Objective, full_precision, random_signs, uniform_noise
from fedflat.progress import counting_bar, with_bar

LANCZOS_RESTARTS = 300  # at most, each of about 2k products; networks need fewer than ten


class Hessian:
    """H = ∇²F(w) as a linear map on vectors [P], with F the mean loss over `data`.

    Hv = d/dt ∇F(w + t v) at t = 0, by forward mode over reverse mode, summed over the batches. One product costs about
    as much as four gradients and is exact up to rounding. The matrix itself is never formed, except by `matrix`.

    Args:
        task: the model and its loss.
        w: the parameters at which the derivative is taken, [P].
        data: the samples of F.
    """

    def __init__(self, task: Task, w: Tensor, data: Objective) -> None:
        self.task, self.w, self.data, self.size = task, w, data, len(w)

    @torch.no_grad()
    @full_precision()
    def apply(self, v: Tensor) -> Tensor:
        """Return Hv [P] for a vector v [P]."""
        return self.data.mean(lambda batch: self._batch_product(batch, v))

    def _batch_product(self, batch: Batch, v: Tensor) -> Tensor:
        return jvp(lambda w: self.task.grad(w, batch), (self.w,), (v,))[1]

    def matrix(self) -> Tensor:
        """Return H as a matrix [P, P], symmetric up to rounding. It takes P products, so only for small models."""
        identity = torch.eye(self.size, dtype=self.w.dtype, device=self.w.device)
        return check_finite(vmap(self.apply, chunk_size=64)(identity))

    def operator(self, advance: Callable[[], None] = lambda: None) -> LinearOperator:
        """Return H as a SciPy LinearOperator on numpy vectors.

        Args:
            advance: called before each product, for a progress bar.
        """
        dtype = np.float64 if self.w.dtype == torch.float64 else np.float32

        def product(v: np.ndarray) -> np.ndarray:
            advance()
            return check_finite(self.apply(torch.from_numpy(v.ravel().astype(dtype)).to(self.w))).cpu().numpy()

        return LinearOperator((self.size, self.size), matvec=product, dtype=dtype)


def check_finite(products: Tensor) -> Tensor:
    """Return Hessian products unchanged; raise UserError if one is not finite, because solvers cannot take it."""
    if not torch.isfinite(products).all():
        advice = f"train with a lower {mention('lr')}, or leave this measurement out of {mention('what')}"
        raise UserError(None, "the Hessian is not finite", f"the loss overflows; {advice}")
    return products


class Eigenpairs(NamedTuple):
    """Eigenvalues [k], largest first, and the unit eigenvectors that belong to them [k, P]."""

    values: Tensor
    vectors: Tensor

    def ratio(self, number: int = 5) -> float | None:
        """Return λ1 / λ_number, the sharpness measure λ1/λ5 by default.

        None if there are fewer eigenvalues or λ_number is not positive.
        """
        if len(self.values) < number or self.values[number - 1] <= 0:
            return None
        return float(self.values[0] / self.values[number - 1])


def largest_eigenpairs(hessian: Hessian, k: int = 5, tolerance: float = 1e-4, seed: int = 0) -> Eigenpairs:
    """Return the k largest eigenvalues λ1 ≥ … ≥ λk of H and their eigenvectors.

    They come from SciPy's implicitly restarted Lanczos (ARPACK), and from the dense matrix for models of at most
    max(2k + 1, 20) parameters. Largest means largest, not largest in absolute value. λ1 and λ1/λ5 are the measures of
    FedGloSS, Tables 8 and 9, and FedGF, Table 2; the first two eigenvectors are the axes of FedSOL's Figure 7.

    Args:
        hessian: the Hessian H.
        k: the number of eigenvalues.
        tolerance: the error of each eigenvalue, relative to it.
        seed: seed of the start vectors.

    Raises UserError if H is not finite or Lanczos does not converge.
    """
    if hessian.size <= max(2 * k + 1, 20):
        values, vectors = np.linalg.eigh(hessian.matrix().cpu().numpy())
    else:
        values, vectors = _lanczos(hessian, k, tolerance, seed)
    order = np.argsort(values)[::-1][:k].copy()
    return Eigenpairs(*(torch.from_numpy(part).to(hessian.w) for part in (values[order], vectors[:, order].T.copy())))


def _lanczos(hessian: Hessian, k: int, tolerance: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k largest values [k] and vectors [P, k].

    Lanczos from one start may miss copies of an eigenvalue. Therefore it runs again, orthogonally to the eigenvectors
    found, until that finds nothing larger.
    """
    starts = (uniform_noise(hessian.w, seed, "lanczos", turn).cpu().numpy() for turn in range(k))
    with counting_bar(f"{hessian.data.label} eigenvalues") as advance:
        operator = hessian.operator(advance)
        values, vectors = _arpack(operator, k, tolerance, next(starts))
        rounding = 100 * np.finfo(operator.dtype).eps * abs(values).max()
        for start in starts:
            value, vector = _largest_orthogonal(operator, values, vectors, tolerance, start)
            least = values.argmin()
            if not value > values[least] + max(tolerance * abs(values[least]), rounding):
                break
            values[least], vectors[:, least] = value, vector
    return values, vectors


def _largest_orthogonal(
    operator: LinearOperator, values: np.ndarray, vectors: np.ndarray, tolerance: float, start: np.ndarray
) -> tuple[float, np.ndarray]:
    """Return the largest eigenvalue of H orthogonally to the known eigenvectors V [P, k], and its vector.

    Solves (I − VVᵀ) H (I − VVᵀ) + λ VVᵀ with λ the least of the known values, and returns λ if there is none above it.
    """

    def project(v: np.ndarray) -> np.ndarray:
        return v - vectors @ (vectors.T @ v)

    def product(v: np.ndarray) -> np.ndarray:
        v = v.ravel()
        return project(operator @ project(v)) + values.min() * (v - project(v))

    deflated = LinearOperator(operator.shape, matvec=product, dtype=operator.dtype)
    top = _arpack(deflated, 1, tolerance, project(start))[1][:, 0]
    vector, length = project(top), np.linalg.norm(project(top))
    if not length > 0.5 * np.linalg.norm(top):
        return float(values.min()), vector
    vector = vector / length
    return float(vector @ (operator @ vector)), vector  # ARPACK's own value is wrong where only rounding is left


def _arpack(operator: LinearOperator, k: int, tolerance: float, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the k largest values [k] and vectors [P, k] from one start; values 0 if the operator is 0."""
    try:
        return eigsh(operator, k, which="LA", v0=start, tol=tolerance, maxiter=LANCZOS_RESTARTS)
    except ArpackNoConvergence as stopped:
        converged = f"{len(stopped.eigenvalues)} of {k} found after {LANCZOS_RESTARTS} restarts"
        raise UserError(None, "eigenvalues", f"{converged}; ask for fewer") from None
    except (ArpackError, np.linalg.LinAlgError) as error:
        if not (operator @ start).any():
            return np.zeros(k, operator.dtype), np.eye(len(start), k, dtype=operator.dtype)
        raise UserError(None, "eigenvalues", f"{error}; try {mention('solver', 'power')}") from None


def power_iteration(
    hessian: Hessian, k: int = 5, steps: int = 20, tolerance: float = 1e-4, seed: int = 0
) -> Eigenpairs:
    """Return k eigenvalues by power iteration with deflation, as FedGloSS computes them.

    v ← unit(H_j v), λ = vᵀ H_j v, H_j = H − Σ_{i<j} λ_i v_i v_iᵀ, until λ changes by less than `tolerance` of itself.
    It finds the eigenvalues largest in absolute value, in that order, and may stop before it has converged. The
    defaults are FedGloSS's. Later eigenvectors start from new uniform vectors; in FedGloSS's released code they start
    from the previous eigenvector.

    Args:
        hessian: the Hessian H.
        k: the number of eigenvalues.
        steps: most steps for each eigenvalue.
        tolerance: relative change of λ at which the iteration stops.
        seed: seed of the start vectors, uniform on [0, 1].
    """
    values: list[Tensor] = []
    vectors = hessian.w.new_empty(0, hessian.size)
    for j in with_bar(range(min(k, hessian.size)), f"{hessian.data.label} power iteration"):
        start = uniform_noise(hessian.w, seed, "power", j)
        value, vector = _power_steps(hessian, values, vectors, steps, tolerance, start)
        values, vectors = [*values, value], torch.cat([vectors, vector[None]])
    return Eigenpairs(torch.stack(values), vectors)


def _power_steps(
    hessian: Hessian, values: list[Tensor], vectors: Tensor, steps: int, tolerance: float, start: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the dominant eigenpair of the Hessian deflated by the pairs already found."""
    known = torch.stack(values) if values else hessian.w.new_empty(0)
    value, v = hessian.w.new_zeros(()), _unit_direction(start)
    for _ in range(steps):
        product = hessian.apply(v) - (known * (vectors @ v)) @ vectors
        before, value = value, v @ product
        v = _unit_direction(product)
        if abs(value - before) < tolerance * abs(value):
            break
    return value, v


def _unit_direction(v: Tensor) -> Tensor:
    """Return v / ‖v‖, or 0 if v = 0. v is rescaled first, because squares of very small numbers underflow."""
    tiny = torch.finfo(v.dtype).tiny
    scaled = v / abs(v).max().clamp(min=tiny)
    return scaled / norm(scaled).clamp(min=tiny)


class TraceEstimate(NamedTuple):
    """An estimate of tr H and its standard error; the error is 0 if the trace is exact."""

    value: float
    error: float


def hessian_trace(hessian: Hessian, probes: int = 10, seed: int = 0) -> TraceEstimate:
    """Return tr H ≈ mean of vᵀHv over random sign vectors v (Hutchinson, 1990).

    The variance of one vᵀHv is 2 Σ_{i≠j} H_ij². Models of at most `probes` parameters get the exact trace.

    Args:
        hessian: the Hessian H.
        probes: the number of random vectors, one product each.
        seed: seed of these vectors.
    """
    if hessian.size <= probes:
        return TraceEstimate(float(hessian.matrix().trace()), 0.0)
    values = []
    for number in with_bar(range(probes), f"{hessian.data.label} trace"):
        v = random_signs(hessian.w, seed, "trace", number)
        values.append(v @ hessian.apply(v))
    return _mean_and_error(torch.stack(values).double())


def _mean_and_error(values: Tensor) -> TraceEstimate:
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return TraceEstimate(float(values.mean()), error)


class SpectralDensity(NamedTuple):
    """A discrete approximation of the spectrum of H, from `spectral_density`.

    Args:
        nodes: approximate eigenvalues, [probes · steps].
        weights: the share of the whole spectrum at each node; their sum is 1.
        trace: the estimate of tr H that comes with it.
    """

    nodes: Tensor
    weights: Tensor
    trace: TraceEstimate

    def density(self, points: int = 401, width: float = 0.01) -> tuple[Tensor, Tensor]:
        """Return a grid of eigenvalues x [points] and φ(x) = Σ_j weight_j N(x; node_j, s²) on it.

        Args:
            points: the number of grid points.
            width: s as a fraction of the range of the nodes.
        """
        low, high = self.nodes.min(), self.nodes.max()
        spread = width * (high - low).clamp(min=1e-12)
        grid = torch.linspace(float(low - 5 * spread), float(high + 5 * spread), points, dtype=self.nodes.dtype)
        bells = torch.exp(-0.5 * ((grid[:, None] - self.nodes) / spread) ** 2) / (spread * math.sqrt(2 * math.pi))
        return grid, bells @ self.weights


def spectral_density(hessian: Hessian, probes: int = 5, steps: int = 40, seed: int = 0) -> SpectralDensity:
    """Return the density of the eigenvalues of H by stochastic Lanczos quadrature (Ghorbani et al., 2019).

    From a random unit vector v, `steps` steps of Lanczos give a tridiagonal matrix T = U Θ Uᵀ. The nodes Θ_j with
    weights U_{1j}² integrate every polynomial p of degree < 2 · steps exactly, Σ_j U_{1j}² p(Θ_j) = vᵀ p(H) v (Golub
    and Meurant). The estimate is the mean over random v.

    Args:
        hessian: the Hessian H.
        probes: the number of random sign vectors v.
        steps: Lanczos steps, one product each, from every v.
        seed: seed of the vectors.
    """
    quadratures = []
    for number in with_bar(range(probes), f"{hessian.data.label} spectrum"):
        diagonal, beside = lanczos_tridiagonal(hessian, random_signs(hessian.w, seed, "spectrum", number), steps)
        matrix = torch.diag(diagonal) + torch.diag(beside, 1) + torch.diag(beside, -1)
        nodes, vectors = torch.linalg.eigh(matrix)
        quadratures.append((nodes, vectors[0] ** 2 / probes, diagonal[0] * hessian.size))
    nodes, weights, traces = zip(*quadratures, strict=True)
    return SpectralDensity(torch.cat(nodes), torch.cat(weights), _mean_and_error(torch.stack(traces)))


def lanczos_tridiagonal(hessian: Hessian, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Return the diagonal [n] and off-diagonal [n − 1] of H in the Krylov basis of `start`, in float64 on the CPU.

    Args:
        hessian: the Hessian H.
        start: the first vector of the basis, of any length, [P].
        steps: the size n of the basis; n is smaller if the Krylov space is exhausted earlier.
    """
    basis = (start / norm(start))[None]
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    for _ in range(min(steps, hessian.size)):
        product = check_finite(hessian.apply(basis[-1]))
        diagonal.append(basis[-1] @ product)
        for _ in range(2):  # twice, since one pass in floating point leaves the basis not quite orthogonal
            product = product - (basis @ product) @ basis
        length = norm(product)
        if length <= 100 * torch.finfo(product.dtype).eps * abs(torch.stack(diagonal)).max():
            break
        beside.append(length)
        basis = torch.cat([basis, product[None] / length])
    tensors = [torch.stack(diagonal), torch.stack([*beside, diagonal[0]])[: len(diagonal) - 1]]
    return tensors[0].double().cpu(), tensors[1].double().cpu()
