"""Measurements during training, by the names that `--probes` takes. They watch and never change what is trained."""

from __future__ import annotations

from collections.abc import Sequence

from fedflat.errors import UserError, near_miss
from fedflat.probes.classes import classes
from fedflat.probes.communication import communication
from fedflat.probes.cost import cost
from fedflat.probes.drift import drift
from fedflat.probes.fedgf import fedgf
from fedflat.probes.fedgloss import fedgloss, fedgloss_exact
from fedflat.probes.forgetting import forgetting
from fedflat.probes.norm import model_norm
from fedflat.probes.proximal import proximal
from fedflat.probes.sight import Probe
from fedflat.probes.strength import strength

PROBES: dict[str, Probe] = {
    "drift": drift,
    "forgetting": forgetting,
    "classes": classes,
    "proximal": proximal,
    "lambda": strength,
    "norm": model_norm,
    "fedgf": fedgf,
    "fedgloss": fedgloss,
    "fedgloss-exact": fedgloss_exact,
    "communication": communication,
    "cost": cost,
}


def check_names(names: Sequence[str]) -> None:
    """Refuse names that no probe has."""
    for name in names:
        if name not in PROBES:
            raise UserError(f"--probes {name}: unknown{near_miss(name, PROBES)}; probes are {', '.join(PROBES)}")
