"""Kill runs with -9 at any file operation or moment, resume them, and compare them with runs that were not killed."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import fedflat as ff

PATIENCE = 120  # seconds after which a run counts as hanging
OPERATIONS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"}  # audit events of Python
TINY = ff.Experiment(
    rounds=4, clients=4, cohort=2, partition="iid", model="mlp", local_epochs=1, checkpoint_every=2, engine="sequential"
)
# What is run in one folder, stage after stage: runs, then a run with more rounds, with another seed, with both.
SCENARIOS = {
    "fedavg": [TINY],
    "fedgloss": [replace(TINY, method=ff.FedGloSS(warmup=2), seeds=(0, 1))],
    "scaffold, rarely evaluated": [replace(TINY, method=ff.SCAFFOLD(), eval_every=3, checkpoint_every=1)],
    "more rounds": [TINY, replace(TINY, rounds=6)],
    "more seeds": [replace(TINY, rounds=3), replace(TINY, rounds=3, seeds=(0, 1))],
    "more of both": [replace(TINY, rounds=2), replace(TINY, rounds=5, seeds=(0, 2))],
}


class Failure(Exception):
    """A run ended in an error, hung, or differs from the one that was not killed."""


def run_in_child(experiment: ff.Experiment, out: Path, kill_at: int = 0, seconds: float = 0.0) -> bool:
    """Resume a run in a child process; return whether it ended, False if it was killed.

    Args:
        experiment: what to train.
        out: the run's folder.
        kill_at: the number of the file operation in that folder at which the child kills itself; 0 for none.
        seconds: the time after which it is killed; 0 for never.
    """
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _run_and_exit(experiment, out, kill_at)
    timer = threading.Timer(seconds or PATIENCE, os.kill, (child, signal.SIGKILL))
    timer.start()
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # its number is not free while the timer may use it
    timer.cancel()
    timer.join()
    _, status = os.waitpid(child, 0)
    hung = not kill_at and not seconds and os.WIFSIGNALED(status)
    if hung or (os.WIFEXITED(status) and os.WEXITSTATUS(status)):
        raise Failure(f"{out}: {'hung' if hung else 'ended in an error'}")
    return os.WIFEXITED(status)


def _run_and_exit(experiment: ff.Experiment, out: Path, kill_at: int) -> None:
    """Train in this process, which ends in any case."""
    code, left = 1, kill_at

    def count(event: str, arguments: Any) -> None:
        nonlocal left
        if event in OPERATIONS and str(out) in str(arguments[0]):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        if kill_at:
            sys.addaudithook(count)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        ff.run(experiment, out, resume=True)
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    finally:
        os._exit(code)


def describe(out: Path) -> tuple[Any, ...]:
    """What two runs must have in common: metrics and result without times, every bit of the checkpoint, all files."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    timed = ("seconds", "client_steps_per_second")
    result = {key: v for key, v in json.loads((out / "result.json").read_text()).items() if key not in timed}
    tensors = load_file(out / "checkpoint" / "state.safetensors")
    bits = {name: t.numpy().tobytes() for name, t in tensors.items() if name != "counters"}
    files = sorted(str(path.relative_to(out)) for path in out.rglob("*"))
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in rows]
    return rows, result, bits, files, (out / "config.yaml").read_text()


class KillSuite:
    """Scenarios that are killed, each compared with the same scenario without kills. `kills` and `compared` count."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.kills, self.compared = folder, 0, 0
        self._whole: dict[str, tuple[Any, ...]] = {}
        torch.set_num_threads(1)  # a process with threads should not fork

    def play(self, seed: str) -> None:
        """Play one scenario, killed up to three times in each stage; raise Failure if it goes wrong."""
        chance = random.Random(seed)
        name = chance.choice(list(SCENARIOS))
        if name not in self._whole:
            self._whole[name] = self._play(name, None)
        if self._play(name, chance) != self._whole[name]:
            raise Failure(f"{name}: the folder differs from that of a run that was not killed")
        self.compared += 1

    def _play(self, name: str, chance: random.Random | None) -> tuple[Any, ...]:
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            out = Path(folder) / "run"
            for experiment in SCENARIOS[name]:
                for _ in range(3 if chance else 0):
                    self._kill(experiment, out, chance)
                run_in_child(experiment, out)
            return describe(out)

    def _kill(self, experiment: ff.Experiment, out: Path, chance: Any) -> None:
        by_operation = chance.random() < 0.8
        moment = {"kill_at": chance.randint(1, 25)} if by_operation else {"seconds": chance.uniform(0.01, 0.3)}
        self.kills += not run_in_child(experiment, out, **moment)
