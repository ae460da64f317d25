"""Train an experiment from start, or from where it was interrupted, to its result."""

from __future__ import annotations

from pathlib import Path

from fedflat.engine.memory import explained
from fedflat.engine.place import find_place, restarts
from fedflat.engine.shared_folder import open_folder
from fedflat.engine.world import joined
from fedflat.experiments.assemble import assemble
from fedflat.experiments.config import dump
from fedflat.experiments.experiment import Experiment
from fedflat.experiments.result import Result
from fedflat.experiments.training import Training, Watcher
from fedflat.probes.lookout import refuse


def run(
    experiment: Experiment, out: str | Path | None = None, resume: bool = False, watch: Watcher | None = None
) -> Result:
    """Train `experiment`. With `out`, leave a run folder there; `resume` continues an interrupted one.

    Under torchrun all processes train together, and all get the result; only rank 0 needs and touches `out`. Processes
    that torchrun had to start again resume.
    """
    place = find_place(experiment.engine)
    if place.size > 1 and experiment.probes:
        refuse(experiment.probes)
    with joined(place, experiment.device) as world, explained():
        assembly = assemble(experiment)
        for start in assembly.starts:
            world.spread(start)
        folder = open_folder(world, Path(out), dump(experiment), resume or restarts() > 0) if out is not None else None
        try:
            training = Training(experiment, assembly, folder, world=world)
            return training.finish(watch or (lambda round, rows: None))
        finally:
            if folder:
                folder.close()
