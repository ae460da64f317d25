"""Callbacks: code of yours that a run calls while it trains.

A callback is an object with any of the methods of `Callback`. Each takes a `TrainingView` and may return `STOP`.
Callbacks see copies, so nothing that they do changes what is trained.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from fedflat.core.metric import MainMetric
from fedflat.core.state import tree_map
from fedflat.errors import NOT_SHOWN, UserError, near_miss, shorten
from fedflat.methods.running_averages import with_server_statistics
from fedflat.runs.experiment import Experiment
from fedflat.runs.result import Result

if TYPE_CHECKING:
    from fedflat.runs.training import Training

EVENTS = ("on_start", "on_round", "on_evaluation", "on_checkpoint", "on_end")


@dataclass(frozen=True)
class Stop:
    """What a callback returns to end training. `STOP` is one without a reason."""

    reason: str = ""

    def because(self, reason: str) -> Stop:
        """Return a Stop with a reason, which the result keeps: STOP.because("the loss rises")."""
        return Stop(reason)


STOP = Stop()


@dataclass(frozen=True)
class TrainingView:
    """What callbacks see of a training. Rows, states and models are copies, made when they are asked for.

    Attributes:
        experiment: what is trained.
        round: the rounds that are trained, 0 at the start.
        seconds: the time that they took.
        folder: the run's folder, None if nothing is written.
        result: the result in `on_end`; None before, and if the run was interrupted.
    """

    experiment: Experiment
    round: int
    seconds: float
    folder: Path | None
    result: Result | None
    _training: Training = field(repr=False)

    @property
    def history(self) -> list[dict[str, Any]]:
        """All rows of metrics.jsonl so far, those of an interrupted run that is continued included."""
        return [_copy_row(row) for row in self._training.history]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of the last evaluation, one per seed; empty before the first."""
        return [_copy_row(row) for row in self._training.newest]

    @property
    def main_metric(self) -> MainMetric:
        """The task's main metric."""
        return self._training.built.task.main_metric()

    @property
    def server(self) -> Any:
        """The server's state, of the first seed; `server.params` is the global model as one vector."""
        return _copy_state(self._training.trials[0].server)

    @property
    def servers(self) -> dict[int, Any]:
        """The server's state of every seed."""
        return {trial.seed: _copy_state(trial.server) for trial in self._training.trials}

    @property
    def model(self) -> nn.Module:
        """The global model of the first seed, as a module on the CPU, in evaluation mode."""
        return self._module(self._training.trials[0].server)

    @property
    def models(self) -> dict[int, nn.Module]:
        """The global model of every seed."""
        return {trial.seed: self._module(trial.server) for trial in self._training.trials}

    def _module(self, server: Any) -> nn.Module:
        return with_server_statistics(self._training.built.task, server).module(server.params)


def _copy_state(state: Any) -> Any:
    return tree_map(lambda tensor: tensor.detach().clone(), state)


def _copy_row(row: dict[str, Any]) -> dict[str, Any]:
    return {key: copy.deepcopy(value) if isinstance(value, dict) else value for key, value in row.items()}


def view_training(training: Training, result: Result | None = None) -> TrainingView:
    """Return the view of a training at this moment."""
    folder = training.folder.path if training.folder else None
    return TrainingView(training.experiment, training.round, training.seconds, folder, result, training)


class Callback:
    """The five moments of a run. A callback may have any of these methods; it need not be of this class.

    A method that returns `STOP`, or `STOP.because("reason")`, ends training after the round. The run is then complete.
    In a run of several processes only rank 0 calls callbacks.
    """

    def on_start(self, view: TrainingView) -> Stop | None:
        """Called before the first round that is trained now; `view.round` is not 0 if a run is continued."""

    def on_evaluation(self, view: TrainingView) -> Stop | None:
        """Called after an evaluation; `view.metrics` are its rows."""

    def on_checkpoint(self, view: TrainingView) -> Stop | None:
        """Called after a checkpoint was written."""

    def on_round(self, view: TrainingView) -> Stop | None:
        """Called after every round, after `on_evaluation` and `on_checkpoint`."""

    def on_end(self, view: TrainingView) -> None:
        """Called once at the end, also after an error or Ctrl-C; `view.result` is then None."""


class CallbackError(UserError):
    """A callback raised an exception. The run was saved before."""


class CallbackRunner:
    """Calls the callbacks of a run on rank 0. All ranks learn whether one of them stops the run or has failed.

    Args:
        callbacks: the callbacks, in the order in which they are called.
        training: the run.
    """

    def __init__(self, callbacks: Sequence[Any], training: Training) -> None:
        self._callbacks, self._training = list(callbacks), training

    def start(self) -> Stop | None:
        """Call `on_start`."""
        return self._call(["on_start"])

    def after_round(self) -> Stop | None:
        """Call `on_evaluation` and `on_checkpoint`, if the round was evaluated and saved, and `on_round`."""
        evaluated, saved = self._training.is_evaluated, self._training.is_saved
        return self._call(["on_evaluation"] * evaluated + ["on_checkpoint"] * saved + ["on_round"])

    def end(self, result: Result | None) -> None:
        """Call `on_end` of every callback. If the run has a result, raise the first error of a callback."""
        failed = [_call_one(each, "on_end", view_training(self._training, result))[1] for each in self._own]
        if result and (error := next(filter(None, failed), None)):
            raise error

    @property
    def _own(self) -> list[Any]:
        """The callbacks that this process calls."""
        return self._callbacks if self._training.processes.leads else []

    def _call(self, events: Sequence[str]) -> Stop | None:
        """Call the callbacks for some events; return the first Stop. If one fails, save the run and raise its error."""
        if not self._callbacks:
            return None
        view = view_training(self._training)
        error: CallbackError | None = None

        def call() -> dict[str, Any]:
            nonlocal error
            stop = None
            for callback, event in ((callback, event) for event in events for callback in self._own):
                wish, error = _call_one(callback, event, view)
                stop = stop or wish
                if error:
                    break
            return {"stop": stop and stop.reason, "error": error and str(error)}

        outcome = self._training.processes.broadcast_value(call)
        if outcome["error"]:
            if self._training.folder and not self._training.is_saved:
                self._training.save()
            raise error or CallbackError(None, "rank 0", outcome["error"])
        return None if outcome["stop"] is None else Stop(outcome["stop"])


def _call_one(callback: Any, event: str, view: TrainingView) -> tuple[Stop | None, CallbackError | None]:
    """Call one method of one callback, if it has it; return its Stop, with a reason, and its error."""
    name, function = type(callback).__name__, getattr(callback, event, None)
    where = f"callback {name}.{event}, round {view.round}"
    try:
        wish = function(view) if function else None
        if wish is not None and not isinstance(wish, Stop):
            raise TypeError(f"must return fedflat.STOP or nothing, returned {shorten(repr(wish))}")
    except Exception as error:
        failure = CallbackError(None, where, f"{type(error).__name__}: {shorten(error)}")
        if isinstance(error, UserError):  # it says itself what is wrong
            failure = CallbackError(error.option, error.value, error.problem)
        failure.__cause__ = error
        return None, failure
    return (Stop(f"{name}: {wish.reason or f'in {event} of round {view.round}'}") if wish else None), None


def check_callbacks(callbacks: Any) -> list[Any]:
    """Return callbacks as a list; raise UserError if they are no list, or if one of them is not a callback."""
    if not isinstance(callbacks, Iterable):
        raise UserError("callbacks", NOT_SHOWN, f"must be a list: [{type(callbacks).__name__}(...)]")
    callbacks = list(callbacks)
    for callback in callbacks:
        _check_callback(callback)
    return callbacks


def _check_callback(callback: Any) -> None:
    """Raise UserError if an object has none of the methods of a callback, or one whose name is nearly right."""
    if isinstance(callback, type):
        raise UserError(
            "callbacks", NOT_SHOWN, f"{callback.__name__} is a class; give an object, {callback.__name__}()"
        )
    found = [name for name in EVENTS if callable(getattr(callback, name, None))]
    unknown = [name for name in dir(callback) if name.startswith("on_") and name not in EVENTS]
    if unknown or not found:
        near = near_miss(unknown[0], EVENTS, "on_") if unknown else ""
        what = f"has an unknown method {unknown[0]}{near}" if unknown else "has no method that is called"
        problem = f"{type(callback).__name__} {what}; a callback has any of {', '.join(EVENTS)}"
        raise UserError("callbacks", NOT_SHOWN, problem)
