"""The engine that an experiment's options mean, and where it keeps the clients' states."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from fedflat.core.task import Task
from fedflat.data.batches import RoundCohort
from fedflat.data.plan_ahead import PlannedAhead
from fedflat.engine.batched import Batched
from fedflat.engine.memory import choose_state_device, estimate_memory, free_gpu_memory
from fedflat.engine.processes import ProcessGroup
from fedflat.engine.rounds import Engine
from fedflat.engine.sequential import Sequential
from fedflat.engine.tracing import import_compiler_ahead
from fedflat.runs.build import LARGE_MODEL, BuiltRun
from fedflat.runs.device import choose_device
from fedflat.runs.experiment import Experiment


def choose_engine(experiment: Experiment, task: Task, device: torch.device) -> str:
    """Return the name of the engine that the option `engine` means in one process.

    On a CPU a batch of large models is slower than one after another: it moves more memory (benchmarks/engines.py).
    """
    if experiment.engine not in ("auto", "distributed"):
        return experiment.engine
    return "sequential" if device.type == "cpu" and task.size > LARGE_MODEL else "batched"


def prepare_for_engine(experiment: Experiment) -> None:
    """Begin what takes time before the first round and needs no data: on a GPU the import of the compiler."""
    if choose_device(experiment.device).type == "cuda" and experiment.engine != "sequential":
        import_compiler_ahead()


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
