"""Around a federation: keys, own models, errors of the user, records, and simulations without Flower."""

from __future__ import annotations

import dataclasses
import ipaddress
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import torch
from cryptography import x509
from loopback import EXPERIMENT, Loopback, assert_same, federate, run_server_app, simulate
from torch import Tensor, nn

import fedflat as ff
from fedflat.cli.flower import write_flower_app
from fedflat.flower.app import client_app
from fedflat.flower.messages import MalformedRecord, record_to_state, record_to_tensors, tensors_to_record

WITHOUT_FLOWER = """
import sys
for name in ("flwr", "dp_accounting", "cryptography"):
    sys.modules[name] = None
import fedflat
method = fedflat.Private(inner=fedflat.SCAFFOLD())
print(fedflat.run(fedflat.Experiment(method=method, rounds=1, model="mlp", local_epochs=1, engine="sequential")).rounds)
"""


def test_simulations_need_no_flower() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_FLOWER], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_simulations_do_not_import_flower() -> None:
    words = "import fedflat, fedflat.cli, fedflat.cli.flower, sys; print('flwr' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")


def keys_of(app: Path, *words: str) -> dict[str, bytes]:
    subprocess.run([sys.executable, "make_certificates.py", *words], cwd=app, check=True, capture_output=True)
    return {path.name: path.read_bytes() for path in (app / "keys").iterdir()}


def test_keys(tmp_path: Path) -> None:
    write_flower_app(tmp_path / "app", EXPERIMENT)
    made = keys_of(tmp_path / "app", "--host", "server.example", "10.1.2.3", "--nodes", "2")
    assert made.keys() == {"ca.crt", "server.crt", "server.key", "node-0", "node-0.pub", "node-1", "node-1.pub"}
    names = x509.load_pem_x509_certificate(made["server.crt"]).extensions
    hosts = names.get_extension_for_class(x509.SubjectAlternativeName).value
    assert hosts.get_values_for_type(x509.DNSName) == ["server.example", "localhost"]
    assert hosts.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address(a) for a in ("10.1.2.3", "127.0.0.1")]
    for name in ("server.key", "node-0", "node-1"):
        assert (tmp_path / "app" / "keys" / name).stat().st_mode & 0o077 == 0
    assert 'address = "server.example:8000"' in (tmp_path / "app" / ".flwr" / "config.toml").read_text()


def test_more_nodes_later(tmp_path: Path) -> None:
    write_flower_app(tmp_path / "app", EXPERIMENT)
    first, then = keys_of(tmp_path / "app", "--nodes", "1"), keys_of(tmp_path / "app", "--nodes", "2")
    assert then.keys() - first.keys() == {"node-1", "node-1.pub"}
    assert {name: then[name] for name in first} == first


class OwnModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1))


def test_own_model(tmp_path: Path) -> None:
    experiment = dataclasses.replace(EXPERIMENT, method=ff.SCAFFOLD(), model=OwnModel)
    grid = Loopback(dataclasses.replace(experiment, model="auto"))
    grid.app = client_app(OwnModel)
    assert_same(federate(grid, experiment, tmp_path / "run"), simulate(experiment))


@pytest.mark.usefixtures("tracebacks")
def test_probes_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    grid = Loopback(EXPERIMENT)
    with pytest.raises(ff.UserError) as error:
        run_server_app(grid, EXPERIMENT, tmp_path / "run", probes="drift", probe_every=2)
    assert str(error.value).startswith("probes drift: local models are seen only where one process")
    assert traceback.format_exception(error.value) == [f"fedflat.flower.config.RunConfigError: {error.value}\n"]
    assert grid.sent == 0
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("tracebacks")
def test_a_folder_that_cannot_be_used_is_named_by_its_key(tmp_path: Path) -> None:
    """Flower's run configuration has federation.out, not --out."""
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(ff.UserError) as error:
        run_server_app(Loopback(EXPERIMENT), EXPERIMENT, tmp_path)
    assert str(error.value) == f"federation.out {tmp_path}: holds a complete run; choose another folder"


def test_no_app_is_written_for_probes(tmp_path: Path) -> None:
    with pytest.raises(ff.UserError, match=r"probes=.*drift.*norm.*: local models are seen only where one process"):
        write_flower_app(tmp_path / "app", dataclasses.replace(EXPERIMENT, probes=("drift", "norm")))
    assert not (tmp_path / "app").exists()


def test_tensors_arrive_bit_for_bit() -> None:
    sent = {"a": torch.randn(3, 4), "b.c": torch.tensor(1.5), "d": torch.arange(5), "e": torch.empty(0)}
    back = record_to_tensors(tensors_to_record(sent))
    assert list(back) == list(sent)
    assert all(torch.equal(back[name], tensor) and back[name].dtype == tensor.dtype for name, tensor in sent.items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int32])
def test_other_types_are_refused_before_they_are_sent(dtype: torch.dtype) -> None:
    with pytest.raises(MalformedRecord, match="allowed are float32 and int64"):
        tensors_to_record({"w": torch.zeros(2, dtype=dtype)})


def test_a_message_of_another_model_is_refused() -> None:
    with pytest.raises(MalformedRecord, match=r"params is float32 \[3\] instead of float32 \[4\]"):
        record_to_state(tensors_to_record({"params": torch.zeros(3)}), ff.Message(torch.zeros(4)))
