"""How flat a loss surface is around a model: functions of (task, w, data), and `analyse` for finished runs."""

from __future__ import annotations

from fedflat.flatness.analyse import Analysed, analyse
from fedflat.flatness.data import Data, cut, join
from fedflat.flatness.discrepancy import Discrepancy, Sharpness, discrepancy, sharpness
from fedflat.flatness.eigen import Eigen, largest, power
from fedflat.flatness.hessian import Hessian
from fedflat.flatness.landscape import Surface, random_directions, surface
from fedflat.flatness.local import LocalGlobal, local_and_global
from fedflat.flatness.lpf import LowPass, low_pass
from fedflat.flatness.path import Line, along, barrier, between
from fedflat.flatness.settings import Settings
from fedflat.flatness.spectrum import Spectrum, Trace, spectrum, trace

__all__ = [
    "Analysed",
    "Data",
    "Discrepancy",
    "Eigen",
    "Hessian",
    "Line",
    "LocalGlobal",
    "LowPass",
    "Settings",
    "Sharpness",
    "Spectrum",
    "Surface",
    "Trace",
    "along",
    "analyse",
    "barrier",
    "between",
    "cut",
    "discrepancy",
    "join",
    "largest",
    "local_and_global",
    "low_pass",
    "power",
    "random_directions",
    "sharpness",
    "spectrum",
    "surface",
    "trace",
]
