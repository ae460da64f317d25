"""How flat a loss surface is around a model: functions of (task, w, data), and `analyse` for finished runs."""

from __future__ import annotations

from fedflat.flatness.analyse import Analysis, analyse
from fedflat.flatness.finished_run import AnalysisSettings
from fedflat.flatness.hessian import (
    Eigenpairs,
    Hessian,
    SpectralDensity,
    TraceEstimate,
    hessian_trace,
    largest_eigenpairs,
    power_iteration,
    spectral_density,
)
from fedflat.flatness.landscape import (
    LossLine,
    LossSurface,
    loss_along,
    loss_barrier,
    loss_between,
    loss_surface,
    random_directions,
)
from fedflat.flatness.objective import Objective, join_objectives, make_objective
from fedflat.flatness.sharpness import (
    FlatnessDiscrepancy,
    LocalGlobalCurvature,
    LowPassLoss,
    WorstCaseSharpness,
    flatness_discrepancy,
    local_and_global_curvature,
    low_pass_loss,
    worst_case_sharpness,
)

__all__ = [
    "Analysis",
    "AnalysisSettings",
    "Eigenpairs",
    "FlatnessDiscrepancy",
    "Hessian",
    "LocalGlobalCurvature",
    "LossLine",
    "LossSurface",
    "LowPassLoss",
    "Objective",
    "SpectralDensity",
    "TraceEstimate",
    "WorstCaseSharpness",
    "analyse",
    "flatness_discrepancy",
    "hessian_trace",
    "join_objectives",
    "largest_eigenpairs",
    "local_and_global_curvature",
    "loss_along",
    "loss_barrier",
    "loss_between",
    "loss_surface",
    "low_pass_loss",
    "make_objective",
    "power_iteration",
    "random_directions",
    "spectral_density",
    "worst_case_sharpness",
]
