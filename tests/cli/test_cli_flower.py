"""fedflat flower new: the app describes the experiment, and errors are one line. It does not need flwr."""

from __future__ import annotations

import ast
import dataclasses
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedflat as ff
from fedflat.cli import main
from fedflat.core.method import Method
from fedflat.flower.config import FederationOptions, from_run_config, run_config_spelling
from fedflat.runs.config import dump_experiment

WRAPPED = ff.ServerAdam(inner=ff.Private(inner=ff.FedSOL(rho=1e-5, perturb="all")), v0=None)


def flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of an app's configuration as Flower flattens it."""
    for name, value in values.items():
        yield from flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, value)]


def config_of(app: Path) -> dict[str, Any]:
    return dict(flat(tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]))


@pytest.mark.parametrize("method", [ff.FedAvg(), ff.FedSMOO(regularise=False), WRAPPED], ids=lambda m: type(m).__name__)
def test_the_app_describes_the_experiment(method: Method, tmp_path: Path) -> None:
    values = {"clients": 7, "seeds": (3,), "lr": 1e-4, "local_epochs": 5}
    experiment = ff.Experiment(method=method, dataset='npz:a "quoted" path.npz', **values)
    (tmp_path / "config.yaml").write_text(dump_experiment(experiment))
    assert main(["flower", "new", str(tmp_path / "app"), "--config", str(tmp_path / "config.yaml")]) == 0
    assert from_run_config(config_of(tmp_path / "app")) == (experiment, FederationOptions())


def test_the_app_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = tmp_path / "deep" / "app"
    assert main(["flower", "new", str(app)]) == 0
    assert capsys.readouterr().out == f"a Flower app in {app}; its README.md has the commands\n"
    names = {"pyproject.toml", "server_app.py", "client_app.py", "make_certificates.py", "flower.env", "README.md"}
    assert {path.name for path in app.iterdir()} == names | {".gitignore"}
    for path in app.glob("*.py"):
        ast.parse(path.read_text())
    components = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["components"]
    assert components == {"serverapp": "server_app:app", "clientapp": "client_app:app"}


def test_the_readme_explains_every_option(tmp_path: Path) -> None:
    main(["flower", "new", str(tmp_path / "app")])
    readme = (tmp_path / "app" / "README.md").read_text()
    assert "$(seq 0 19)" in readme
    assert "--nodes 20" in readme
    rows = dict(re.findall(r"^\| `federation\.(\w+)` \| (.+?) \|", readme, re.M))
    defaults = {
        field.name: str(field.default).removesuffix(".0").lower() for field in dataclasses.fields(FederationOptions)
    }
    assert rows == defaults


def test_the_readme_turns_security_on_and_telemetry_off(tmp_path: Path) -> None:
    main(["flower", "new", str(tmp_path / "app")])
    readme, env = ((tmp_path / "app" / name).read_text() for name in ("README.md", "flower.env"))
    for word in ("--enable-supernode-auth", "--ssl-certfile", "--root-certificates", "--auth-supernode-private-key"):
        assert word in readme
    assert "--insecure" not in readme
    assert "FLWR_TELEMETRY_ENABLED=0" in env


REFUSED = {
    "two seeds": ("seeds: [0, 1]", "--seeds 0 1: a federation trains one seed"),
    "method": ("method: {name: fedsoll}", "unknown (did you mean fedsol?)"),
    "option": ("rounds: -1", "--rounds -1"),
    "method of a module": (
        "method: {name: fedflat.core.method:Method}",
        "run config fedflat.core.method:Method: files and modules are not sent to nodes",
    ),
    "model of a file": ("model: my.py:Net", "my.py:Net: files and modules are not sent to nodes"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_experiments_that_cannot_be_federated(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert main(["flower", "new", str(tmp_path / "app"), "--config", str(tmp_path / "config.yaml")]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "app").exists()


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["flower", "new", str(tmp_path)]) == 2
    assert "exists and is not an empty folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_folder_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flower", "new"]) == 2
    assert "name the folder to write" in capsys.readouterr().err


CHANGES = {
    "unknown option": ({"federation.timeout": 5}, "unknown key 'federation.timeout'"),
    "near miss": ({"federation.round_timeot": 5}, "did you mean round_timeout?"),
    "range": ({"federation.round_timeout": -5}, "federation.round_timeout -5: must be more than 0"),
    "type": ({"federation.min_replies": "two"}, "federation.min_replies two: must be a whole number"),
    "experiment": ({"lr": 0}, "lr 0: must be more than 0"),
    "hyper-parameter": ({"method.name": "fedsam", "method.rho": -1}, "method.rho -1: must be"),
    "seed": ({"seed": -1}, "seed -1: must be"),
    "code on a node": ({"method.name": "fedavgm", "method.inner.name": "/tmp/a.py:A"}, "are not sent to nodes"),
    "secure": ({"federation.secure": True}, "weights examples: must be uniform with federation.secure"),
}


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_a_run_config_that_cannot_be_used(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    main(["flower", "new", str(tmp_path / "app")])
    config = config_of(tmp_path / "app") | change
    with pytest.raises(ff.UserError) as error:
        from_run_config(config)
    assert message in error.value.message(run_config_spelling(config))
