"""Build what an experiment needs: data, partition, model and engine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedflat.core.local_training import reply_uses_steps
from fedflat.core.method import Method
from fedflat.core.model_check import check_model, check_model_output
from fedflat.core.task import Task
from fedflat.core.tasks import find_task
from fedflat.data.arrays import input_tensors
from fedflat.data.batches import ClientBatches, RoundCohort
from fedflat.data.client_files import read_availability, read_client_settings
from fedflat.data.dataset import Augment, Dataset, default_partition, hold_out
from fedflat.data.load import load_dataset
from fedflat.data.partition import long_tail_rows, partition_rows
from fedflat.data.plan_ahead import PlannedAhead
from fedflat.data.tables import TableColumns
from fedflat.data.task_targets import fit_targets
from fedflat.engine.aggregation import check_cohort_suffices
from fedflat.engine.attacks import REPLY_ATTACKS, ReplyAttack, choose_attackers, flip_labels
from fedflat.engine.batched import Batched
from fedflat.engine.memory import choose_state_device, estimate_memory, free_gpu_memory, keep_freed_memory
from fedflat.engine.participation import LocalWork, Participation, cohort_size
from fedflat.engine.processes import ProcessGroup
from fedflat.engine.rounds import Engine, Trial
from fedflat.engine.sequential import Sequential
from fedflat.errors import NOT_SHOWN, UserError, mention
from fedflat.methods.differential_privacy import set_noise_key
from fedflat.methods.running_averages import add_statistics
from fedflat.models import TEXT_MODELS, build_model
from fedflat.models.adapt import adapt_layers, load_weights
from fedflat.models.hugging_face import adapt_hugging_face, is_hugging_face, load_hugging_face_model
from fedflat.own_code import is_own_code
from fedflat.runs.client_evaluation import EvaluatedClients, choose_held_out, evaluated_clients
from fedflat.runs.experiment import Experiment, Setting

LARGE_MODEL = 5_000_000  # parameters above which a CPU trains clients one after another


class BuiltRun(NamedTuple):
    """The objects that train an experiment.

    Args:
        dataset: the data set, without the samples that are held out for validation.
        client_rows: the row numbers of each client's training samples.
        client_data: the batches of every client.
        task: the model and its loss.
        initial_params: the initial parameters [P] of every seed.
        participation: who takes part in each round, and how long clients train.
        evaluated_clients: the rows of clients on which final models are evaluated one by one.
        method: the method that is trained: the experiment's, with running averages around it if `norm_stats` says so.
    """

    dataset: Dataset
    client_rows: list[np.ndarray]
    client_data: ClientBatches
    task: Task
    initial_params: list[Tensor]
    participation: Participation
    evaluated_clients: EvaluatedClients
    method: Method

    def trials(self, experiment: Experiment, state_device: torch.device | None = None) -> list[Trial]:
        """Return one trial per seed, before its first round; seeds differ in the noise of differential privacy.

        Args:
            experiment: the experiment that was built.
            state_device: where the clients' states are stored; None is the device of the parameters.
        """
        starts = zip(experiment.seeds, self.initial_params, strict=True)
        clients = len(self.client_rows)
        optimiser = experiment.optimiser_at(0, self.initial_params[0])
        trials = [Trial(seed, self.method, w, state_device, clients, optimiser) for seed, w in starts]
        for trial in trials:
            trial.server = set_noise_key(trial.server, trial.seed)
        return trials


def build_run(
    experiment: Experiment, dataset: Dataset | None = None, client_rows: list[np.ndarray] | None = None
) -> BuiltRun:
    """Load the data, partition them and build the models; raise UserError if the options do not fit together.

    Args:
        experiment: what to build.
        dataset: used instead of the experiment's data set; it is loaded already, or a node of a federation has its own.
        client_rows: each client's row numbers, without held-out clients, used instead of the experiment's partition.
    """
    experiment.check()
    dataset = dataset or load_run_dataset(experiment)
    if client_rows is None or experiment.holdout_clients:
        every_client = _partition_all(experiment, dataset)
        held_out = choose_held_out(experiment.partition_seed, len(every_client), experiment.holdout_clients)
        client_rows = [rows for client, rows in enumerate(every_client) if client not in held_out]
    else:
        every_client, held_out = client_rows, frozenset()
    evaluated = evaluated_clients(dataset, partition_name(experiment, dataset) == "natural", every_client, held_out)
    participation = build_participation(experiment, [len(rows) for rows in client_rows])
    size = cohort_size(experiment.cohort, len(client_rows))
    check_cohort_suffices(experiment.aggregation(), experiment.aggregate, size)
    attackers = choose_attackers(experiment.partition_seed, len(client_rows), experiment.attackers)
    task_class = _task_class(experiment, dataset)
    dataset = fit_targets(dataset, task_class)
    if experiment.attack == "labels" and attackers:
        if dataset.task != "classification":
            raise UserError("attack", experiment.attack, f"needs classes; the task is {task_class.name}")
        dataset = flip_labels(dataset, client_rows, attackers)
    device = choose_device(experiment.device)
    if device.type == "cpu":
        keep_freed_memory()
    largest = max(len(rows) for rows in client_rows) or experiment.batch_size  # the server of a federation has no rows
    batch_size, augment = min(experiment.batch_size, largest), _augment(experiment, dataset)
    steps = participation.step_counts
    client_data = ClientBatches(dataset, client_rows, batch_size, experiment.epochs, augment, device, step_counts=steps)
    models = [_initial_model(experiment, dataset, seed) for seed in experiment.seeds]
    _check_same_for_all_seeds(models)
    task = task_class(models[0].to(device), set_precision(experiment.precision, device))
    starts = [task.flatten(dict(model.named_parameters())).detach().to(device) for model in models]
    _check_optimiser(experiment, starts[0])
    given = not isinstance(experiment.model, str) or is_own_code(experiment.model) or is_hugging_face(experiment.model)
    if len(client_data.y) and (given or task_class is not Task or experiment.model in TEXT_MODELS):
        two = client_data.samples(torch.tensor([0, len(client_data.y) - 1]))  # of a single sample, twice the same
        check_model_output(task, starts[0], two, dataset.classes)
    method = _with_norm_statistics(experiment, task, starts[0])
    return BuiltRun(dataset, client_rows, client_data, task, starts, participation, evaluated, method)


def _with_norm_statistics(experiment: Experiment, task: Task, params: Tensor) -> Method:
    """Return the method, with running averages around it if `norm_stats` says so; raise UserError if there are none."""
    if experiment.norm_stats == "batch":
        return experiment.method
    if not task.norm_layers:
        raise UserError("norm_stats", experiment.norm_stats, "the model has no batch normalisation; leave it at batch")
    return add_statistics(experiment.method, experiment.norm_stats, task.initial_statistics(params))


def build_participation(experiment: Experiment, sizes: list[int]) -> Participation:
    """Return who takes part in the experiment's rounds; raise UserError if the options do not fit the clients.

    Args:
        experiment: the experiment.
        sizes: the number of samples of each client.
    """
    clients = len(sizes)
    if cohort_size(experiment.cohort, clients) > clients:
        raise UserError("cohort", experiment.cohort, f"must be at most the number of clients, {clients}")
    availability = read_availability(experiment.availability, clients) if experiment.availability else None
    if availability is not None and not (availability.first < experiment.rounds).any():
        raise UserError(
            "availability", experiment.availability, f"no client is available in rounds 1 to {experiment.rounds}"
        )
    return Participation(
        sizes,
        experiment.cohort,
        experiment.sampling,
        availability,
        experiment.dropout_rate,
        experiment.stragglers,
        experiment.straggler_work,
        LocalWork(experiment.epochs, experiment.local_steps),
        experiment.batch_size,
        read_client_settings(experiment.client_settings, clients) if experiment.client_settings else None,
    )


def _task_class(experiment: Experiment, dataset: Dataset) -> type[Task]:
    """Return the class of the experiment's task."""
    return find_task(dataset.task if experiment.task == "auto" else experiment.task)


def _check_optimiser(experiment: Experiment, params: Tensor) -> None:
    """Raise UserError if the method divides by the length of its clients' steps and the optimiser has no such length.

    It is known for SGD. With momentum it assumes that the buffer starts from 0 and that η is constant in a round.
    """
    plain = not experiment.momentum or (experiment.optimiser_state == "reset" and experiment.lr_in_round == "constant")
    if (experiment.optimiser == "sgd" and plain) or not reply_uses_steps(experiment.method, params):
        return
    option = "optimiser" if experiment.optimiser != "sgd" else "momentum"
    problem = f"this method divides by the length of the clients' steps, known for {mention('optimiser', 'sgd')} only"
    if option == "momentum":
        state, constant = mention("optimiser_state", "reset"), mention("lr_in_round", "constant")
        problem = f"this method divides by the length of the clients' steps; momentum then needs {state} and {constant}"
    raise UserError(option, getattr(experiment, option), problem)


def build_attack(experiment: Experiment, clients: int) -> ReplyAttack | None:
    """Return what the attackers among the clients do to their replies, None if they do nothing to them."""
    if not experiment.attackers or experiment.attack not in REPLY_ATTACKS:
        return None
    attackers = choose_attackers(experiment.partition_seed, clients, experiment.attackers)
    return ReplyAttack(experiment.attack, experiment.attack_strength, attackers, experiment.bookkeeping)


def _check_same_for_all_seeds(models: Sequence[nn.Module]) -> None:
    """Raise UserError if the models of two seeds differ in what all seeds share: buffers and frozen parameters."""
    first, *others = (_shared_tensors(model) for model in models)
    for name, value in first.items():
        if not all(torch.equal(value, other[name]) for other in others):
            problem = f"'{name}' is not trained, and another for every seed; draw only trained parameters at random"
            raise UserError("model", NOT_SHOWN, problem)


def _shared_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model that are not trained, by name."""
    frozen = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
    return dict(model.named_buffers()) | frozen


def load_run_dataset(experiment: Experiment) -> Dataset:
    """Return the data set of an experiment, with part of its training samples as test set if `validation` is set."""
    experiment.check_named("give the object itself: fedflat.Experiment(dataset=..., model=...)")
    given = experiment.dataset
    if not isinstance(given, Dataset):
        tokenizer = experiment.model if is_hugging_face(experiment.model) else ""
        given = load_dataset(given, None, experiment.sequence_length, table_columns(experiment), tokenizer)
    return hold_out(given, experiment.validation)


def table_columns(setting: Setting) -> TableColumns:
    """Return which columns of table:FILE a setting uses, and for what."""
    names = setting.target_column, setting.feature_columns, setting.client_column
    return TableColumns(*names, setting.test_split, setting.task, setting.target_scale)


def choose_device(name: str) -> torch.device:
    """Return the device that the option `device` means; raise UserError if it is not there."""
    kind, _, number = name.partition(":")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError("device", name, f"no usable GPU here; use {mention('device', 'cpu')} or auto")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UserError("device", name, f"no Apple GPU that torch can use here; use {mention('device', 'cpu')} or auto")
    if number:
        return _numbered_gpu(name, int(number))
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(automatic if kind == "auto" else kind)


def _numbered_gpu(name: str, number: int) -> torch.device:
    """The GPU of this number, which becomes torch's current one; UserError if it is not there."""
    if number >= torch.cuda.device_count():
        raise UserError("device", name, f"this host has {torch.cuda.device_count()} GPUs, numbered from 0")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def set_precision(name: str, device: torch.device) -> torch.dtype | None:
    """Make torch use the precision that the option `precision` means.

    Returns the type in which models compute, None if it is that of the parameters (float32).
    """
    if name == "tf32" and device.type != "cuda":
        raise UserError("precision", name, "only GPUs have it; use fp32 or auto")
    tf32 = device.type == "cuda" and name in ("auto", "tf32")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name)


def partition_clients(experiment: Experiment, dataset: Dataset) -> list[np.ndarray]:
    """Return the row numbers of the training samples of each client that trains; held-out clients are left out."""
    rows = _partition_all(experiment, dataset)
    held_out = choose_held_out(experiment.partition_seed, len(rows), experiment.holdout_clients)
    return [own for client, own in enumerate(rows) if client not in held_out]


def partition_name(experiment: Experiment, dataset: Dataset) -> str:
    """Return the partition of an experiment, with "auto" resolved."""
    return default_partition(dataset) if experiment.partition == "auto" else experiment.partition


def _partition_all(experiment: Experiment, dataset: Dataset) -> list[np.ndarray]:
    """Return the row numbers of every client's training samples."""
    y = dataset.y.cpu().numpy()
    kept = long_tail_rows(y, experiment.long_tail, experiment.partition_seed)
    parts = partition_rows(
        partition_name(experiment, dataset),
        y[kept],
        experiment.clients,
        experiment.partition_seed,
        experiment.alpha,
        experiment.shards,
        None if dataset.owner is None else dataset.owner.numpy()[kept],
    )
    return [kept[part] for part in parts]


def _augment(experiment: Experiment, dataset: Dataset) -> Augment:
    """Return the augmentation that the option `augment` means; raise UserError if the samples are not images."""
    crop_flip, x = Augment(crop=4, flip=True), input_tensors(dataset.x)[0]
    choices = {"crop-flip": crop_flip, "crop-flip-batch": crop_flip._replace(per_batch=True)}
    if experiment.augment in choices and x.dim() != 4:
        shape = "x".join(map(str, x.shape[1:]))
        problem = f"samples of shape {shape} are not images; use {mention('augment', 'none')}"
        raise UserError("augment", experiment.augment, problem)
    return {"dataset": dataset.augment, "none": Augment(), **choices}[experiment.augment]


def _initial_model(experiment: Experiment, dataset: Dataset, seed: int) -> nn.Module:
    """Return the model with which this seed starts."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _new_model(experiment, dataset)
    if experiment.init is not None:
        load_weights(model, Path(experiment.init))
    return model


def _new_model(experiment: Experiment, dataset: Dataset) -> nn.Module:
    """Return the model as the option `model` gives it; torch's BatchNorm and dropout in it become ours."""
    model = experiment.model
    if isinstance(model, str):
        name = default_model(dataset) if model == "auto" else model
        if is_hugging_face(name):
            model = load_hugging_face_model(name, _task_class(experiment, dataset).name, dataset.classes)
        else:
            model = build_model(name, dataset.shape, dataset.classes)
    model, replaced = adapt_layers(
        model if isinstance(model, nn.Module) else model(), track=experiment.norm_stats != "batch"
    )
    check_model(model)
    adapt_hugging_face(model)
    if replaced:
        _say_once(f"model: {replaced} replaced by fedflat's own, which know the padding of a batch (docs/models.md)")
    return model


@cache
def _say_once(text: str) -> None:
    """Print a line to stderr, unless it was printed before."""
    print(text, file=sys.stderr)


def default_model(dataset: Dataset) -> str:
    """Return the name of the model that `auto` means for this data set."""
    if dataset.task == "next-token":
        return "char-transformer"
    shape = dataset.shape
    if shape[1] == 1 or shape[2] == 1:
        return "mlp"
    return "fedavg-cnn" if min(shape[1:]) >= 28 else "digits-cnn"


def choose_engine(experiment: Experiment, task: Task, device: torch.device) -> str:
    """Return the name of the engine that the option `engine` means in one process.

    On a CPU a batch of large models is slower than one after another: it moves more memory (benchmarks/engines.py).
    """
    if experiment.engine not in ("auto", "distributed"):
        return experiment.engine
    return "sequential" if device.type == "cpu" and task.size > LARGE_MODEL else "batched"


def build_engine(
    experiment: Experiment, built: BuiltRun, processes: ProcessGroup, lane_fields: Sequence[str] = ()
) -> Engine:
    """Return the engine of one process or of many.

    Args:
        experiment: the experiment.
        built: its data and models.
        processes: the processes that train together.
        lane_fields: the method's hyper-parameters that may differ between jobs; for one process only.
    """
    if processes.size > 1:
        from fedflat.engine.distributed import Distributed

        return Distributed(built.method, built.task, built.client_data, processes)
    device = built.client_data.y.device
    if choose_engine(experiment, built.task, device) == "sequential":
        return Sequential(built.method, built.task, built.client_data)
    planned = PlannedAhead(built.client_data, partial(coming_cohort, experiment, built))
    source = planned if device.type == "cuda" else built.client_data
    return Batched(built.method, built.task, source, lane_fields=lane_fields)


def coming_cohort(experiment: Experiment, built: BuiltRun, round: int) -> RoundCohort | None:
    """Return the clients of all seeds that reply in a round; None after the last round."""
    if round >= experiment.rounds:
        return None
    items = [(seed, client) for seed in experiment.seeds for client in built.participation.replying(seed, round)]
    return RoundCohort(round, tuple(seed for seed, _ in items), tuple(client for _, client in items))


def client_state_device(
    runs: Sequence[tuple[Experiment, BuiltRun]], engine: Engine, ranks: int = 1
) -> torch.device | None:
    """Return where the clients' states are stored: None for the training device, the CPU if they do not fit on a GPU.

    Args:
        runs: the experiments that `engine` trains together, which share model and data.
        engine: the engine.
        ranks: the number of processes that share the clients.
    """
    experiment, built = runs[0]
    client_data, task, starts, method = built.client_data, built.task, built.initial_params, built.method
    if client_data.y.device.type != "cuda":
        return None
    trials = [(len(built.client_rows), built.participation.largest_size) for each, built in runs for _ in each.seeds]
    lanes = getattr(engine, "lanes", None) or sum(cohort for _, cohort in trials)
    optimiser = experiment.optimiser_at(0, starts[0])
    estimate = estimate_memory(method, task, client_data, starts[0], lanes, trials, ranks, optimiser)
    return choose_state_device(estimate, free_gpu_memory(client_data.y.device))
