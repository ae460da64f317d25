"""Train an experiment, from the start or from a checkpoint, to its result."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedflat.core.batch import select_samples
from fedflat.core.local_training import example_messages
from fedflat.core.method_check import check_own_method
from fedflat.core.output_check import check_arithmetic, is_own_task
from fedflat.engine.memory import explain_out_of_memory
from fedflat.engine.processes import ProcessGroup, join_processes
from fedflat.engine.ranks import find_rank, torchrun_restarts
from fedflat.engine.rounds import evaluate
from fedflat.engine.sequential import client_batches
from fedflat.errors import UserError
from fedflat.methods import METHODS
from fedflat.methods.wrappers import innermost_method
from fedflat.probes import check_probes_without_classes, refuse_probes
from fedflat.runs.advice import print_advice
from fedflat.runs.build import BuiltRun, build_run, is_own_model
from fedflat.runs.build_engine import choose_engine, prepare_for_engine
from fedflat.runs.callbacks import CallbackRunner, check_callbacks
from fedflat.runs.config import dump_experiment
from fedflat.runs.experiment import Experiment
from fedflat.runs.folder import RunFolder, has_training
from fedflat.runs.interrupt import InterruptAfterRound, Interrupted
from fedflat.runs.read import finished_result
from fedflat.runs.result import Result
from fedflat.runs.shared_folder import SharedFolder, open_folder
from fedflat.runs.threads import restore_threads
from fedflat.runs.training import Training

Watcher = Callable[[int, list[dict[str, Any]]], None]  # called after each round with its number and the newest metrics


class AddedSeeds(Training):
    """Seeds that are added to a run and catch up with it. They go on if all diverge: the others may not have.

    `until` is the round that the run has reached.
    """

    until = 0

    @property
    def done(self) -> bool:
        """Whether they have caught up."""
        return self.round >= self.until


def check_method(experiment: Experiment, built: BuiltRun) -> None:
    """Try out a method, model and task that are not of this package, and any method where there are no class scores.

    Raises UserError with the rule that they break, or because a method or a probe compares class scores.
    """
    client = next(client for client, rows in enumerate(built.client_rows) if len(rows))
    batch = next(client_batches(built.client_data, experiment.seeds[0], 0, client, 0))
    engine = choose_engine(experiment, built.task, built.client_data.y.device)
    method, w = experiment.method, built.initial_params[0]
    if is_own_model(experiment) or is_own_task(built.task):
        check_arithmetic(built.task, w, select_samples(batch, slice(2)), engine != "sequential")
    check_own_method(method, built.task, w, batch, engine != "sequential")
    if is_own_task(built.task) and len(built.dataset.y_test):
        evaluate(built.task, w, built.client_data.test())
    if not built.task.class_scores:
        check_probes_without_classes(experiment.probes, built.task.name)
        try:
            method.step(built.task, w, batch, example_messages(method, w)[0], method.init_client(w))
        except UserError as error:
            if error.option != "task":
                raise
            raise UserError(None, f"method {METHODS.name_of(type(innermost_method(method)))}", error) from None


@contextmanager
def open_training(experiment: Experiment, out: str | Path | None, resume: bool) -> Iterator[Training]:
    """Build an experiment and open its folder while the `with` block lasts; the arguments are those of `run`."""
    with _join_processes(experiment) as processes, _open_training(experiment, out, resume, processes) as training:
        yield training


@contextmanager
def _join_processes(experiment: Experiment) -> Iterator[ProcessGroup]:
    if not isinstance(experiment, Experiment):
        example = "Experiment(method=FedSOL(), rounds=60)"
        raise UserError("experiment", experiment, f"must be a fedflat.Experiment, such as {example}")
    rank = find_rank(experiment.engine)
    if rank.size > 1 and experiment.probes:
        refuse_probes(experiment.probes)
    with join_processes(rank, experiment.device) as processes, explain_out_of_memory(), restore_threads():
        yield processes


@contextmanager
def _open_training(
    experiment: Experiment, out: str | Path | None, resume: bool, processes: ProcessGroup, watch: Watcher | None = None
) -> Iterator[Training]:
    """Build an experiment and open its folder; seeds that were added to the folder's run catch up with it first."""
    prepare_for_engine(experiment)
    built = build_run(experiment)
    for start in built.initial_params:
        processes.broadcast(start)
    check_method(experiment, built)
    if processes.leads:
        print_advice(experiment, built)
    resume = resume or torchrun_restarts() > 0
    config, data = dump_experiment(experiment), built.dataset.fingerprint
    folder = None if out is None else open_folder(processes, Path(out), config, resume, data)
    try:
        if folder:
            _catch_up(experiment, built, folder, processes, watch)
        yield Training(experiment, built, folder, processes=processes)
    finally:
        if folder:
            folder.close()


def _catch_up(
    experiment: Experiment,
    built: BuiltRun,
    folder: RunFolder | SharedFolder,
    processes: ProcessGroup,
    watch: Watcher | None,
) -> None:
    """Train seeds that the checkpoint lacks up to its round, in a folder of their own, and add them to it.

    So the old seeds keep their bits, and the new ones have those of a run of their own.
    """
    round, added = folder.added_seeds()
    if not added:
        return
    alone = dataclasses.replace(experiment, seeds=tuple(added))
    starts = dict(zip(experiment.seeds, built.initial_params, strict=True))
    part = built._replace(initial_params=[starts[seed] for seed in added])
    path = (folder.path or Path()) / "added-seeds"
    if not processes.broadcast_value(lambda: finished_result(path, alone) is not None):
        own = open_folder(processes, path, dump_experiment(alone), True, built.dataset.fingerprint)
        try:
            _catch_up(alone, part, own, processes, watch)
            training = AddedSeeds(alone, part, own, processes=processes)
            training.until = round
            train_to_end(training, watch or (lambda round, rows: None))
        finally:
            own.close()
    folder.add_seeds(path)


def run(
    experiment: Experiment,
    out: str | Path | None = None,
    resume: bool = False,
    watch: Watcher | None = None,
    callbacks: Sequence[Any] = (),
) -> Result:
    """Train an experiment and return its result.

    Under torchrun or srun all processes train together, and all get the result; only rank 0 reads and writes `out`.
    Ctrl-C ends a run that has a folder after the round under way, which is saved; a second Ctrl-C ends it at once.

    Args:
        experiment: what to train.
        out: the folder for configuration, metrics, checkpoints and result; nothing is written if None.
        resume: whether to continue the run in `out`: to its last round, or to more rounds or seeds than it was begun
            with. The result of a complete run is read. Processes that torchrun starts again always continue.
        watch: called after each round with its number, from 1, and the rows of the last evaluation.
        callbacks: objects with any of the methods of `Callback`, such as EarlyStopping(patience=20).

    Raises:
        UserError: an option cannot be used, or the folder belongs to another run.
        CallbackError: a callback raised an exception; the run is saved.
    """
    callbacks = check_callbacks(callbacks)
    with _join_processes(experiment) as processes:
        if resume and out is not None and (result := _find_result(experiment, Path(out), processes)):
            return result
        with _open_training(experiment, out, resume, processes, watch) as training:
            return train_to_end(training, watch or (lambda round, rows: None), callbacks)


def _find_result(experiment: Experiment, out: Path, processes: ProcessGroup) -> Result | None:
    """The result of a folder to resume if its run is complete; prints a line if there is nothing to resume."""

    def read() -> dict[str, Any] | None:
        result = finished_result(out, experiment)
        if not has_training(out):
            print(f"{out}: nothing to resume, starting", file=sys.stderr)
        return dataclasses.asdict(result) if result else None

    values = processes.broadcast_value(read)
    return Result(**values) if values else None


def train_to_end(training: Training, watch: Watcher, callbacks: Sequence[Any] = ()) -> Result:
    """Train the remaining rounds. In one process with a folder, Ctrl-C or SIGTERM first saves the round under way.

    Args:
        training: the run.
        watch: called after each round.
        callbacks: called as `Callback` says.
    """
    runner, result = CallbackRunner(callbacks, training), None
    one_process = training.folder is not None and training.processes.size == 1
    try:
        with InterruptAfterRound(one_process) as interrupt:
            stop = runner.start()
            for round in () if stop else training.rounds():
                watch(round, training.newest)
                if stop := runner.after_round():
                    break
                if interrupt.signal:
                    training.save()
                    raise Interrupted(interrupt.signal)
            result = training.conclude(stopped=stop.reason if stop else None)
    finally:
        runner.end(result)
    return result
