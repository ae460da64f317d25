"""The largest eigenvalues of a Hessian and their vectors: λ1, λ1/λ5, the axes of landscapes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from fedflat.core.vectors import norm
from fedflat.errors import UserError
from fedflat.flatness.hessian import Hessian
from fedflat.flatness.noise import uniforms
from fedflat.progress import counting_bar, with_bar

Pairs = tuple[np.ndarray, np.ndarray]  # values [k], vectors [P, k]


RESTARTS = 300  # of Lanczos, each of about 2k products; networks need fewer than ten


class Eigen(NamedTuple):
    """Eigenvalues [k], largest first, and unit eigenvectors [k, P]."""

    values: Tensor
    vectors: Tensor

    def ratio(self, number: int = 5) -> float | None:
        """λ1 / λ_number, None where there are not as many or the latter is not positive."""
        if len(self.values) < number or self.values[number - 1] <= 0:
            return None
        return float(self.values[0] / self.values[number - 1])


def largest(hessian: Hessian, k: int = 5, tolerance: float = 1e-4, seed: int = 0) -> Eigen:
    """The k largest eigenvalues by SciPy's implicitly restarted Lanczos, to `tolerance` relative to each."""
    if hessian.size <= max(2 * k + 1, 20):
        values, vectors = np.linalg.eigh(hessian.matrix().cpu().numpy())
    else:
        values, vectors = _lanczos(hessian, k, tolerance, seed)
    order = np.argsort(values)[::-1][:k].copy()
    return Eigen(*(torch.from_numpy(part).to(hessian.w) for part in (values[order], vectors[:, order].T.copy())))


def _lanczos(hessian: Hessian, k: int, tolerance: float, seed: int) -> Pairs:
    """k pairs that none exceeds: Lanczos may miss copies of an eigenvalue, so it looks again beside what it found."""
    starts = (uniforms(hessian.w, seed, "lanczos", turn).cpu().numpy() for turn in range(k))
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
        return eigsh(operator, k, which="LA", v0=start, tol=tolerance, maxiter=RESTARTS)
    except ArpackNoConvergence as stopped:
        found = len(stopped.eigenvalues)
        raise UserError(f"eigenvalues: {found} of {k} found after {RESTARTS} restarts; ask for fewer") from None
    except (ArpackError, np.linalg.LinAlgError) as error:
        if not (operator @ start).any():
            return np.zeros(k, operator.dtype), np.eye(len(start), k, dtype=operator.dtype)
        raise UserError(f"eigenvalues: {error}; try --solver power") from None


def power(hessian: Hessian, k: int = 5, steps: int = 20, tolerance: float = 1e-4, seed: int = 0) -> Eigen:
    """Power iteration with deflation from a start uniform on [0, 1]; the defaults are FedGloSS's.

    v ← unit(H_j v), λ = vᵀ H_j v, H_j = H − Σ_{i<j} λ_i v_i v_iᵀ, until λ changes by less than `tolerance` of itself.
    Finds the eigenvalues largest in absolute value, in that order, as exactly as so few steps allow.
    """
    values: list[Tensor] = []
    vectors = hessian.w.new_empty(0, hessian.size)
    for j in with_bar(range(min(k, hessian.size)), f"{hessian.data.label} power iteration"):
        value, vector = _dominant(hessian, values, vectors, steps, tolerance, uniforms(hessian.w, seed, "power", j))
        values, vectors = [*values, value], torch.cat([vectors, vector[None]])
    return Eigen(torch.stack(values), vectors)


def _dominant(
    hessian: Hessian, values: list[Tensor], vectors: Tensor, steps: int, tolerance: float, start: Tensor
) -> tuple[Tensor, Tensor]:
    """The dominant pair of the deflated Hessian."""
    found = torch.stack(values) if values else hessian.w.new_empty(0)
    value, v = hessian.w.new_zeros(()), _direction(start)
    for _ in range(steps):
        product = hessian.apply(v) - (found * (vectors @ v)) @ vectors
        before, value = value, v @ product
        v = _direction(product)
        if abs(value - before) < tolerance * abs(value):
            break
    return value, v


def _direction(v: Tensor) -> Tensor:
    """v / ‖v‖ however short v is, and 0 where it is 0; scaled first, since squares of small numbers vanish."""
    tiny = torch.finfo(v.dtype).tiny
    scaled = v / abs(v).max().clamp(min=tiny)
    return scaled / norm(scaled).clamp(min=tiny)
