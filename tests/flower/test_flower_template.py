"""The folder that `fedflat flower new` writes: what Flower sends of it to nodes, and what its scripts print."""

from __future__ import annotations

import dataclasses
import io
import subprocess
import sys
import zipfile
from pathlib import Path

from flwr.cli.build import build_fab_from_disk
from loopback import EXPERIMENT, Loopback, federate

import fedflat as ff
from fedflat.cli.flower import write_flower_app

SENT_TO_NODES = {
    "pyproject.toml",
    "README.md",
    "client_app.py",
    "server_app.py",
    "make_certificates.py",
    ".info/CONTENT",
}


def test_files_of_runs_stay_on_the_server(tmp_path: Path) -> None:
    """Flower's bundle for the nodes holds only the app, wherever in its folder runs were written."""
    app, experiment = tmp_path / "app", dataclasses.replace(EXPERIMENT, rounds=1)
    write_flower_app(app, experiment)
    federate(Loopback(experiment), experiment, app / "second")
    ff.run(experiment, out=app / "deep" / "simulated")
    (app / "second" / "personalise.json").write_text("{}")
    assert (app / "second" / "clients.jsonl").exists()
    assert (app / "deep" / "simulated" / "result.json").exists()
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(app))) as bundle:
        assert set(bundle.namelist()) == SENT_TO_NODES


def make_certificates(app: Path, *words: str) -> list[str]:
    """Run the script and return the lines that it prints."""
    words = (sys.executable, "make_certificates.py", *words)
    return subprocess.run(words, cwd=app, check=True, capture_output=True, text=True).stdout.splitlines()


def test_another_host_needs_new_make_certificates(tmp_path: Path) -> None:
    write_flower_app(tmp_path / "app", EXPERIMENT)
    made = make_certificates(tmp_path / "app", "--host", "one.example")
    old = (tmp_path / "app" / "keys" / "server.crt").read_bytes()
    lines = make_certificates(tmp_path / "app", "--host", "two.example", "--nodes", "1")
    assert lines[1:] == ["keys/node-0", "keys/node-0.pub"]
    assert lines[0].startswith("keys/ca.crt exists, so --host is ignored")
    assert (tmp_path / "app" / "keys" / "server.crt").read_bytes() == old
    for name in ("keys/ca.crt", "keys/server.crt", "keys/server.key"):
        assert name in lines[0]
        (tmp_path / "app" / name).unlink()
    assert make_certificates(tmp_path / "app", "--host", "two.example") == made
    assert (tmp_path / "app" / "keys" / "server.crt").read_bytes() != old


def test_more_keys_need_no_host(tmp_path: Path) -> None:
    write_flower_app(tmp_path / "app", EXPERIMENT)
    make_certificates(tmp_path / "app", "--nodes", "1")
    assert make_certificates(tmp_path / "app", "--nodes", "2") == ["keys/node-1", "keys/node-1.pub"]
