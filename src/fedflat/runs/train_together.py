"""Experiments that differ only in how data are dealt, trained side by side: their clients are lanes of one engine.

Each experiment keeps a run folder, metrics and result of its own, and learns what it would learn alone.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from itertools import accumulate, chain
from pathlib import Path
from typing import Any
import numpy as np
from fedflat.data.batches import ClientBatches
from fedflat.engine.memory import explain_out_of_memory
from fedflat.engine.processes import SINGLE_PROCESS
from fedflat.engine.rounds import ClientStates, CohortJob, Engine
from fedflat.errors import UserError
from fedflat.runs.build import RunParts, build_engine, build_run, choose_device, client_state_device, load_run_dataset, partition_clients
from fedflat.runs.config import dump_experiment, experiment_to_dict
from fedflat.runs.experiment import Experiment
from fedflat.runs.folder import RunFolder
from fedflat.runs.result import Result
from fedflat.runs.train import Training, Watcher, expected_steps



MAY_DIFFER = ("partition", "alpha", "shards", "partition_seed", "clients", "seeds")


def run_together(
    experiments: Sequence[Experiment],
    folders: Sequence[Path] | None = None,
    resume: bool = False,
    watch: Watcher | None = None,
) -> list[Result]:
    """Train experiments that agree in all but MAY_DIFFER; the results come in their order.

    With `folders`, one for each, leave run folders there; `resume` continues what was interrupted in any of them.
    `watch` hears of the first experiment that played a round. The seconds of a result are those of the whole.
    """
    check_same_settings(experiments)
    assemblies = _build_all(experiments)
    with explain_out_of_memory(), ExitStack() as stack:
        opened = [RunFolder(path, dump_experiment(e), resume) for path, e in zip(folders or (), experiments, strict=bool(folders))]
        for folder in opened:
            stack.enter_context(closing(folder))
        parts = list(zip(experiments, assemblies, strict=True))
        engine = build_engine(experiments[0], _all_clients(assemblies), SINGLE_PROCESS)
        outlooks = zip(*(expected_steps(*part) for part in parts), strict=True)
        engine.prepare([[*chain.from_iterable(lengths)] for lengths in outlooks])
        home, test = client_state_device(parts, engine), assemblies[0].feed.test()
        kept: Sequence[RunFolder | None] = opened or [None] * len(experiments)
        trainings = [
            Training(e, a, folder, engine, a.trials(e, home), test=test)
            for (e, a), folder in zip(parts, kept, strict=True)
        ]
        return _finish(trainings, engine, watch or (lambda round, rows: None))


def check_same_settings(experiments: Sequence[Experiment]) -> None:
    """Raise UserError where two experiments differ in more than may differ."""
    first, *others = map(experiment_to_dict, experiments)
    for name in [name for name in first if name not in MAY_DIFFER]:
        if any(first[name] != other[name] for other in others):
            raise UserError(f"--{name.replace('_', '-')}: must be the same in experiments trained together")


def _build_all(experiments: Sequence[Experiment]) -> list[RunParts]:
    """Every experiment on one copy of the data."""
    dataset, device = load_run_dataset(experiments[0]), choose_device(experiments[0].device)
    names = ("x", "y", "x_test", "y_test")
    moved = dataclasses.replace(dataset, **{name: getattr(dataset, name).to(device) for name in names})
    return [build_run(experiment, moved, partition_clients(experiment, dataset)) for experiment in experiments]


def _all_clients(assemblies: Sequence[RunParts]) -> RunParts:
    """All clients of all experiments, each under the number it has in its own."""
    feeds, parts = [a.feed for a in assemblies], [part for a in assemblies for part in a.parts]
    names = np.concatenate([np.arange(len(a.parts)) for a in assemblies]).tolist()
    first, batch_size = feeds[0], max(feed.batch_size for feed in feeds)
    feed = ClientBatches(first.dataset, parts, batch_size, first.epochs, first.spec, first.y.device, names=names)
    return assemblies[0]._replace(parts=parts, feed=feed)


def _finish(trainings: Sequence[Training], engine: Engine, watch: Watcher) -> list[Result]:
    """Round by round; an experiment that was interrupted later than others waits for them."""
    began = time.perf_counter() - max(training.seconds for training in trainings)
    offsets = [0, *accumulate(len(training.assembly.parts) for training in trainings)]
    while under_way := [n for n, training in enumerate(trainings) if not training.done]:
        round = min(trainings[n].round for n in under_way)
        now = [n for n in under_way if trainings[n].round == round]
        _play([trainings[n] for n in now], [offsets[n] for n in now], engine)
        for n in now:
            trainings[n].after_round(time.perf_counter() - began)
        watch(round + 1, trainings[now[0]].newest)
    return [training.conclude() for training in trainings]


def _play(trainings: Sequence[Training], offsets: Sequence[int], engine: Engine) -> None:
    """One round of all these experiments."""
    for exchange in range(trainings[0].experiment.method.exchanges):
        asked = [training.ask(exchange) for training in trainings]
        jobs = [_shifted(job, offset) for those, offset in zip(asked, offsets, strict=True) for job in those]
        trained = iter(engine.train(jobs))
        for training, those in zip(trainings, asked, strict=True):
            training.settle([next(trained) for _ in those])
    for training in trainings:
        training.end_round()


def _shifted(job: CohortJob, offset: int) -> CohortJob:
    """The job with clients numbered as in the joint feed."""
    clients = [client + offset for client in job.clients]
    return job._replace(clients=clients, states=ShiftedStates(job.states, offset))


class ShiftedStates:
    """Clients' states under other numbers."""

    def __init__(self, states: ClientStates, offset: int) -> None:
        self.states, self.offset, self.initial = states, offset, states.initial

    def gather(self, clients: Sequence[int]) -> Any:
        """The states of `clients`, stacked."""
        return self.states.gather([client - self.offset for client in clients])

    def scatter(self, clients: Sequence[int], states: Any) -> None:
        """Store stacked `states` of `clients`."""
        self.states.scatter([client - self.offset for client in clients], states)
