"""Run by torchrun: a callback stops a run on all ranks, and another one fails. Prints what every rank saw."""

from __future__ import annotations

import os
import sys
from typing import Any

import fedflat as ff

EXPERIMENT = ff.Experiment(
    rounds=4,
    clients=5,
    holdout_clients=0.2,
    cohort=4,
    partition="iid",
    model="mlp",
    local_epochs=1,
    device="cpu",
)


class Second:
    """Stops, or fails, in the second round; counts the rounds that it was called in."""

    def __init__(self, fails: bool) -> None:
        self.fails, self.calls = fails, 0

    def on_round(self, view: ff.TrainingView) -> Any:
        self.calls += 1
        if view.round == 2:
            return 1 / 0 if self.fails else ff.STOP.because("enough")
        return None


stops = Second(fails=False)
result = ff.run(EXPERIMENT, out=f"{sys.argv[1]}/stopped", callbacks=[stops])
held_out = result.held_out_clients and result.held_out_clients["mean"]
print(f"rank {os.environ['RANK']}: {result.rounds} {result.stopped} {stops.calls} {held_out}\n", end="", flush=True)
ff.run(EXPERIMENT, out=f"{sys.argv[1]}/failed", callbacks=[Second(fails=True)])
