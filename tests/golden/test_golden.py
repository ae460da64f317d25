"""Golden runs: the authors' code and independent implementations on one tiny problem, through every engine.

Every file in cases/ is replayed; a file of the same form that is added there needs no change here as long as its
method and hyper-parameters go by the names below.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from replay import CASES, gaps, load, replay

import fedflat as ff
from fedflat.core.method import Method
from fedflat.engine import ENGINES
from fedflat.options import check

FILES = sorted(path.stem for path in CASES.glob("*.npz"))
TABLE: dict[str, Method] = {
    "fedsol_fedavg": ff.FedAvg(),
    "fedsol_fedprox_mu1": ff.FedProx(mu=1.0),
    "fedsol_fedntd_tau1": ff.FedNTD(beta=1.0, tau=1.0),
    "fedsol_scaffold_plainK": ff.SCAFFOLD(steps="plain"),
    "fedsol_adaptive_full": ff.FedSOL(rho=2.0, lam="dim0", perturb="all", temperature=3.0),
    "fedgf_chalf": ff.FedGF(rho=0.1, rho_global=0.2, threshold=0.67, window=3),
    "fedgf_fedavgm": ff.ServerMomentum(beta=0.9),
    "fedgloss_sam_paper": ff.FedGloSS(rho=0.2, rho_local=0.1, beta=5.0),
    "np_fedsmoo": ff.FedSMOO(rho=0.1, beta=5.0),
    "np_mofedsam_equalK": ff.MoFedSAM(rho=0.1, beta=0.1, direction="each"),
    "np_fedlesam": ff.FedLESAM(rho=0.1, steps="plain"),
    "np_fedgmt": ff.FedGMT(gamma=1.0, tau=3.0, ema_alpha=0.6, beta=5.0),
    "np_fedcm_equalK": ff.FedCM(cm_alpha=0.1, direction="each"),
    "np_fedacg": ff.FedACG(lam=0.85, beta=0.1),
    "np_fedexp": ff.FedExP(epsilon=1e-3),
    "np_feddecorr": ff.FedDecorr(beta=0.1),
}

Values = Mapping[str, Any]

# A hyper-parameter's name in the files → ours, where they differ.
SERVER = {"eta": "server_lr", "eta_s": "server_lr"}
CONTROLS = {"K": "steps"}
RENAMED: dict[type[Method], dict[str, str]] = {
    ff.FedGF: {"T_D": "threshold", "W": "window", "c": "static_c"},
    ff.FedGloSS: {"rho_server": "rho", "T_s": "warmup", "dual_divisor": "dual"},
    ff.NaiveFedGloSS: {"rho_server": "rho"},
    ff.FedDyn: {"alpha": "dyn_alpha", "rho_local": "rho"},
    ff.FedSpeed: {"alpha": "mix", "lambda": "lam"},
    ff.FedASAM: {"eta_asam": "eta"},
    ff.FedNTD: {"temperature": "tau"},
    ff.MOON: {"temperature": "tau"},
    ff.FedGMT: {"alpha": "ema_alpha"},
    ff.FedCM: {"alpha": "cm_alpha"},
    ff.FedACG: {"lambda": "lam"},
    ff.FedLESAM: {"alpha": "dyn_alpha", "lamb": "dyn_alpha", "K": "steps"},
    **dict.fromkeys([ff.SCAFFOLD, ff.FedGAMMA], CONTROLS),
    **dict.fromkeys([ff.ServerAdam, ff.ServerYogi, ff.ServerAdagrad], SERVER),
}

LESAM_BASES = {"scaffold": ("lesam_s", "lesam-s", "scaffold"), "feddyn": ("lesam_d", "lesam-d", "feddyn")}

# A method's hyper-parameters as a file describes them → our values; the second argument is its method, case and notes.
DESCRIBED: dict[type[Method], Callable[[Values, str], dict[str, Any]]] = {
    ff.FedSOL: lambda given, text: {"lam": given.get("lam", "fixed" if "fixed" in text else "dim0")},
    ff.FedGloSS: lambda given, text: {"dual": "paper" if given.get("dual", "N") == "N" else "released"},
    ff.FedSMOO: lambda given, text: {"regularise": given.get("regularise", given.get("beta") is not None)},
    # The FedGF experiments scale weights only and add η; FedSOL's scale everything and do not.
    ff.FedASAM: lambda given, text: {"eta": given.get("eta", 0.0), "biases": not given.get("eta")},
    **dict.fromkeys(
        [ff.SCAFFOLD, ff.FedGAMMA],
        lambda given, text: {"steps": "plain" if given.get("steps") == "steps" else "momentum"},
    ),
    # All states of the files start from zero unless they say otherwise.
    **dict.fromkeys(
        [ff.ServerAdam, ff.ServerYogi, ff.ServerAdagrad],
        lambda given, text: {"v0": given.get("v0", None if "tau^2" in text else 0.0)},
    ),
    # Files with equal K may say either; the ratio's formula has a second mean.
    **dict.fromkeys(
        [ff.FedCM, ff.MoFedSAM],
        lambda given, text: {"direction": "ratio" if "ratio" in text or "/ mean_S" in text else "each"},
    ),
    ff.FedGMT: lambda given, text: {"dual": given.get("dual", "cohort" if "_cohort" in text else "all")},
    ff.FedACG: lambda given, text: {"beta": given.get("beta", 0.0)},
    ff.FedDecorr: lambda given, text: {"scale": given.get("scale", "paper" if "_paper" in text else "released")},
    ff.FedExP: lambda given, text: {
        "epsilon_per": "client" if "released" in text or "|S|" in f"{given.values()} {text}" else "round"
    },
    ff.FedLESAM: lambda given, text: {
        "base": next((base for base, names in LESAM_BASES.items() if any(n in text.lower() for n in names)), "none"),
        "reference": "round" if "_round" in text or "previous round" in text else "client",
        "steps": "plain",
    },
}


def method_of(meta: Mapping[str, Any]) -> Method:
    """The method object that a file's meta describes."""
    cls = class_of(meta["method"])
    given = {RENAMED.get(cls, {}).get(key, key): value for key, value in meta["hyperparameters"].items()}
    text = " ".join([meta["method"], meta.get("case", ""), *meta.get("notes", [])])
    given |= DESCRIBED.get(cls, lambda given, text: {})(given, text)
    known = {field.name for field in dataclasses.fields(cls)}
    method = cls(**{key: value for key, value in given.items() if key in known and value is not None})
    check(method)
    return method


def class_of(name: str) -> type[Method]:
    """The method whose name is the longest part of `name`: fedsol_adaptive is FedSOL, naive_fedgloss is naive."""
    plain = "".join(c for c in name.lower() if c.isalnum())
    if "naive" in plain:
        return ff.NaiveFedGloSS
    return ff.METHODS[max((known for known in ff.METHODS if known in plain), key=len)]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)], ids=["f64", "f32"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", FILES)
def test_replay(case: str, engine: str, dtype: torch.dtype, tolerance: float) -> None:
    assert replay(case, method_of(_meta(case)), engine, dtype) <= tolerance


@pytest.mark.parametrize("case", TABLE)
def test_every_recorded_state_is_compared(case: str) -> None:
    layers = {f"server.{name}" for name in _meta(case)["param_order"]}
    recorded = {name for name in load(case).files if name.split(".")[0] in ("server", "client", "broadcast", "local")}
    assert set(gaps(case, TABLE[case], "sequential")) == recorded - layers


@pytest.mark.parametrize("case", TABLE)
def test_table(case: str) -> None:
    assert method_of(_meta(case)) == TABLE[case]


def test_a_wrong_constant_is_noticed() -> None:
    right = method_of(_meta("np_fedsmoo"))
    assert replay("np_fedsmoo", dataclasses.replace(right, beta=5.001), "sequential") > 1e-6


def _meta(case: str) -> dict[str, Any]:
    return json.loads(str(load(case)["meta"]))


@pytest.mark.parametrize(
    ("name", "given", "method"),
    [
        ("fedsol_fixed", {"rho": 1.0, "perturb": "all"}, ff.FedSOL(rho=1.0, lam="fixed", perturb="all")),
        ("fedgf", {"rho": 0.1, "T_D": 9.0, "W": 3}, ff.FedGF(rho=0.1, threshold=9.0, window=3)),
        ("feddyn_sam", {"alpha": 0.2, "rho": 0.1}, ff.FedDyn(dyn_alpha=0.2, rho=0.1)),
        ("fedsmoo_noreg", {"rho": 0.1}, ff.FedSMOO(rho=0.1, regularise=False)),
        ("fedspeed", {"rho": 0.1, "alpha": 0.5, "lambda": 5.0}, ff.FedSpeed(rho=0.1, mix=0.5, lam=5.0)),
        ("scaffold", {"K": "momentum-corrected"}, ff.SCAFFOLD(steps="momentum")),
        ("naive_fedgloss", {"rho_server": 0.2, "beta": 5.0, "T_s": 0}, ff.NaiveFedGloSS(rho=0.2, beta=5.0)),
        ("fedgloss", {"rho_server": 0.2, "dual_divisor": "N*S"}, ff.FedGloSS(rho=0.2, dual="released")),
        ("fedasam", {"rho": 0.5, "eta": 0.2}, ff.FedASAM(rho=0.5, eta=0.2, biases=False)),
        ("fedasam", {"rho": 0.5}, ff.FedASAM(rho=0.5, eta=0.0, biases=True)),
        ("mofedsam", {"rho": 0.1, "beta": 0.9}, ff.MoFedSAM(rho=0.1, beta=0.9, direction="each")),
        ("mofedsam_ratio", {"rho": 0.1, "beta": 0.9}, ff.MoFedSAM(rho=0.1, beta=0.9)),
        ("fedcm_ratio", {"alpha": 0.2}, ff.FedCM(cm_alpha=0.2)),
        ("fedcm_ragged", {"alpha": 0.2}, ff.FedCM(cm_alpha=0.2, direction="each")),
        ("fedgmt", {"alpha": 0.6, "dual": "cohort"}, ff.FedGMT(ema_alpha=0.6, dual="cohort")),
        ("fedacg_noprox", {"lambda": 0.85}, ff.FedACG(lam=0.85, beta=0.0)),
        ("fedexp_released", {"epsilon": 1e-3}, ff.FedExP(epsilon_per="client")),
        ("feddecorr", {"beta": 0.1, "scale": "paper"}, ff.FedDecorr(scale="paper")),
        ("fedlesam_s", {"rho": 0.1}, ff.FedLESAM(rho=0.1, base="scaffold", steps="plain")),
        ("fedlesam_d", {"alpha": 0.2}, ff.FedLESAM(base="feddyn", dyn_alpha=0.2, steps="plain")),
        ("fedlesam_round", {"rho": 0.1}, ff.FedLESAM(reference="round", steps="plain")),
    ],
)
def test_meta_to_method(name: str, given: dict[str, Any], method: Method) -> None:
    assert method_of({"method": name, "hyperparameters": given}) == method
