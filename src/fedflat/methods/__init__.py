"""One file per method. METHODS names them for the command line."""

from __future__ import annotations

from fedflat.method import Method
from fedflat.methods.fedavg import FedAvg
from fedflat.methods.fedgf import FedGF
from fedflat.methods.fedgloss import FedGloSS
from fedflat.methods.fedsam import FedSAM
from fedflat.methods.fedsol import FedSOL

METHODS: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedsam": FedSAM,
    "fedsol": FedSOL,
    "fedgf": FedGF,
    "fedgloss": FedGloSS,
}

__all__ = ["METHODS", *(method.__name__ for method in METHODS.values())]
