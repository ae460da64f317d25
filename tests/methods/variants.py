"""Every method with its defaults, and with options and wrappers that change what it computes."""

from __future__ import annotations

from tiny_problem import AVERAGES

import fedflat as ff
from fedflat.core.method import Method
from fedflat.methods.running_averages import LocalStatistics, ServerStatistics

DEFAULTS: dict[str, Method] = {name: cls() for name, cls in ff.METHODS.items()}

VARIANTS: dict[str, Method] = {
    "fednova:released": ff.FedNova(gradient="released"),
    "scaffold:plain": ff.SCAFFOLD(steps="plain"),
    "feddyn:sam": ff.FedDyn(dyn_alpha=0.1, rho=0.1),
    "fedasam:all": ff.FedASAM(biases=True, eta=0.0),
    "fedsmoo:unregularised": ff.FedSMOO(regularise=False),
    "fedsmoo:warm": ff.FedSMOO(warmup=3),
    "fedgf:diverged": ff.FedGF(threshold=0.0, window=2),
    "fedgf:static": ff.FedGF(static_c=0.5),
    "fedgloss:warm": ff.FedGloSS(warmup=3, dual="released"),
    "fedsol:all": ff.FedSOL(perturb="all", lam="dim0"),
    "mofedsam:each": ff.MoFedSAM(direction="each"),
    "fedlesam:scaffold": ff.FedLESAM(base="scaffold"),
    "fedlesam:feddyn": ff.FedLESAM(base="feddyn", reference="round"),
    "fedgmt:cohort": ff.FedGMT(dual="cohort", beta=5.0),
    "fedavgm+fedgf": ff.ServerMomentum(inner=ff.FedGF(threshold=0.0)),
    "fedadam+naivefedgloss": ff.ServerAdam(inner=ff.NaiveFedGloSS()),
    "fedexp+naivefedgloss": ff.FedExP(inner=ff.NaiveFedGloSS(), epsilon=1e-6),
    "compress:topk+scaffold": ff.Compressed(inner=ff.SCAFFOLD(), compressor="topk", keep=0.3),
    "compress:randomk": ff.Compressed(compressor="randomk", keep=0.3, error_feedback=False),
    "dpfedavg+compress:1+fednova": ff.Private(inner=ff.Compressed(inner=ff.FedNova(), bits=1)),
    "fedswa+fedavgm+scaffold": ff.Averaged(inner=ff.ServerMomentum(inner=ff.SCAFFOLD()), start_round=2, every=2),
}

ALL: dict[str, Method] = DEFAULTS | VARIANTS

AVERAGED: dict[str, Method] = {  # the gradient at w, elsewhere only, of the logits, a client's state, two exchanges
    "server+fedsam": ServerStatistics(ff.FedSAM(), AVERAGES),
    "server+fedlesam": ServerStatistics(ff.FedLESAM(), AVERAGES),
    "server+fedavgm+scaffold": ServerStatistics(ff.ServerMomentum(inner=ff.SCAFFOLD()), AVERAGES),
    "server+naivefedgloss": ServerStatistics(ff.NaiveFedGloSS(), AVERAGES),
    "local+fedsol": LocalStatistics(ff.FedSOL(), AVERAGES),
    "local+compress+scaffold": LocalStatistics(ff.Compressed(inner=ff.SCAFFOLD()), AVERAGES),
}  # methods with running averages of batch normalisation around them
