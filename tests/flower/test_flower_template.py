"""The folder that `fedflat flower new` writes: what of it travels to nodes, and what its scripts say."""

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

TRAVELS = {"pyproject.toml", "README.md", "client_app.py", "server_app.py", "make_certificates.py", ".info/CONTENT"}


def test_records_of_runs_stay_on_the_server(tmp_path: Path) -> None:
    """What Flower bundles for the nodes is the app alone, wherever in its folder runs were written."""
    app, experiment = tmp_path / "app", dataclasses.replace(EXPERIMENT, rounds=1)
    write_flower_app(app, experiment)
    federate(Loopback(experiment), experiment, app / "second")
    ff.run(experiment, out=app / "deep" / "simulated")
    (app / "second" / "personalise.json").write_text("{}")
    assert (app / "second" / "clients.jsonl").exists()
    assert (app / "deep" / "simulated" / "result.json").exists()
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(app))) as bundle:
        assert set(bundle.namelist()) == TRAVELS


def certificates(app: Path, *words: str) -> list[str]:
    """What the script says."""
    words = (sys.executable, "make_certificates.py", *words)
    return subprocess.run(words, cwd=app, check=True, capture_output=True, text=True).stdout.splitlines()


def test_another_host_needs_new_certificates(tmp_path: Path) -> None:
    write_flower_app(tmp_path / "app", EXPERIMENT)
    made = certificates(tmp_path / "app", "--host", "one.example")
    old = (tmp_path / "app" / "keys" / "server.crt").read_bytes()
    said = certificates(tmp_path / "app", "--host", "two.example", "--nodes", "1")
    assert said[1:] == ["keys/node-0", "keys/node-0.pub"]
    assert said[0].startswith("keys/ca.crt exists, so --host is ignored")
    assert (tmp_path / "app" / "keys" / "server.crt").read_bytes() == old
    for name in ("keys/ca.crt", "keys/server.crt", "keys/server.key"):
        assert name in said[0]
        (tmp_path / "app" / name).unlink()
    assert certificates(tmp_path / "app", "--host", "two.example") == made
    assert (tmp_path / "app" / "keys" / "server.crt").read_bytes() != old


def test_more_keys_need_no_host(tmp_path: Path) -> None:
    write_flower_app(tmp_path / "app", EXPERIMENT)
    certificates(tmp_path / "app", "--nodes", "1")
    assert certificates(tmp_path / "app", "--nodes", "2") == ["keys/node-1", "keys/node-1.pub"]
