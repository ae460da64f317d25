"""Training round by round, for people who write their own loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor, nn

from fedflat.errors import UserError
from fedflat.runs.callbacks import TrainingView, view_training
from fedflat.runs.experiment import Experiment
from fedflat.runs.result import Result
from fedflat.runs.train import open_training
from fedflat.runs.training import Training


class Federation:
    """An experiment whose rounds your own loop calls. It trains, evaluates and writes what `run` does.

        with ff.Federation(experiment, out="runs/own") as federation:
            for round in federation:
                print(round, federation.evaluate(), federation.local_models.shape)
        print(federation.result.accuracy)

    The loop's body comes after each round. A loop that is left early leaves a run that can be continued, or ends it
    with `finish`. The last round is saved, also if the loop's body raises an exception. The properties return copies.

    Args:
        experiment: what to train.
        out: the run's folder; nothing is written if None.
        resume: whether to continue an interrupted run in `out`.
    """

    def __init__(self, experiment: Experiment, out: str | Path | None = None, resume: bool = False) -> None:
        self._result: Result | None = None
        self._stack = ExitStack()
        self._arguments = (experiment, out, resume)
        self._opened: Training | None = None
        self._in_round = False  # a round that an exception ends half-way is not saved

    def __enter__(self) -> Federation:
        self._opened = self._stack.enter_context(open_training(*self._arguments))
        self._opened.keeps_local_models = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            training = self._training
            if training.folder and not (self._result or self._in_round or training.is_saved):
                training.save()
        finally:
            suppressed = self._stack.__exit__(kind, value, trace)
        return suppressed

    @property
    def _training(self) -> Training:
        if self._opened is None:
            raise UserError(
                None, "Federation", "use it in a with block: with fedflat.Federation(experiment) as federation"
            )
        return self._opened

    def __iter__(self) -> Iterator[int]:
        """Train the remaining rounds; give the number of each, from 1, when it is over. After the last, `finish`.

        Where the loop's body has called `finish`, there are no more.
        """
        rounds = self._training.rounds()
        while not (self._training.done or self._result):
            self._in_round = True
            round = next(rounds)
            self._in_round = False
            yield round
        self.finish()

    def finish(self, reason: str = "the loop was left") -> Result:
        """Make the run complete after the last round that was trained, and return its result.

        Args:
            reason: why training ends before its last round, for `Result.stopped`.
        """
        if self._result is None:
            self._result = self._training.conclude(stopped=None if self._training.done else reason)
        return self._result

    @property
    def result(self) -> Result | None:
        """The result; None before the last round or `finish`."""
        return self._result

    @property
    def view(self) -> TrainingView:
        """What callbacks see after this round."""
        return view_training(self._training, self._result)

    @property
    def round(self) -> int:
        """The rounds that are trained."""
        return self._training.round

    @property
    def server(self) -> Any:
        """The server's state, of the first seed."""
        return self.view.server

    @property
    def model(self) -> nn.Module:
        """The global model of the first seed, as a module on the CPU."""
        return self.view.model

    @property
    def cohort(self) -> list[int]:
        """The clients that took part in the last round, of the first seed."""
        return self._last_round()[0]

    @property
    def local_models(self) -> Tensor:
        """Their models after local training, of the first seed, [clients, P]."""
        return self._last_round()[1]

    def _last_round(self) -> tuple[list[int], Tensor]:
        """Clients and models of the last round."""
        if self._training.last_cohort is None:
            raise UserError(None, "Federation", "no round was trained yet")
        job, trained = self._training.last_cohort
        if len(trained.ends) != len(job.clients):
            raise UserError(None, "Federation", "local models are seen only where one process trains them all")
        return list(job.clients), trained.ends.clone()

    def evaluate(self) -> list[dict[str, Any]]:
        """Return accuracy and loss after this round, one row per seed, as metrics.jsonl has them.

        A round that the experiment does not evaluate is evaluated, but not written.
        """
        return self.view.metrics if self._training.is_evaluated else self._training.evaluate()

    def save(self) -> None:
        """Write a checkpoint of this round."""
        if not self._training.folder:
            raise UserError(None, "Federation", "has no folder to save to; give one with out")
        self._training.save()
