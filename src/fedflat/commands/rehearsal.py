"""Whether methods fit the model and the data, tried on one batch before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping

from fedflat.core.local_training import example_messages
from fedflat.engine.sequential import client_batches
from fedflat.errors import UserError
from fedflat.runs.build import build_run
from fedflat.runs.experiment import Experiment


def rehearse(experiments: Mapping[str, Experiment]) -> None:
    """One step of every method, by the words that name it; methods of one setting share data and model."""
    assembly = build_run(next(iter(experiments.values())))
    w, batch = assembly.starts[0], next(client_batches(assembly.feed, 0, 0, 0, 0))
    for name, experiment in experiments.items():
        method = experiment.method
        try:
            method.step(assembly.task, w, batch, example_messages(method, w)[0], method.init_client(w))
        except UserError as error:
            named = str(error).startswith(f"method {name}:")
            raise error if named else UserError(f"method {name}: {error}") from None
