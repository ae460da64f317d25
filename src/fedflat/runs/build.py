"""From an experiment to the objects that train it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple
import numpy as np
import torch
from torch import Tensor, nn
from fedflat.core.task import Batch, Task, check_model_output
from fedflat.data.augment import normalise
from fedflat.data.batches import ClientBatches
from fedflat.data.dataset import Augment, Dataset, default_partition, hold_out
from fedflat.data.load import load_dataset
from fedflat.data.partition import partition_rows
from fedflat.engine import ENGINES
from fedflat.engine.distributed import Distributed
from fedflat.engine.memory import choose_state_device, estimate_memory, free_gpu_memory, keep_freed_memory
from fedflat.engine.processes import ProcessGroup
from fedflat.engine.rounds import Engine, Trial
from fedflat.errors import UserError
from fedflat.methods.differential_privacy import set_noise_key
from fedflat.models import build_model
from fedflat.runs.experiment import Experiment



LARGE_MODEL = 5_000_000  # parameters from which on a CPU trains clients one by one


class RunParts(NamedTuple):
    """What an experiment is made of."""

    dataset: Dataset
    parts: list[np.ndarray]
    feed: ClientBatches
    task: Task
    starts: list[Tensor]  # initial parameters, one per seed

    def trials(self, experiment: Experiment, home: torch.device | None = None) -> list[Trial]:
        """One trial per seed, before its first round, with clients' states at `home`; each has noise of its own."""
        starts, clients = zip(experiment.seeds, self.starts, strict=True), len(self.parts)
        trials = [Trial(seed, experiment.method, w, home, clients) for seed, w in starts]
        for trial in trials:
            trial.server = set_noise_key(trial.server, trial.seed)
        return trials


def build_run(experiment: Experiment, dataset: Dataset | None = None, parts: list[np.ndarray] | None = None) -> RunParts:
    """Load, split, build; raises UserError for everything that does not fit together.

    `dataset` and `parts` (each client's rows) are given where clients hold data of their own.
    """
    experiment.check()
    dataset = dataset or load_run_dataset(experiment)
    parts = partition_clients(experiment, dataset) if parts is None else parts
    if experiment.cohort > len(parts):
        raise UserError(f"--cohort {experiment.cohort}: must be at most the number of clients, {len(parts)}")
    device = choose_device(experiment.device)
    if device.type == "cpu":
        keep_freed_memory()
    largest = max(len(part) for part in parts) or experiment.batch_size  # a federation's server holds none
    batch_size = min(experiment.batch_size, largest)
    feed = ClientBatches(dataset, parts, batch_size, experiment.local_epochs, _augment(experiment, dataset), device)
    models = [_initial_model(experiment, dataset, seed) for seed in experiment.seeds]
    task = Task(models[0], set_precision(experiment.precision, device))
    _check_buffers(models)
    task.model.to(device)  # for its buffers
    starts = [task.flatten(dict(model.named_parameters())).detach().to(device) for model in models]
    if not isinstance(experiment.model, str):
        check_model_output(task, starts[0], _samples(feed), dataset.classes)
    return RunParts(dataset, parts, feed, task, starts)


def _check_buffers(models: Sequence[nn.Module]) -> None:
    """Refuse what the seeds cannot have in common."""
    first, *others = (dict(model.named_buffers()) for model in models)
    for name, value in first.items():
        if not all(torch.equal(value, other[name]) for other in others):
            raise UserError(f"--model: buffer '{name}' is another for every seed; draw only parameters at random")


def _samples(feed: ClientBatches) -> Batch:
    """Two samples: layers that normalise over the batch refuse a single one."""
    x = normalise(feed.x[:2], feed.dataset.mean, feed.dataset.std, feed.dtype)
    return Batch(x, feed.y[:2], torch.ones_like(feed.y[:2], dtype=torch.bool), None)


def load_run_dataset(experiment: Experiment) -> Dataset:
    """The data that an experiment names, or brings."""
    given = experiment.dataset
    return hold_out(given if isinstance(given, Dataset) else load_dataset(given), experiment.validation)


def choose_device(name: str) -> torch.device:
    """The device an option names."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: no usable GPU here; use --device cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def set_precision(name: str, device: torch.device) -> torch.dtype | None:
    """Make torch use the precision an option names; returns the models' type where it is not the parameters'."""
    if name == "tf32" and device.type != "cuda":
        raise UserError("--precision tf32: only GPUs have it; use fp32 or auto")
    tf32 = device.type == "cuda" and name in ("auto", "tf32")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name)


def partition_clients(experiment: Experiment, dataset: Dataset) -> list[np.ndarray]:
    """Each client's rows."""
    owner = None if dataset.owner is None else dataset.owner.numpy()
    return partition_rows(
        default_partition(dataset) if experiment.partition == "auto" else experiment.partition,
        dataset.y.numpy(),
        experiment.clients,
        experiment.partition_seed,
        experiment.alpha,
        experiment.shards,
        owner,
    )


def _augment(experiment: Experiment, dataset: Dataset) -> Augment:
    """The random changes that an option means; only images can be changed."""
    if experiment.augment == "crop-flip" and dataset.x.dim() != 4:
        shape = "x".join(map(str, dataset.x.shape[1:]))
        raise UserError(f"--augment crop-flip: samples of shape {shape} are no images; use --augment none")
    choices = {"dataset": dataset.augment, "crop-flip": Augment(crop=4, flip=True), "none": Augment()}
    return choices[experiment.augment]


def _initial_model(experiment: Experiment, dataset: Dataset, seed: int) -> nn.Module:
    """The model in the state in which this seed starts."""
    shape = dataset.shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if isinstance(experiment.model, str):
            return build_model(
                default_model(shape) if experiment.model == "auto" else experiment.model, shape, dataset.classes
            )
        if isinstance(experiment.model, nn.Module):
            return copy.deepcopy(experiment.model)
        return experiment.model()


def default_model(shape: tuple[int, int, int]) -> str:
    """The usual architecture for samples of this shape."""
    if shape[1] == 1 or shape[2] == 1:
        return "mlp"
    return "fedavg-cnn" if min(shape[1:]) >= 28 else "digits-cnn"


def choose_engine(experiment: Experiment, task: Task, device: torch.device) -> str:
    """The engine that an option means in one process.

    On a CPU, lanes of a large model only add traffic between memory and processor (benchmarks/engines.py).
    """
    if experiment.engine not in ("auto", "distributed"):
        return experiment.engine
    return "sequential" if device.type == "cpu" and task.size > LARGE_MODEL else "batched"


def build_engine(experiment: Experiment, assembly: RunParts, world: ProcessGroup) -> Engine:
    """The engine of one process or of many."""
    if world.size > 1:
        return Distributed(experiment.method, assembly.task, assembly.feed, world)
    return ENGINES[choose_engine(experiment, assembly.task, assembly.feed.y.device)](
        experiment.method, assembly.task, assembly.feed
    )


def client_state_device(parts: Sequence[tuple[Experiment, RunParts]], engine: Engine, ranks: int = 1) -> torch.device | None:
    """Where the clients' states of these experiments, trained by one engine, go; None is the device itself."""
    experiment, (_, _, feed, task, starts) = parts[0]
    if feed.y.device.type != "cuda":
        return None
    trials = [(len(assembly.parts), each.cohort) for each, assembly in parts for _ in each.seeds]
    lanes = getattr(engine, "lanes", None) or sum(cohort for _, cohort in trials)
    return choose_state_device(
        estimate_memory(experiment.method, task, feed, starts[0], lanes, trials, ranks), free_gpu_memory(feed.y.device)
    )
