"""Build what an experiment needs: data, partition, model and engine."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedflat.core.local_training import reply_uses_steps
from fedflat.core.method import Method
from fedflat.core.output_check import check_model_output
from fedflat.core.task import Task
from fedflat.data.arrays import input_tensors
from fedflat.data.batches import ClientBatches
from fedflat.data.client_files import read_availability, read_client_settings
from fedflat.data.dataset import Augment, Dataset, default_partition, hold_out
from fedflat.data.load import load_dataset
from fedflat.data.partition import long_tail_rows, partition_rows
from fedflat.data.tables import TableColumns
from fedflat.data.task_targets import fit_targets
from fedflat.engine.aggregation import check_cohort_suffices
from fedflat.engine.attacks import REPLY_ATTACKS, ReplyAttack, choose_attackers, flip_labels
from fedflat.engine.memory import keep_freed_memory
from fedflat.engine.participation import LocalWork, Participation, cohort_size
from fedflat.engine.rounds import Trial
from fedflat.errors import UserError, mention
from fedflat.methods.differential_privacy import set_noise_key
from fedflat.methods.running_averages import add_statistics
from fedflat.models import TEXT_MODELS
from fedflat.models.hugging_face import is_hugging_face
from fedflat.own_code import is_own_code
from fedflat.runs.build_model import build_task, find_task_class
from fedflat.runs.client_evaluation import EvaluatedClients, choose_held_out, evaluated_clients
from fedflat.runs.device import choose_device
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
    _check_aggregation(experiment, participation)
    dataset = fit_targets(dataset, find_task_class(experiment, dataset))
    dataset = _flip_attackers_labels(experiment, dataset, client_rows)
    client_data = _build_batches(experiment, dataset, client_rows, participation)
    task, starts = build_task(experiment, dataset, client_data.y.device)
    _check_optimiser(experiment, starts[0])
    _check_given_model(experiment, task, starts[0], client_data, dataset.classes)
    task = _choose_layout(task, client_data)
    method = _with_norm_statistics(experiment, task, starts[0])
    return BuiltRun(dataset, client_rows, client_data, task, starts, participation, evaluated, method)


def _check_aggregation(experiment: Experiment, participation: Participation) -> None:
    """Raise UserError if the smallest cohort does not suffice for how replies are averaged."""
    size = participation.smallest_size
    smaller = f"the smallest with {mention('sampling', experiment.sampling)} has {size}"
    why = smaller if size < participation.size else ""
    check_cohort_suffices(experiment.aggregation(), experiment.aggregate, size, why)


def _flip_attackers_labels(experiment: Experiment, dataset: Dataset, client_rows: list[np.ndarray]) -> Dataset:
    """Return the data set; with `--attack labels` attackers have wrong labels."""
    attackers = choose_attackers(experiment.partition_seed, len(client_rows), experiment.attackers)
    if experiment.attack != "labels" or not attackers:
        return dataset
    if dataset.task != "classification":
        name = find_task_class(experiment, dataset).name
        raise UserError("attack", experiment.attack, f"needs classes; the task is {name}")
    return flip_labels(dataset, client_rows, attackers)


def _build_batches(
    experiment: Experiment, dataset: Dataset, client_rows: list[np.ndarray], participation: Participation
) -> ClientBatches:
    """Return the batches of every client, on the experiment's device."""
    device = choose_device(experiment.device)
    if device.type == "cpu":
        keep_freed_memory()
    largest = max(len(rows) for rows in client_rows) or experiment.batch_size  # the server of a federation has no rows
    batch_size, augment = min(experiment.batch_size, largest), _augment(experiment, dataset)
    steps = participation.step_counts
    return ClientBatches(dataset, client_rows, batch_size, experiment.epochs, augment, device, step_counts=steps)


def _check_given_model(
    experiment: Experiment, task: Task, params: Tensor, client_data: ClientBatches, classes: int
) -> None:
    """Try a model that may not suit the data: one of the user's, or one for another task."""
    tokens = [t for t in input_tensors(client_data.dataset.x) if t.dtype == torch.int64]
    of_other_kind = tokens or type(task) is not Task or experiment.model in TEXT_MODELS
    if len(client_data.y) and (is_own_model(experiment) or of_other_kind):
        largest_token = [int(t.flatten(1).amax(1).argmax()) for t in tokens]
        rows = torch.tensor([0, len(client_data.y) - 1, *largest_token])  # of a single sample, twice the same
        check_model_output(task, params, client_data.samples(rows), classes)


def _choose_layout(task: Task, client_data: ClientBatches) -> Task:
    """Return the task; on a CPU with channels-last images, which are faster but for large models that normalise."""
    on_cpu = client_data.y.device.type == "cpu"
    normalises = any("Norm" in type(layer).__name__ for layer in task.model.modules())
    return task.with_channels_last() if on_cpu and not (normalises and task.size > LARGE_MODEL) else task


def is_own_model(experiment: Experiment) -> bool:
    """Return whether the model is not one of this package."""
    return not isinstance(experiment.model, str) or is_own_code(experiment.model) or is_hugging_face(experiment.model)


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
    _check_goes_by_classes(experiment, dataset)
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


def _check_goes_by_classes(experiment: Experiment, dataset: Dataset) -> None:
    """Raise UserError if the partition or the long tail goes by classes and the targets are none."""
    name = partition_name(experiment, dataset)
    if dataset.task == "classification":
        return
    if name not in ("iid", "natural"):
        raise UserError("partition", name, "goes by classes, which these data do not have; use iid or natural")
    if experiment.long_tail != 1:
        raise UserError("long_tail", experiment.long_tail, "goes by classes, which these data do not have")


def _augment(experiment: Experiment, dataset: Dataset) -> Augment:
    """Return the augmentation that the option `augment` means; raise UserError if the samples are not images."""
    crop_flip, x = Augment(crop=4, flip=True), input_tensors(dataset.x)[0]
    choices = {"crop-flip": crop_flip, "crop-flip-batch": crop_flip._replace(per_batch=True)}
    if experiment.augment in choices and x.dim() != 4:
        shape = "x".join(map(str, x.shape[1:]))
        problem = f"samples of shape {shape} are not images; use {mention('augment', 'none')}"
        raise UserError("augment", experiment.augment, problem)
    return {"dataset": dataset.augment, "none": Augment(), **choices}[experiment.augment]
