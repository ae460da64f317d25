"""A federation of processes on this machine: a SuperLink and SuperNodes with TLS and node keys, on 127.0.0.1."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import fedflat as ff
from fedflat.cli.flower import PROJECT, flat_toml, write_flower_app
from fedflat.flower.config import FederationOptions as Options
from fedflat.flower.config import to_run_config

TIMEOUT = 1500.0  # seconds before a test gives up
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "OMP_NUM_THREADS": "1",
}


def wait_until(condition: Callable[[], object], what: str, logs: Callable[[], str]) -> None:
    """Wait until a condition is true; fail with the logs after the timeout."""
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen\n{logs()}"
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def descendants(number: int) -> list[int]:
    """Return the processes that a process started, directly or indirectly."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    children = [child for child, parent in parents.items() if parent == number]
    return [each for child in children for each in [child, *descendants(child)]]


class Federation:
    """The processes of a federation by name. `folder` holds all files and is the working directory."""

    def __init__(self, folder: Path, nodes: int = 4) -> None:
        self.folder, self.port = folder, free_port()
        self.env = os.environ | QUIET | {"FLWR_HOME": str(folder / ".flwr")}
        self.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        write_flower_app(folder, ff.Experiment())
        self.call(sys.executable, "make_certificates.py", "--nodes", str(nodes))
        connection = folder / ".flwr" / "config.toml"
        connection.write_text(connection.read_text().replace(":8000", f":{self.port}"))

    def call(self, *words: str) -> str:
        """Run a command and return its output."""
        done = subprocess.run(words, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start a process that writes NAME.log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                words, cwd=self.folder, env=self.env, stdout=log, stderr=subprocess.STDOUT
            )
        return self.processes[name]

    def kill(self, name: str) -> None:
        """Kill a process and all that it started."""
        process = self.processes.pop(name)
        for number in [process.pid, *descendants(process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for name in list(self.processes):
            self.kill(name)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def logs(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')}" for path in self.folder.glob("*.log"))

    def start_link(self) -> None:
        keys = [
            "--ssl-ca-certfile",
            "keys/ca.crt",
            "--ssl-certfile",
            "keys/server.crt",
            "--ssl-keyfile",
            "keys/server.key",
        ]
        address = ["--host", "127.0.0.1", "--port", str(self.port), "--database", "state.db"]
        more = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        self.start("link", "flower-superlink", *address, *keys, *more)
        wait_until(self._listening, "the SuperLink's start", self.logs)

    def _listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def register(self, *nodes: int) -> None:
        for k in nodes:
            self.call("flwr", "supernode", "register", f"keys/node-{k}.pub", "fedflat")

    def node_words(self, k: int, *security: str) -> list[str]:
        config = f'partition-id={k} state="states" faults="{self.folder / "faults"}"'
        words = ["flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())]
        return [*words, "--node-config", config, *security]

    def start_node(self, k: int) -> None:
        """Start a node as the README says: after a kill it is accepted again once its heartbeats are missed."""
        keys = ["--root-certificates", "keys/ca.crt", "--auth-supernode-private-key", f"keys/node-{k}"]
        self.start(f"node-{k}", "sh", "-c", 'until "$@"; do sleep 1; done', "sh", *self.node_words(k, *keys))

    def app(self, name: str, experiment: ff.Experiment, client_app: str | None = None, **options: object) -> Path:
        """Write the app of one run and return the run's folder, runs/NAME."""
        folder, out = self.folder / "apps" / name, self.folder / "runs" / name
        write_flower_app(folder, experiment)
        config = to_run_config(experiment, Options(out=str(out), **options))  # type: ignore[arg-type]
        (folder / "pyproject.toml").write_text(PROJECT.replace("federation", name) + flat_toml(config))
        if client_app:
            (folder / "client_app.py").write_text(client_app)
        return out

    def run(self, name: str) -> str:
        """Start a run and return its number."""
        output = self.call("flwr", "run", f"apps/{name}", "fedflat")
        return re.findall(r"started run (\d+)", output)[0]
