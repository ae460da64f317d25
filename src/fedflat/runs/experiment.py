"""One frozen dataclass says everything about a run; the command line, YAML files and help come from it."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from torch import nn
from fedflat.core.method import Method
from fedflat.data.dataset import Dataset
from fedflat.errors import UserError, only_in_python
from fedflat.methods.fedavg import FedAvg
from fedflat.options import Count, Index, NonNegative, Positive, Range, check, plain
from fedflat.probes import check_probe_names



@dataclass(frozen=True, kw_only=True)
class Setting:
    """How methods are trained: the same for every method of a comparison."""

    dataset: Any = "digits"
    """Data set: digits, a prepared one (fedflat data list), folder:PATH, npz:PATH or parquet:PATH."""
    model: Any = "auto"
    """Architecture (docs/models.md), or auto for the one that suits the data set."""
    partition: Literal["auto", "iid", "shards", "lda", "lda-released", "dirichlet", "natural"] = "auto"
    """How samples are dealt to clients; auto is natural where the data name their clients, else dirichlet."""
    clients: Count = 20
    """Number of clients (given by the data for natural clients)."""
    cohort: Count = 5
    """Clients that take part in each round."""
    alpha: NonNegative = 0.1
    """Concentration of dirichlet and lda partitions; smaller is more heterogeneous."""
    shards: Count = 2
    """Shards per client of the shards partition."""
    partition_seed: Index = 0
    """Seed of the partition, which all seeds share."""
    validation: Annotated[float, Range(0, 0.9)] = 0.0
    """Share of the training samples to hold out and evaluate on instead of the test set, to choose options by."""
    augment: Literal["dataset", "crop-flip", "none"] = "dataset"
    """Augmentation of training images: the data set's own, crop and flip only, or none."""
    rounds: Count = 60
    """Communication rounds."""
    local_epochs: Annotated[int, Range(1, 10_000)] = 5
    """Epochs over its own data that a client trains in a round."""
    batch_size: Count = 32
    """Samples per local step; the last batch of an epoch may be smaller."""
    lr: Positive = 0.05
    """Clients' learning rate in the first round."""
    lr_decay: Annotated[float, Range(0, 1, open=True)] = 1.0
    """Factor on the learning rate after each round."""
    momentum: Annotated[float, Range(0, 0.9999)] = 0.0
    """Clients' momentum, reset every round."""
    weight_decay: NonNegative = 0.0
    """Clients' weight decay."""
    weights: Literal["examples", "uniform"] = "examples"
    """Averaging weights of replies: number of samples, or equal."""
    seeds: tuple[Index, ...] = (0,)
    """Seeds; all are trained side by side."""
    eval_every: Count = 1
    """Rounds between evaluations on the test set."""
    probes: tuple[str, ...] = ()
    """Measurements during training, off unless named. Free: drift, lambda, norm, fedgf, fedgloss and communication;
    passes over the test set: classes 1, forgetting 1 and one per client; gradients: proximal a local step and one
    per batch of one local epoch, cost 24 once, fedgloss-exact those of one more round. fedflat probes explains them."""
    probe_every: Count = 1
    """Probes measure at the evaluations of rounds that are multiples of this."""
    checkpoint_every: Count = 10
    """Rounds between checkpoints."""
    engine: Literal["auto", "sequential", "batched", "distributed"] = "auto"
    """How clients train: one by one (the reference), as lanes of one step (auto), or so in many processes."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes a GPU if there is one."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """Arithmetic of the models (parameters stay in 32 bits); auto is tf32 on a GPU, fp32 on a CPU."""

    def evaluates(self, round: int) -> bool:
        """Whether models are evaluated after this round, counted from 1."""
        return round % self.eval_every == 0 or round == self.rounds

    def probing(self, round: int) -> bool:
        """Whether probes measure this round, counted from 1."""
        return bool(self.probes) and self.evaluates(round) and round % self.probe_every == 0


@dataclass(frozen=True, kw_only=True)
class Experiment(Setting):
    """A method and how it is trained.

    `dataset` may also be a `Dataset`, `model` any nn.Module without running statistics (every seed starts from its
    weights) or a function that builds one (called once per seed, after seeding torch).
    """

    method: Method = field(default_factory=FedAvg)

    def __post_init__(self) -> None:
        """Keep lists and numpy's numbers as tuples and numbers."""
        for name, value in plain(self).items():
            object.__setattr__(self, name, value)

    def check(self) -> None:
        """Raise UserError for the first option that cannot be used."""
        check(self)
        if not isinstance(self.dataset, str | Dataset):
            raise UserError(f"--dataset {self.dataset}: must be a name or a fedflat.Dataset")
        if not isinstance(self.model, str | nn.Module) and not _builds(self.model):
            allowed = "a name, an nn.Module or a function without arguments that builds one"
            raise UserError(f"--model {self.model}: must be {allowed}")
        if not self.seeds:
            raise UserError("--seeds: give at least one seed, for example --seeds 0 1 2")
        if len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"--seeds {' '.join(map(str, self.seeds))}: every seed may appear once")
        check_probe_names(self.probes)
        first = min(math.lcm(self.eval_every, self.probe_every), self.rounds)
        if self.probes and not self.probing(first):
            raise UserError(f"--probe-every {self.probe_every}: none of the evaluated rounds is a multiple of it")

    def check_named(self, advice: str = "") -> None:
        """Raise UserError where only name and checksum of the data or the model are known: they came from Python."""
        for option, value in (("--dataset", self.dataset), ("--model", self.model)):
            if isinstance(value, str):
                only_in_python(option, value, advice)


def _builds(model: Any) -> bool:
    """Whether `model` can be called without arguments."""
    try:
        inspect.signature(model).bind()
    except (TypeError, ValueError):
        return False
    return True
