"""What the numbers of the tables say."""

from __future__ import annotations

from typing import NamedTuple


class Measure(NamedTuple):
    """What a number says."""

    text: str
    unit: str = ""
    higher: bool = True  # whether more is better


MEASURES = {
    "final": Measure("accuracy in the last round", "%"),
    "last100": Measure("mean accuracy over the last 100 rounds", "%"),
    "half": Measure("mean accuracy over the last 100 rounds of the first half", "%"),
    "rounds": Measure("rounds until FedAvg's final accuracy", higher=False),
    "sent": Measure("hundreds of models sent per client until FedAvg's final accuracy", higher=False),
    "models": Measure("models sent per client and round", higher=False),
    "lambda1": Measure("largest Hessian eigenvalue λ1", higher=False),
    "ratio": Measure("λ1 / λ5", higher=False),
    "lpf": Measure("loss under Gaussian noise", higher=False),
    "discrepancy": Measure("flatness discrepancy Δ_F", higher=False),
    "lambda-local": Measure("λ1 of local models on their own data, mean over clients", higher=False),
    "lambda-global": Measure("λ1 of local models on all data, mean over clients", higher=False),
    "tuned-1": Measure("mean accuracy of clients after 1 epoch of fine-tuning", "%"),
    "tuned-5": Measure("mean accuracy of clients after 5 epochs of fine-tuning", "%"),
    "knn-1": Measure("the same with kNN-Per, 1 epoch", "%"),
    "knn-5": Measure("the same with kNN-Per, 5 epochs", "%"),
    "alone": Measure("mean accuracy of clients that train alone", "%"),
    "plot": Measure("drawn, not a number"),
    "latency": Measure("seconds of a local step", higher=False),
    "drift.global_local": Measure("mean distance of local models from the global one", higher=False),
    "drift.local_local": Measure("mean distance of local models from each other", higher=False),
    "proximal.loss": Measure("proximal loss of local models", higher=False),
    "proximal.cosine": Measure("cosine of the update and the proximal gradient"),
    "forgetting.after": Measure("mean accuracy of local models on all classes, as a fraction"),
    "classes.accuracy": Measure("accuracy on the worst class, as a fraction"),
    "norm.model": Measure("length of the global model", higher=False),
    "fedgf.c": Measure("FedGF's c"),
    "fedgloss.delta": Measure("change of the perturbation between rounds, δ_ε", higher=False),
}
