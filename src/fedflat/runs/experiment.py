"""Experiment, the dataclass that describes a run. The command line, its help and YAML files follow from its fields."""

from __future__ import annotations

import difflib
import inspect
import math
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from torch import Tensor, nn

from fedflat.core.method import Method
from fedflat.core.norm_statistics import NormStatistics
from fedflat.core.optimiser import InRoundSchedule, Optimiser, OptimiserName
from fedflat.core.state import send_to_device
from fedflat.core.tasks import find_task
from fedflat.data.dataset import Dataset
from fedflat.data.text import SEQUENCE_LENGTH
from fedflat.engine.aggregation import Aggregation, parse_aggregation
from fedflat.engine.attacks import REPLY_ATTACKS
from fedflat.errors import NOT_SHOWN, UserError, mention, near_miss
from fedflat.methods import METHODS
from fedflat.methods.compression import check_errors_apart
from fedflat.methods.differential_privacy import check_clipped_last, find_private
from fedflat.methods.fedavg import FedAvg
from fedflat.options import Count, DeviceName, Fraction, Index, NonNegative, Positive, Range, check, normalised_fields
from fedflat.probes import check_probe_names

DEFAULT_EPOCHS = 5  # local epochs, unless local_epochs or local_steps is given
Share = Annotated[float, Range(0, 1, open=True)]  # of all clients
COLUMN_OPTIONS = ("target_column", "feature_columns", "client_column")
TABLE_OPTIONS = (*COLUMN_OPTIONS, "test_split", "target_scale")
DATA_OPTIONS = ("dataset", "sequence_length", *TABLE_OPTIONS, "task")  # what samples and targets depend on


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a method is trained; a comparison trains every method with the same setting."""

    dataset: Any = "digits"
    """Data set: digits, a prepared one (fedflat data list), folder:PATH, npz:FILE, parquet:PATH, table:FILE (CSV or
    parquet), text:PATH (a file for each client), sklearn-text, hf:FOLDER or hf:NAME (Hugging Face) or
    FILE.py:FUNCTION."""
    sequence_length: Annotated[int, Range(1, 1_000_000)] = SEQUENCE_LENGTH
    """Tokens in a sample of text:PATH, sklearn-text and hf:NAME."""
    target_column: tuple[str, ...] = ()
    """Column of table:FILE or hf:NAME to predict, or several."""
    feature_columns: tuple[str, ...] = ()
    """Columns of table:FILE to predict it from; all that are not used otherwise unless given. Of hf:NAME, the column
    of texts."""
    client_column: str = ""
    """Column of table:FILE or hf:NAME that names each row's client; a partition assigns the rows unless given."""
    test_split: Annotated[float, Range(0, 1, open=True)] | str = 0.2
    """Test rows of table:FILE: their share (of each client), drawn by a hash, or a column that says test, 1 or true."""
    target_scale: Literal["standard", "none"] = "standard"
    """Targets of a regression on table:FILE: standardised by the training rows, or as they are."""
    model: Any = "auto"
    """Architecture (docs/models.md), auto for the one that suits the data set, FILE.py:CLASS or hf:FOLDER."""
    task: Any = "auto"
    """What is learned: classification, multilabel, regression, next-token or FILE.py:CLASS; auto goes by the data."""
    init: str | None = None
    """Weights to start from, a .safetensors file with the model's parameters by name; every seed starts there."""
    partition: Literal["auto", "iid", "shards", "lda", "lda-released", "lda-equal", "dirichlet", "natural"] = "auto"
    """How samples are split among clients; auto is natural if the data set names their clients, else dirichlet."""
    clients: Count = 20
    """Number of clients (a natural partition takes it from the data)."""
    holdout_clients: Annotated[float, Range(0, 0.9)] = 0.0
    """Share of the clients that never train, drawn by partition-seed; the final model is evaluated on them."""
    cohort: Count | Share = 5
    """Clients that take part in each round: their number, or their share of all clients (0.1)."""
    sampling: Literal["uniform", "weighted", "poisson", "cyclic", "round-robin", "released"] = "uniform"
    """How the cohort is drawn: uniformly, by the clients' sizes, each client on its own (poisson), in turns of fixed
    groups (cyclic) or of new groups in every pass (round-robin), or as FedSOL's released code does."""
    availability: str = ""
    """CSV file with columns client, from, to: the rounds in which clients can take part; all unless given."""
    dropout_rate: Annotated[float, Range(0, 0.99)] = 0.0
    """Probability that the reply of a client in the cohort never arrives."""
    stragglers: Fraction = 0.0
    """Probability that a client in the cohort is slow."""
    straggler_work: Fraction = 0.5
    """Share of its local steps that a slow client takes; 0 if it misses the deadline and does not reply."""
    alpha: NonNegative = 0.1
    """Concentration α of a Dirichlet partition; smaller is more heterogeneous. dirichlet: each client draws its mix of
    classes from Dirichlet(α / classes). lda: each class draws its shares over the clients from Dirichlet(α)."""
    shards: Count = 2
    """Shards per client in the shards partition."""
    long_tail: Annotated[float, Range(0, 1, open=True)] = 1.0
    """Share of its training samples that the last class keeps; classes before it keep more, the first all. 1: all."""
    partition_seed: Index = 0
    """Seed of the partition, which all seeds share."""
    validation: Annotated[float, Range(0, 0.9)] = 0.0
    """Share of the training samples to hold out and evaluate on instead of the test set, for tuning options."""
    augment: Literal["dataset", "crop-flip", "crop-flip-batch", "none"] = "dataset"
    """Augmentation of training images: the data set's own, crop and flip only (all of a batch alike), or none."""
    rounds: Count = 60
    """Communication rounds."""
    local_epochs: Annotated[int, Range(1, 10_000)] | None = None
    """Passes of a client over its own data in a round; 5 unless local steps are given."""
    local_steps: Count | None = None
    """Local steps of a client in a round, instead of epochs."""
    client_settings: str = ""
    """CSV file with the column client and any of lr, local_epochs, local_steps: clients that differ from the others."""
    batch_size: Count = 32
    """Samples per local step; the last batch of an epoch may be smaller."""
    lr: Positive = 0.05
    """Clients' learning rate in the first round (with a warm-up, after it)."""
    lr_schedule: Literal["exponential", "constant", "step", "cosine"] = "exponential"
    """Learning rate over rounds: times lr-decay after each, constant, times lr-decay every lr-step, cosine to 0."""
    lr_decay: Annotated[float, Range(0, 1, open=True)] = 1.0
    """Factor by which the learning rate is multiplied after each round, or after lr-step rounds (step)."""
    lr_step: Count = 10
    """Rounds between two reductions of the learning rate with lr-schedule step."""
    lr_warmup: Index = 0
    """Rounds in which the learning rate first rises linearly to lr; the schedule begins after them."""
    lr_in_round: InRoundSchedule = "constant"
    """Learning rate over the steps of a client in one round: the same, or falling towards 0."""
    optimiser: OptimiserName = "sgd"
    """Clients' optimiser; sgd and nesterov use momentum, adamw has moments of its own (0.9, 0.999)."""
    momentum: Annotated[float, Range(0, 0.9999)] = 0.0
    """Clients' momentum."""
    weight_decay: NonNegative = 0.0
    """Clients' weight decay."""
    optimiser_state: Literal["reset", "keep"] = "reset"
    """A client's momentum or moments: start from 0 in every round, or go on where the client took part last."""
    clip_grad: Positive | None = None
    """Largest norm of a client's step before the learning rate; longer ones are shortened to it."""
    norm_stats: Literal["batch", "server", "local"] = "batch"
    """Statistics by which batch normalisation evaluates: those of the test batch itself, running averages of which the
    server takes the mean, or running averages that each client keeps for itself (docs/models.md)."""
    weights: Literal["examples", "uniform"] = "examples"
    """Weights of the clients' average: their number of samples, or equal."""
    clip_replies: Positive | None | str = None  # noqa: RUF036 (every word is text, so text is tried last)
    """Largest norm of a client's reply; the server scales longer ones down. A number, or 2x for twice the median of the
    round's replies."""
    aggregate: str = "mean"
    """How replies are averaged: mean, median, trimmed:0.2 (share cut at each end) or krum:1 (number of attackers)."""
    attackers: Annotated[float, Range(0, 0.9)] = 0.0
    """Share of the clients that are simulated attackers."""
    attack: Literal["sign-flip", "scale", "noise", "labels"] = "sign-flip"
    """What attackers do: send −s times their reply, s times, or noise of s times its norm; or train on wrong labels."""
    attack_strength: Positive = 10.0
    """Factor s of the attacks on replies."""
    seeds: tuple[Index, ...] = (0,)
    """Random seeds; every seed trains its own model, all side by side."""
    eval_every: Count = 1
    """Rounds between evaluations on the test set."""
    probes: tuple[str, ...] = ()
    """Measurements during training; none unless named. fedflat probes explains them.
    Free: drift, alignment, lambda, norm, fedgf, fedgloss and communication.
    Passes over the test set: classes 1, forgetting and class-forgetting 1 and one per client; clients 1 over all data.
    Gradients: proximal a local step and one per batch of a local epoch, sharpness about 32 on 256 test samples, cost 24
    once, fedgloss-exact another round."""
    probe_every: Count = 1
    """Probes measure in rounds that are evaluated and a multiple of this."""
    checkpoint_every: Count = 10
    """Rounds between checkpoints."""
    engine: Literal["auto", "sequential", "batched", "distributed"] = "auto"
    """How clients train: one by one (sequential), many in one step (batched) or so in many processes; auto chooses."""
    device: DeviceName = "auto"
    """Where to train: cpu, cuda, cuda:1 for the second GPU, mps, or auto, which is cuda if there is one."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """Arithmetic of the models (parameters stay in 32 bits); auto is tf32 on a GPU, fp32 on a CPU."""
    threads: Annotated[int, Range(1, 1024)] | None = None
    """CPU threads; unless given, OMP_NUM_THREADS, or on a CPU as many as the model and the cores are worth."""

    def lr_at(self, round: float) -> float:
        """Return the clients' learning rate in a round, counted from 0."""
        if round < self.lr_warmup:
            return self.lr * (round + 1) / (self.lr_warmup + 1)
        since = round - self.lr_warmup
        if self.lr_schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * since / max(1, self.rounds - self.lr_warmup))) / 2
        times = since // self.lr_step if self.lr_schedule == "step" else since
        return self.lr * self.lr_decay**times

    def optimiser_at(self, round: int, like: Tensor, with_weight_decay: bool = False) -> Optimiser:
        """Return the clients' optimiser in a round.

        Args:
            round: the round, counted from 0.
            like: a tensor with the device and the dtype of the models.
            with_weight_decay: whether to add weight decay also if it is 0, as experiments trained beside may need.
        """
        clip = math.inf if self.clip_grad is None else self.clip_grad
        values = [self.lr_at(round), self.momentum, self.weight_decay, clip]
        numbers = send_to_device(values, like.device, like.dtype)
        static = Optimiser(
            numbers[0],
            self.momentum,
            self.weight_decay or float(with_weight_decay),
            clip,
            self.optimiser,
            self.lr_in_round,
            self.optimiser_state == "keep",
        )
        return static.with_numbers(numbers)

    @property
    def epochs(self) -> int:
        """The local epochs: those given, or else the default."""
        return DEFAULT_EPOCHS if self.local_epochs is None else self.local_epochs

    def evaluates(self, round: int) -> bool:
        """Return whether models are evaluated after this round, counted from 1."""
        return round % self.eval_every == 0 or round == self.rounds

    def probing(self, round: int) -> bool:
        """Return whether probes measure this round, counted from 1."""
        return bool(self.probes) and self.evaluates(round) and round % self.probe_every == 0


@dataclass(frozen=True, kw_only=True)
class Experiment(Setting):
    """A method and how it is trained: everything that `run` needs to know.

    All options are keyword arguments with defaults. Those of `Setting` are documented there and by
    `fedflat run METHOD --help`. The values are checked when the experiment is run.

    Attributes:
        method: the algorithm with its hyper-parameters, such as `FedSOL(rho=2.0)`; FedAvg unless given.
        dataset: a name, as on the command line, or a `Dataset`.
        model: a name, as on the command line; an nn.Module, whose weights are the start of every seed; or a
            function without arguments that builds one, called once per seed after seeding torch.
        task: a name, as on the command line, or a subclass of `Task`.
    """

    method: Method = field(default_factory=FedAvg)

    def __new__(cls, *_: Any, **options: Any) -> Experiment:
        """Refuse an unknown option with the name of the one that was probably meant."""
        known = [f.name for f in fields(cls)]
        for name in options:
            if name not in known:
                raise UserError(name, options[name], f"unknown option{near_miss(name, known)}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Refuse a method's name or class in place of a method, and convert lists to tuples and numpy's numbers."""
        _check_method(self.method)
        for name, value in normalised_fields(self).items():
            object.__setattr__(self, name, value)

    def check(self) -> None:
        """Raise UserError for the first option that cannot be used."""
        check(self)
        if self.task != "auto":
            find_task(self.task)
        if not isinstance(self.dataset, str | Dataset):
            advice = "Dataset.from_arrays or Dataset.from_torch(train, test) makes one"
            raise UserError("dataset", self.dataset, f"must be a name or a fedflat.Dataset; {advice}")
        if not isinstance(self.model, str | nn.Module) and not _builds(self.model):
            allowed = "a name, an nn.Module or a function without arguments that builds one"
            raise UserError("model", self.model, f"must be {allowed}")
        if not self.seeds:
            raise UserError("seeds", NOT_SHOWN, f"give at least one seed, for example {mention('seeds', [0, 1, 2])}")
        if len(set(self.seeds)) < len(self.seeds):
            raise UserError("seeds", self.seeds, "every seed may appear once")
        check_clipped_last(self.method)
        check_errors_apart(self.method)
        self._check_optimiser()
        self._check_participation()
        self._check_robustness()
        check_probe_names(self.probes)
        first = min(math.lcm(self.eval_every, self.probe_every), self.rounds)
        if self.probes and not self.probing(first):
            raise UserError("probe_every", self.probe_every, "none of the evaluated rounds is a multiple of it")

    def _check_optimiser(self) -> None:
        """Raise UserError for options of the optimiser or of the learning rate that do not fit together."""
        if self.lr_decay != 1 and self.lr_schedule in ("constant", "cosine"):
            uses = f"{mention('lr_schedule', 'exponential')} or step"
            raise UserError("lr_decay", self.lr_decay, f"is for {uses}, not for {self.lr_schedule}")
        if self.optimiser == "nesterov" and not self.momentum:
            raise UserError("optimiser", self.optimiser, f"needs momentum, for example {mention('momentum', 0.9)}")
        if self.optimiser == "adamw" and self.momentum:
            problem = f"is for {mention('optimiser', 'sgd')} or nesterov; adamw has moments of its own"
            raise UserError("momentum", self.momentum, problem)
        if self.optimiser_state == "keep" and self.optimiser == "sgd" and not self.momentum:
            problem = f"sgd without {mention('momentum')} has no state that could be kept"
            raise UserError("optimiser_state", self.optimiser_state, problem)

    def _check_participation(self) -> None:
        """Raise UserError for options of who takes part, and for how long, that do not fit together."""
        if self.local_epochs and self.local_steps:
            both = f"cannot be used together with {mention('local_epochs', self.local_epochs)}"
            problem = f"{both}; give one of them, or {mention('local_epochs', None)} if a configuration has the other"
            raise UserError("local_steps", self.local_steps, problem)
        if self.stragglers == 1 and not self.straggler_work:
            raise UserError("stragglers", self.stragglers, f"nobody replies with {mention('straggler_work', 0)}")

    def aggregation(self) -> Aggregation:
        """Return how the server averages replies; raise UserError if the options describe none."""
        return parse_aggregation(self.clip_replies, self.aggregate, self.bookkeeping)

    @property
    def bookkeeping(self) -> tuple[str, ...]:
        """The tensors of a reply that are no part of its norm: the method's, and running averages."""
        return (*self.method.bookkeeping, *(NormStatistics._fields if self.norm_stats == "server" else ()))

    def _check_robustness(self) -> None:
        """Raise UserError if the options about averages and attackers do not fit together or to the method."""
        self.aggregation()
        if find_private(self.method) is None:
            return
        if self.norm_stats == "server":
            problem = "running averages depend on samples, and dpfedavg neither clips them nor adds noise to them"
            raise UserError("norm_stats", self.norm_stats, f"{problem}; use {mention('norm_stats', 'local')} or batch")
        if self.sampling == "poisson" and self.method.bookkeeping:
            problem = f"the mean of {self.method.bookkeeping[0]}, which gets no noise, would tell who took part"
            raise UserError("sampling", self.sampling, problem)
        private = "dpfedavg, whose noise is for the plain mean of replies that it clips itself"
        if self.aggregate != "mean":
            raise UserError("aggregate", self.aggregate, f"must be mean with {private}")
        if self.clip_replies is not None:
            raise UserError("clip_replies", self.clip_replies, f"cannot be used with {private}")
        if self.attackers and self.attack in REPLY_ATTACKS:
            problem = f"dpfedavg's server refuses replies beyond its bound; simulate {mention('attack', 'labels')}"
            raise UserError("attack", self.attack, problem)

    def check_named(self, advice: str = "") -> None:
        """Raise UserError if `dataset` or `model` is own:NAME-CHECKSUM, which stands for a Python object.

        config.yaml describes a Python object only so; the object itself has to be given again.

        Args:
            advice: what the user can do, for the end of the message.
        """
        for option in ("dataset", "model"):
            value = getattr(self, option)
            if isinstance(value, str) and value.startswith("own:"):
                problem = "was given in Python and is not in the run's folder"
                raise UserError(option, value, f"{problem}; {advice}" if advice else problem)


def _check_method(method: Any) -> None:
    """Raise UserError if `method` is not a method object, with the class that was probably meant."""
    if isinstance(method, Method):
        return
    given = METHODS.name_of(method) if isinstance(method, type) else str(method).lower()
    classes = {name: cls.__name__ for name, cls in METHODS.items() if cls.__module__.startswith("fedflat.")}
    close = difflib.get_close_matches(given, classes, n=1)
    if close and given not in classes:
        raise UserError("method", method, f"must be a method object (did you mean fedflat.{classes[close[0]]}()?)")
    raise UserError("method", method, f"must be a method object, such as fedflat.{classes.get(given, 'FedSOL')}()")


def _builds(model: Any) -> bool:
    """Return whether `model` can be called without arguments."""
    try:
        inspect.signature(model).bind()
    except (TypeError, ValueError):
        return False
    return True
