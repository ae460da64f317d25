"""What `fedflat analyse` measures and how; the command's flags and help come from here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fedflat.options import Count, Index, Range

What = Literal["hessian", "landscape", "lpf", "discrepancy", "barrier", "path", "spectrum", "local", "local-landscape"]


Length = Annotated[float, Range(0, 1e6, open=True)]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Measure how flat the models of finished runs are; results go to analysis/ in each run's folder."""

    what: tuple[What, ...] = ("hessian", "landscape", "lpf", "discrepancy", "barrier", "path", "spectrum", "local")
    """What to measure (docs/analysis.md)."""
    on: Literal["test", "train"] = "test"
    """Samples on which the global model is measured; training samples are not augmented."""
    samples: Count | None = None
    """Measure on this many samples (of each client for local measurements) drawn at random; none is all."""
    seed: Index = 0
    """Seed of directions, noise, probes and drawn samples."""
    run_seeds: tuple[Index, ...] = ()
    """Seeds of the runs to measure; all unless given."""
    clients: tuple[Index, ...] = ()
    """Clients for local measurements; the next round's cohort (discrepancy: all clients) unless given."""
    top: Annotated[int, Range(1, 100)] = 5
    """Number of eigenvalues."""
    solver: Literal["lanczos", "power"] = "lanczos"
    """How eigenvalues are found: to convergence, or by 20 steps of power iteration as FedGloSS does."""
    probes: Annotated[int, Range(2, 10_000)] = 10
    """Random vectors for the trace and the spectrum."""
    grid: Annotated[int, Range(2, 1001)] = 21
    """Points per axis of a landscape, along a path, and per model on the way between two."""
    extent: Length = 1.0
    """How far landscapes and paths reach from the model, in lengths of their directions."""
    directions: Literal["random", "eigen"] = "random"
    """Axes of landscapes: random filter-normalised ones that all runs share, or each model's top two eigenvectors."""
    sigma: Length = 0.01
    """Standard deviation of the noise of the low-pass filter."""
    draws: Annotated[int, Range(4, 10**6)] = 100
    """Draws of that noise, in pairs of opposite ones."""
    rho: Length = 0.1
    """Radius of the flatness discrepancy."""
    ascent_steps: Annotated[int, Range(1, 10_000)] = 20
    """Steps towards the highest loss within that radius; 1 is SAM's approximation."""
    batch_size: Count = 1000
    """Samples per pass; fewer need less memory."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to measure; auto takes a GPU if there is one."""
