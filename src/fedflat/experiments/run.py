"""Train an experiment from start, or from where it was interrupted, to its result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedflat.engine.memory import explain_out_of_memory
from fedflat.engine.processes import find_rank, join_processes, torchrun_restarts
from fedflat.engine.shared_folder import open_folder
from fedflat.experiments.assemble import assemble
from fedflat.experiments.config import dump
from fedflat.experiments.experiment import Experiment
from fedflat.experiments.patience import Patience
from fedflat.experiments.result import Result
from fedflat.experiments.training import Training, Watcher
from fedflat.probes.lookout import refuse


def run(
    experiment: Experiment, out: str | Path | None = None, resume: bool = False, watch: Watcher | None = None
) -> Result:
    """Train `experiment`. With `out`, leave a run folder there; `resume` continues an interrupted one.

    Under torchrun all processes train together, and all get the result; only rank 0 needs and touches `out`. Processes
    that torchrun had to start again resume. Ctrl-C ends a run in a folder after the round under way, which is saved.
    """
    place = find_rank(experiment.engine)
    if place.size > 1 and experiment.probes:
        refuse(experiment.probes)
    with join_processes(place, experiment.device) as world, explain_out_of_memory():
        assembly = assemble(experiment)
        for start in assembly.starts:
            world.spread(start)
        folder = (
            open_folder(world, Path(out), dump(experiment), resume or torchrun_restarts() > 0)
            if out is not None
            else None
        )
        try:
            training = Training(experiment, assembly, folder, world=world)
            return _finish(training, watch or (lambda round, rows: None))
        finally:
            if folder:
                folder.close()


def _finish(training: Training, watch: Watcher) -> Result:
    """Train to the end. Ctrl-C waits for a round's end and saves it where one process trains; many could not agree."""
    if training.folder is None or training.world.size > 1:
        return training.finish(watch)
    with Patience() as patience:

        def after_round(round: int, rows: list[dict[str, Any]]) -> None:
            watch(round, rows)
            if patience.pressed:
                training.save()
                raise KeyboardInterrupt

        return training.finish(after_round)
