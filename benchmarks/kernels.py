"""The convolution over lanes on one GPU: correctness against float64 and microseconds against grouped convolutions.

    PYTHONPATH=src python benchmarks/kernels.py [--model resnet] [--seconds 80] [--workers 12] [--out kernels.json]

For the layers of four models and bf16 and tf32 numbers it checks each operator, times it with several tile sizes
(replays of a CUDA graph) and prints, per operator: the time with the built-in tiles, the best tiles and their time,
and the time of cuDNN's grouped convolution, layout changes of the operands not counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from kernel_cases import DTYPES, Layer, Operands, Run, candidates, library, operands, rows
from torch import Tensor

from fedflat.engine.kernels import launch
from fedflat.engine.kernels import tiles as tile_sizes
from fedflat.engine.kernels.tiles import Tiles

TOLERANCE = {"bf16": 1e-2, "tf32": 2e-3}


class Job(NamedTuple):
    """One operator of a layer with one kind of number, and the tiles to try (the first: the built-in choice)."""

    layer: Layer
    operator: str
    dtype: str
    programs: int = tile_sizes.PROGRAMS
    tiles: Tiles | None = None


def ours(job: Job, t: Operands) -> Run:
    """The operator through our kernels."""
    pad, kernel = [job.layer.padding] * 2, [job.layer.kernel] * 2
    tile_sizes.PROGRAMS = job.programs
    return {
        "conv": lambda: launch.launch_conv(t.x, t.w, t.b, pad, job.tiles),
        "input_grad": lambda: launch.launch_input_grad(t.g, t.w, pad, job.tiles),
        "weight_grad": lambda: launch.launch_weight_grad(t.g, t.x, kernel, pad, job.tiles),
        "conv_pool": lambda: launch.launch_conv_pool(t.x, t.w, t.b, pad, job.tiles)[0],
        "pool_weight_grad": lambda: launch.launch_pool_weight_grad(t.pooled, t.corner, t.x, kernel, pad, job.tiles),
    }[job.operator]


def grouped(job: Job, t: Operands) -> Run:
    """The operator as a grouped convolution of operands already in its layout."""
    x, g, pooled, corner = (s.transpose(0, 1).flatten(1, 2).contiguous() for s in (t.x, t.g, t.pooled, t.corner))
    w, b = (s.flatten(0, 1).contiguous() for s in (t.w, t.b))
    return library(job.operator, Operands(x, w, b, g, pooled, corner), 1, job.layer.padding, 1, job.layer.lanes)


def reference(job: Job, t: Operands) -> dict[int, Tensor]:
    """The operator on the first and the last lane in float64."""
    lanes = {lane: Operands(*(s[lane].double() for s in t[:5]), t.corner[lane]) for lane in (0, -1)}
    return {lane: library(job.operator, s, 1, job.layer.padding)() for lane, s in lanes.items()}


def error(job: Job, t: Operands, expected: dict[int, Tensor]) -> float:
    """The largest relative error of a lane, computed where NaN was stored before; NaN where a number is not finite."""
    run = ours(job, t)
    torch.full_like(run(), torch.nan)
    got = run()
    errors = [float((got[lane] - e).norm() / e.norm()) for lane, e in expected.items()]
    return max(errors) if bool(torch.isfinite(got).all()) else float("nan")


def microseconds(run: Run, repeats: int = 10) -> float:
    """Median time of one call over five replays of a graph of `repeats` calls."""
    for _ in range(2):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            run()
    times = []
    for _ in range(6):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        graph.replay()
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after) * 1000 / repeats)
    return statistics.median(times[1:])


def all_jobs(chosen: Iterable[tuple[Layer, str, str]]) -> list[Job]:
    """Every operator with every candidate."""
    return [Job(*row, *choice) for row in chosen for choice in candidates(*row)]


def compile_share(jobs: list[Job]) -> None:
    """Run every job once, so that its kernels are in Triton's cache."""
    for job in jobs:
        try:
            ours(job, operands(job.layer, job.dtype))()
        except Exception as problem:  # reported where it is measured
            print("compile:", short(problem), file=sys.stderr)


def short(problem: Exception) -> str:
    return f"{type(problem).__name__}: {' '.join(str(problem).split())[:160]}"


def compile_all(workers: int, chosen: Sequence[str]) -> None:
    """Compile in parallel processes; what they do not finish is compiled when it is measured."""
    command = [sys.executable, __file__, *chosen, "--of", str(workers), "--share"]
    running = [subprocess.Popen([*command, str(i)], stderr=subprocess.DEVNULL) for i in range(workers)]
    for process in running:
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()


def attempt(job: Job, t: Operands, expected: dict[int, Tensor]) -> dict[str, object]:
    """Error and time of one job, or what went wrong."""
    record: dict[str, object] = {"tiles": list(job.tiles or ()), "programs": job.programs}
    try:
        record["error"] = error(job, t, expected)
        if not record["error"] < TOLERANCE[job.dtype]:
            return record | {"problem": f"WRONG: relative error {record['error']}"}
        return record | {"us": microseconds(ours(job, t))}
    except Exception as problem:  # one bad tile must not lose the rest of the table
        return record | {"problem": short(problem)}


def cudnn_time(job: Job, t: Operands) -> float:
    """Microseconds of the grouped convolution, NaN where it fails."""
    try:
        return microseconds(grouped(job, t), repeats=4)
    except Exception as problem:
        print("  grouped:", short(problem))
        return float("nan")


def measure(layer: Layer, operator: str, dtype: str, deadline: float) -> dict[str, object]:
    """All candidates of one operator, or only the built-in one when time is short; prints a line."""
    t, results = operands(layer, dtype), []
    expected = reference(Job(layer, operator, dtype), t)
    for choice in candidates(layer, operator, dtype):
        if results and time.monotonic() > deadline:
            break
        results.append(attempt(Job(layer, operator, dtype, *choice), t, expected))
        if "problem" in results[-1]:
            print("  ", layer.name, operator, dtype, results[-1]["tiles"], results[-1]["problem"], flush=True)
    cudnn = cudnn_time(Job(layer, operator, dtype), t)
    timed = [r for r in results if "us" in r]
    best = min(timed, key=lambda r: r["us"]) if timed else {"us": float("nan"), "tiles": [], "programs": 0}
    built_in, fault = results[0].get("us", float("nan")), results[0].get("error", float("nan"))
    chosen = f"{'/'.join(map(str, best['tiles'])) or 'built-in'} ({best['programs']})"
    print(
        f"{dtype} {layer.name:13}{operator:12}{built_in:8.1f} us{layer.flop / built_in / 1e6:7.0f} TF/s | best "
        f"{best['us']:7.1f} us{layer.flop / best['us'] / 1e6:6.0f} TF/s {chosen:26} | cuDNN {cudnn:8.1f} us "
        f"{cudnn / built_in:5.1f}x | error {fault:.1e}",
        flush=True,
    )
    return {"layer": layer._asdict(), "operator": operator, "dtype": dtype, "cudnn_us": cudnn, "ours": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=80, help="after this, measure only the built-in tiles")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile")
    parser.add_argument("--out", type=Path, help="write all measurements to this JSON file")
    parser.add_argument("--model", default="", help="the layers of one model: fedavg, lenet, pfl or resnet")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--of", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    chosen = list(rows(given.model, given.dtypes))
    if given.share is not None:
        compile_share(all_jobs(chosen)[given.share :: given.of])
        return
    deadline = time.monotonic() + given.seconds
    compile_all(given.workers, ["--model", given.model, "--dtypes", *given.dtypes])
    print(
        f"compiled {len(all_jobs(chosen))} kernels in {given.seconds - deadline + time.monotonic():.0f} s", flush=True
    )
    measured = []
    for row in chosen:
        try:
            measured.append(measure(*row, deadline))
        except Exception as problem:
            print("  ", *row, short(problem), flush=True)
        if given.out:
            given.out.write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
