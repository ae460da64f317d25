"""BlazeFL's CIFAR-10 job with fedflat: python benchmarks/peers/blazefl/job.py [--device cpu] [--made-up] [--loop 2].

100 of 100 clients, two of 200 shards each, 5 epochs of batch size 50 with lr 0.1, a CNN of 62,006 parameters, 5 rounds:
25,000 client steps. Written from this description; BlazeFL itself is not run. Prints one JSON line; `--loop N` adds the
time of a round of the plain PyTorch loop, the mean of N − 1 rounds after the first.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the modules that all peers share

from jobs import JOBS, made_up, measure

from fedflat.runs.result import software_versions

LOOP = Path(__file__).parents[1] / "plain_loop" / "job.py"


def loop_seconds(rounds: int, words: list[str]) -> float:
    """Seconds of a round of the plain loop."""
    command = [sys.executable, str(LOOP), "blazefl", "--rounds", str(rounds), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return float(json.loads(done.stdout.splitlines()[-1])["s_per_round"])


def main() -> None:
    """Measure and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--rounds", type=int, default=JOBS["blazefl"].rounds)
    parser.add_argument("--made-up", action="store_true", help="random images in place of CIFAR-10")
    parser.add_argument("--loop", type=int, default=0)
    given = parser.parse_args()
    job = made_up(JOBS["blazefl"]) if given.made_up else JOBS["blazefl"]
    row = measure("blazefl", replace(job, device=given.device, precision=given.precision, rounds=given.rounds))
    if given.loop:
        words = ["--device", given.device, *["--made-up"] * given.made_up]
        row["loop_ms_per_round"] = round(1000 * loop_seconds(given.loop, words), 2)
    print(json.dumps(row | software_versions()))


if __name__ == "__main__":
    main()
