"""Train several experiments side by side, with the clients of all in one batch of the engine.

The experiments may differ in how the data are partitioned, in learning rates and in real-valued hyper-parameters of the
method. Each has its own run folder, metrics and result, and learns what it would learn alone.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from fedflat.core.method import Method, hyper_parameters, with_hyper_parameters
from fedflat.core.method_check import explain_method_errors
from fedflat.data.batches import ClientBatches, StepCounts
from fedflat.engine.memory import explain_out_of_memory
from fedflat.engine.processes import SINGLE_PROCESS
from fedflat.engine.rounds import ClientStates, CohortJob, Engine, train_cohorts
from fedflat.errors import NOT_SHOWN, UserError
from fedflat.options import member_types
from fedflat.runs.advice import print_advice
from fedflat.runs.build import BuiltRun, build_run, load_run_dataset, partition_clients
from fedflat.runs.build_engine import build_engine, client_state_device, prepare_for_engine
from fedflat.runs.callbacks import CallbackRunner
from fedflat.runs.config import dump_experiment, experiment_to_dict, method_to_dict
from fedflat.runs.device import choose_device
from fedflat.runs.experiment import Experiment
from fedflat.runs.folder import RunFolder
from fedflat.runs.interrupt import InterruptAfterRound, Interrupted
from fedflat.runs.result import Result
from fedflat.runs.threads import restore_threads
from fedflat.runs.train import Watcher, check_method
from fedflat.runs.training import Training, expected_steps, occupied_rounds

MAY_DIFFER = (  # in experiments trained together, beside real-valued hyper-parameters of the method
    "partition",
    "alpha",
    "shards",
    "long_tail",
    "partition_seed",
    "clients",
    "seeds",
    "lr",
    "lr_schedule",
    "lr_decay",
    "lr_step",
    "lr_warmup",
    "momentum",
    "weight_decay",
    "clip_grad",
)


def run_together(
    experiments: Sequence[Experiment],
    folders: Sequence[Path] | None = None,
    resume: bool = False,
    watch: Watcher | None = None,
    beside: Sequence[Experiment] = (),
    callbacks: Sequence[Sequence[Any]] = (),
) -> list[Result]:
    """Train experiments side by side and return their results in the same order.

    They may differ in the options MAY_DIFFER and in real-valued hyper-parameters of the method, as long as the step is
    made of the same operations (`shared_step`). The seconds of each result are those of all experiments together.

    Args:
        experiments: what to train.
        folders: a run folder for each experiment; nothing is written if None.
        resume: whether to continue interrupted runs in `folders`.
        watch: called after each round with its number and the rows of the last evaluation, of one experiment that
            trained in this round.
        beside: experiments that were trained together with these before and are complete. They are not trained; the
            step is made for them too, so that not a bit of the others depends on an interruption.
        callbacks: the callbacks of each experiment, none unless given. One that stops leaves the others training.

    Raises:
        UserError: the experiments differ in another option, an option cannot be used, or a folder belongs to another
            run.
    """
    with _open_trainings(experiments, folders, resume, beside) as (trainings, engine), ExitStack() as at_the_end:
        own = callbacks or [()] * len(trainings)
        runners = [CallbackRunner(each, training) for each, training in zip(own, trainings, strict=True)]
        results: list[Result] = []
        for n, runner in enumerate(runners):
            at_the_end.callback(_end_callbacks, runner, results, n)
        stops = _play(trainings, engine, watch or (lambda round, rows: None), experiments[0].rounds, runners)
        results += [training.conclude(stopped=stops.get(n)) for n, training in enumerate(trainings)]
        return results


def _end_callbacks(runner: CallbackRunner, results: Sequence[Result], place: int) -> None:
    """Tell a training's callbacks that it ended; there are no results after an error."""
    runner.end(results[place] if results else None)


def train_until(
    round: int,
    experiments: Sequence[Experiment],
    folders: Sequence[Path],
    watch: Watcher | None = None,
    beside: Sequence[Experiment] = (),
) -> None:
    """Train experiments side by side up to a round and save them.

    Args:
        round: the round, counted from 1. Experiments that are further already are not trained.
        experiments: what to train, as for `run_together`.
        folders: a run folder for each; checkpoints in them are continued.
        watch, beside: as for `run_together`.
    """
    with _open_trainings(experiments, folders, True, beside) as (trainings, engine):
        _play(trainings, engine, watch or (lambda round, rows: None), round)
        for training in trainings:
            training.save()


@contextmanager
def _open_trainings(
    experiments: Sequence[Experiment], folders: Sequence[Path] | None, resume: bool, beside: Sequence[Experiment]
) -> Iterator[tuple[list[Training], Engine]]:
    """Give the trainings and the engine that they share while the `with` block lasts."""
    prepare_for_engine(experiments[0])
    together = [*experiments, *beside]
    fields = differing_fields([experiment.method for experiment in together])
    check_same_settings(together, fields)
    all_built = _build_all(together)
    built_runs = all_built[: len(experiments)]
    check_method(experiments[0], built_runs[0])
    runs = list(zip(experiments, built_runs, strict=True))
    for run in runs:
        print_advice(*run)
    with explain_out_of_memory(), restore_threads(), ExitStack() as stack:
        opened = [
            stack.enter_context(closing(RunFolder(path, dump_experiment(each), resume, data=built.dataset.fingerprint)))
            for path, (each, built) in zip(folders or (), runs, strict=bool(folders))
        ]
        lane_fields = differing_fields([built.method for built in all_built])
        engine = build_engine(experiments[0], _all_clients(built_runs), SINGLE_PROCESS, lane_fields)
        steps_by_round = zip(*(expected_steps(*run) for run in zip(together, all_built, strict=True)), strict=True)
        engine.prepare(occupied_rounds([*chain.from_iterable(steps)] for steps in steps_by_round))
        state_device, test = client_state_device(runs, engine), built_runs[0].client_data.test()
        folder_or_none: Sequence[RunFolder | None] = opened or [None] * len(runs)
        trainings = [
            Training(experiment, built, folder, engine, built.trials(experiment, state_device), test=test)
            for (experiment, built), folder in zip(runs, folder_or_none, strict=True)
        ]
        for training in trainings:
            training.adds_weight_decay = any(each.weight_decay for each in together)
        yield trainings, engine


def real_hyper_parameters(method: Method) -> list[str]:
    """Return the names of a method's hyper-parameters that are real numbers, as `hyper_parameters` names them."""
    hints, names = get_type_hints(type(method), include_extras=True), []
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        if isinstance(value, Method):
            names += [f"{field.name}.{name}" for name in real_hyper_parameters(value)]
        elif float in member_types(hints[field.name]) and isinstance(value, float | int):
            names.append(field.name)
    return names


def differing_fields(methods: Sequence[Method]) -> list[str]:
    """Return the real-valued hyper-parameters in which methods differ."""
    values = [hyper_parameters(method) for method in methods]
    first = values[0]
    return [name for name in real_hyper_parameters(methods[0]) if any(v.get(name) != first[name] for v in values)]


def shared_step(experiment: Experiment, fields: Sequence[str]) -> dict[str, Any]:
    """Return what experiments must have in common to be trained together, by option.

    These are all options but MAY_DIFFER; the method without the values of some hyper-parameters; and whether there is
    momentum and clipping at all, since a step without them has fewer operations.

    Args:
        experiment: the experiment.
        fields: the hyper-parameters that may differ.
    """
    known = [name for name in fields if name in real_hyper_parameters(experiment.method)]
    method = method_to_dict(with_hyper_parameters(experiment.method, dict.fromkeys(known, 0.0)))
    options = {name: value for name, value in experiment_to_dict(experiment).items() if name not in MAY_DIFFER}
    return options | {
        "method": method,
        "momentum": experiment.momentum > 0,
        "clip_grad": experiment.clip_grad is not None,
    }


def check_same_settings(experiments: Sequence[Experiment], fields: Sequence[str] = ()) -> None:
    """Raise UserError if experiments differ in more than they may (see `shared_step`), or have attackers."""
    first, *others = (shared_step(experiment, fields) for experiment in experiments)
    for other in others:
        for name in {**first, **other}:
            if first.get(name) != other.get(name):
                raise UserError(name, NOT_SHOWN, "must be the same in experiments trained together")
    if others and experiments[0].attackers:
        problem = "each partition has other attackers; such experiments cannot be trained together"
        raise UserError("attackers", experiments[0].attackers, problem)


def _build_all(experiments: Sequence[Experiment]) -> list[BuiltRun]:
    """Build every experiment on one copy of the data."""
    dataset, device = load_run_dataset(experiments[0]), choose_device(experiments[0].device)
    names = ("x", "y", "x_test", "y_test")
    moved = dataclasses.replace(dataset, **{name: getattr(dataset, name).to(device) for name in names})
    return [build_run(experiment, moved, partition_clients(experiment, dataset)) for experiment in experiments]


def _all_clients(built_runs: Sequence[BuiltRun]) -> BuiltRun:
    """Join the clients of all experiments. Random draws use the number that a client has in its own experiment."""
    first, batch_size = built_runs[0].client_data, max(built.client_data.batch_size for built in built_runs)
    rows = [rows for built in built_runs for rows in built.client_rows]
    numbers = np.concatenate([np.arange(len(built.client_rows)) for built in built_runs]).tolist()
    how = (batch_size, first.epochs, first.spec, first.y.device, first.dtype, numbers, _joined_step_counts(built_runs))
    client_data = ClientBatches(first.dataset, rows, *how)
    return built_runs[0]._replace(client_rows=rows, client_data=client_data)


def _joined_step_counts(built_runs: Sequence[BuiltRun]) -> StepCounts:
    """Return the step counts of clients that are numbered as among the clients of all experiments."""
    known = [(built.participation, client) for built in built_runs for client in range(len(built.client_rows))]

    def step_counts(seeds: Sequence[int], round: int, clients: Sequence[int]) -> list[int]:
        steps: dict[int, int] = {}
        for participation in dict.fromkeys(known[client][0] for client in clients):
            own = [(n, known[client][1]) for n, client in enumerate(clients) if known[client][0] is participation]
            counts = participation.step_counts([seeds[n] for n, _ in own], round, [client for _, client in own])
            steps |= {n: count for (n, _), count in zip(own, counts, strict=True)}
        return [steps[n] for n in range(len(clients))]

    return step_counts


def _play(
    trainings: Sequence[Training], engine: Engine, watch: Watcher, until: int, runners: Sequence[CallbackRunner] = ()
) -> dict[int, str]:
    """Train round by round up to round `until`. A resumed experiment that is ahead of the others waits for them.

    Where `watch` raises, as it does at a deadline, or a callback, the round is saved first. In folders, so is the round
    in which Ctrl-C, SIGTERM or SIGHUP comes.

    Returns why trainings were stopped by their callbacks, by their place.
    """
    stops = {n: stop.reason for n, runner in enumerate(runners) if (stop := runner.start())}
    began = time.perf_counter() - max(training.seconds for training in trainings)
    offsets = [0, *accumulate(len(training.built.client_rows) for training in trainings)]
    with InterruptAfterRound(active=trainings[0].folder is not None) as interrupt:
        while unfinished := [
            n for n, each in enumerate(trainings) if not each.done and each.round < until and n not in stops
        ]:
            round = min(trainings[n].round for n in unfinished)
            current = [n for n in unfinished if trainings[n].round == round]
            _play_round([trainings[n] for n in current], [offsets[n] for n in current], engine)
            for n in current:
                trainings[n].after_round(time.perf_counter() - began)
            try:
                asked = [(n, runners[n].after_round()) for n in current if runners]
                stops |= {n: stop.reason for n, stop in asked if stop}
                watch(round + 1, trainings[current[0]].newest)
                if interrupt.signal:
                    raise Interrupted(interrupt.signal)
            except BaseException:
                for n in current:
                    if trainings[n].folder:
                        trainings[n].save()
                raise
    return stops


def _play_round(trainings: Sequence[Training], offsets: Sequence[int], engine: Engine) -> None:
    """Train one round of all experiments; the clients of each begin at its offset among all clients."""
    method = trainings[0].experiment.method
    for exchange in range(method.exchanges):
        with explain_method_errors(method):
            jobs = [training.begin_exchange(exchange) for training in trainings]
            shifted = [_shift_job(job, offset) for own, offset in zip(jobs, offsets, strict=True) for job in own]
            trained = iter(train_cohorts(trainings[0].built.method, engine, shifted))
            for training, own in zip(trainings, jobs, strict=True):
                training.finish_exchange([next(trained) for _ in own])
    for training in trainings:
        training.end_round()


def _shift_job(job: CohortJob, offset: int) -> CohortJob:
    """Return the job with its clients numbered as among the clients of all experiments."""
    clients = [client + offset for client in job.clients]
    return job._replace(clients=clients, states=ShiftedStates(job.states, offset))


class ShiftedStates:
    """The clients' states of one experiment, by the clients' numbers among all experiments."""

    def __init__(self, states: ClientStates, offset: int) -> None:
        self.states, self.offset, self.initial = states, offset, states.initial

    def gather(self, clients: Sequence[int]) -> Any:
        """Return the states of `clients`, stacked."""
        return self.states.gather([client - self.offset for client in clients])

    def scatter(self, clients: Sequence[int], states: Any) -> None:
        """Store the stacked `states` of `clients`."""
        self.states.scatter([client - self.offset for client in clients], states)
