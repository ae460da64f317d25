"""Callbacks of a run of two processes: rank 0 calls them, and all ranks stop or fail together."""

from __future__ import annotations

import json
from pathlib import Path

from torchrun_processes import launched, torchrun

import fedflat as ff
from fedflat.runs.checkpoint import load_tensors

SCRIPT = str(Path(__file__).with_name("callback_ranks.py"))


def test_all_ranks_stop_together_and_a_failure_is_saved(tmp_path: Path) -> None:
    with launched(torchrun(2, SCRIPT, str(tmp_path))) as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode != 0
    held_out = json.loads((tmp_path / "stopped" / "result.json").read_text())["held_out_clients"]
    assert held_out["clients"] == 1
    seen = [f"rank {rank}: 2 Second: enough {calls} {held_out['mean']}" for rank, calls in ((0, 2), (1, 0))]
    assert sorted(out.splitlines()) == seen
    assert "callback Second.on_round, round 2: ZeroDivisionError: division by zero" in err
    assert ff.load_model(tmp_path / "stopped")
    tensors = load_tensors(tmp_path / "failed" / "checkpoint" / "state.safetensors")
    assert tensors
    assert int(tensors["counters"][0]) == 2
