"""One file per method, and the wrappers under the names they have around FedAvg. METHODS is the command line's list."""

from __future__ import annotations

from fedflat.core.method import Method
from fedflat.methods.adaptive_server import ServerAdagrad, ServerAdam, ServerYogi
from fedflat.methods.differential_privacy import Private
from fedflat.methods.fedasam import FedASAM
from fedflat.methods.fedavg import FedAvg
from fedflat.methods.fedbabu import FedBABU
from fedflat.methods.feddyn import FedDyn
from fedflat.methods.fedgamma import FedGAMMA
from fedflat.methods.fedgf import FedGF
from fedflat.methods.fedgloss import FedGloSS
from fedflat.methods.fednova import FedNova
from fedflat.methods.fedntd import FedNTD
from fedflat.methods.fedprox import FedProx
from fedflat.methods.fedsam import FedSAM
from fedflat.methods.fedsmoo import FedSMOO
from fedflat.methods.fedsol import FedSOL
from fedflat.methods.fedspeed import FedSpeed
from fedflat.methods.mofedsam import MoFedSAM
from fedflat.methods.moon import MOON
from fedflat.methods.naivefedgloss import NaiveFedGloSS
from fedflat.methods.perfedavg import PerFedAvg
from fedflat.methods.scaffold import SCAFFOLD
from fedflat.methods.wrappers import Averaged, ServerMomentum

METHODS: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedavgm": ServerMomentum,
    "fedadam": ServerAdam,
    "fedyogi": ServerYogi,
    "fedadagrad": ServerAdagrad,
    "fedswa": Averaged,
    "dpfedavg": Private,
    "fedprox": FedProx,
    "fednova": FedNova,
    "scaffold": SCAFFOLD,
    "fedntd": FedNTD,
    "feddyn": FedDyn,
    "moon": MOON,
    "fedsam": FedSAM,
    "fedasam": FedASAM,
    "mofedsam": MoFedSAM,
    "fedgamma": FedGAMMA,
    "fedsmoo": FedSMOO,
    "fedspeed": FedSpeed,
    "fedsol": FedSOL,
    "fedgf": FedGF,
    "fedgloss": FedGloSS,
    "naivefedgloss": NaiveFedGloSS,
    "perfedavg": PerFedAvg,
    "fedbabu": FedBABU,
}


__all__ = ["METHODS", *(method.__name__ for method in METHODS.values())]
