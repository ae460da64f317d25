"""The folder that `fedflat flower new` writes: what of it travels to nodes, and what its scripts say."""

from __future__ import annotations

import dataclasses
import io
import zipfile
from pathlib import Path

from flwr.cli.build import build_fab_from_disk
from loopback import EXPERIMENT, Loopback, federate

import fedflat as ff
from fedflat.flower.new import write_app

TRAVELS = {"pyproject.toml", "README.md", "client_app.py", "server_app.py", "make_certificates.py", ".info/CONTENT"}


def test_records_of_runs_stay_on_the_server(tmp_path: Path) -> None:
    """What Flower bundles for the nodes is the app alone, wherever in its folder runs were written."""
    app, experiment = tmp_path / "app", dataclasses.replace(EXPERIMENT, rounds=1)
    write_app(app, experiment)
    federate(Loopback(experiment), experiment, app / "second")
    ff.run(experiment, out=app / "deep" / "simulated")
    (app / "second" / "personalise.json").write_text("{}")
    assert (app / "second" / "clients.jsonl").exists()
    assert (app / "deep" / "simulated" / "result.json").exists()
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(app))) as bundle:
        assert set(bundle.namelist()) == TRAVELS
