"""Feed commands with configurations, flags, run folders and data files that are nearly right.

Whatever is wrong with them has to be said in one line: no traceback, no internal error, no hang.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

import fedflat as ff
from fedflat.cli import main
from fedflat.data.load import load_dataset
from fedflat.errors import UserError
from fedflat.runs.config import dump_experiment

PATIENCE = 60  # seconds after which a case counts as hanging
TINY = ff.Experiment(
    rounds=2, clients=4, cohort=2, partition="iid", model="mlp", local_epochs=1, checkpoint_every=1, engine="sequential"
)
VALUES = (
    "",
    "null",
    "true",
    "-1",
    "0",
    "1e400",
    ".nan",
    "-.inf",
    "0x" + "f" * 40,
    "9" * 400,
    "1:59:59.5",
    "2026-01-01",
    "!!int ''",
    "!!binary x",
    "!!python/name:os.system",
    "[]",
    "[0, [1]]",
    "{a: 1}",
    "'\\0'",
    '"\\ud800"',
    "é" * 50,
    "fedsol",
    "digits",
    "npz:/nowhere.npz",
    "folder:/dev",
    "own:x-0",
    "../..",
    "&a [1]",
    "*a",
    "{name: fedavgm, inner: {name: fedavgm}}",
    "- x",
    "%",
    "{",
)
ODD_JSON = (b"", b"null", b"[]", b"{}", b"1e999", b'{"round": "x"}', b"[" * 5000, b"\xff\xfe", b'{"seeds": 3}')


class FuzzSuite:
    """Cases of wrong input. `cases` counts them; the folder holds a run and data sets, copies of which are damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cases = folder / "fuzz", 0
        self.folder.mkdir()
        self.run = self.folder / "run"
        ff.run(TINY, self.run)
        self._write_data()

    def _write_data(self) -> None:
        x = np.random.default_rng(0).random((12, 4), np.float32)
        np.savez(self.folder / "data.npz", x=x[:8], y=np.arange(8) % 2, x_test=x[8:], y_test=np.arange(4) % 2)
        for part in ("train/a", "train/b", "test/a", "test/b"):
            (self.folder / "images" / part).mkdir(parents=True)
            Image.fromarray(np.zeros((8, 8), np.uint8)).save(self.folder / "images" / part / "0.png")

    def play(self, seed: str) -> None:
        """Play one case; raise AssertionError with what was printed if it is not refused, or accepted, properly."""
        chance = random.Random(seed)
        kind: Callable[[random.Random], None] = chance.choice([self._config, self._flags, self._run_folder, self._data])
        self.cases += 1
        handler = signal.signal(signal.SIGALRM, _hang)
        signal.alarm(PATIENCE)
        try:
            kind(chance)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, handler)

    def _config(self, chance: random.Random) -> None:
        """One or two entries of a configuration, also of the method's, have odd values or names."""
        lines = dump_experiment(TINY).splitlines()
        for _ in range(chance.randint(1, 2)):
            at = chance.randrange(len(lines))
            key = lines[at].partition(":")[0]
            value = chance.choice(VALUES)
            lines[at] = chance.choice(
                [f"{key}: {value}", f"{key}x: 1", f"{key}:\n  {value}", value, f"{lines[at]}\n{key}: 1"]
            )
        path = self.folder / "odd.yaml"
        path.write_text("\n".join(lines), encoding="utf-8", errors="surrogatepass")
        self._refused(["run", "--config", str(path), "--out", str(path)])

    def _flags(self, chance: random.Random) -> None:
        """Flags of a run, some misspelt, with odd values."""
        words = []
        for key in chance.sample(list(yaml.safe_load(dump_experiment(TINY))), 2):
            flag = "--" + key.replace("_", "-")
            flag = chance.choice([flag, flag, flag[:-1], flag + "s", flag.replace("--", "-")])
            words += [flag, *chance.choice(VALUES).split()]
        method = chance.choice(
            ["fedavg", "fedsol", "fedavgm+fedsol:rho=2", "fedsol:rho=x", "fedsoll", "+", "fedavg:=,"]
        )
        self._refused(["run", method, *words, "--out", str(self.folder / "data.npz")])

    def _run_folder(self, chance: random.Random) -> None:
        """A file of a run's folder is damaged, emptied, removed, or of another kind."""
        copy = Path(shutil.copytree(self.run, self.folder / "copy"))
        try:
            if chance.random() < 0.5:
                (copy / "result.json").unlink()
            files = [file for file in sorted(copy.rglob("*")) if file.is_file() and file.name != ".lock"]
            damage(chance.choice(files), chance)
            command = chance.choice(
                [["run", "--out", str(copy), "--resume"], ["reach", str(copy)], ["run", "--out", str(copy)]]
            )
            self._refused([*command, *chance.choice([[], ["--rounds", "3"]])] if command[-1] == "--resume" else command)
            with contextlib.suppress(UserError), contextlib.redirect_stderr(io.StringIO()):
                ff.load_model(copy)
        finally:
            shutil.rmtree(copy)

    def _data(self, chance: random.Random) -> None:
        """A file of one's own data is damaged: it is read as it is, or refused."""
        copy = Path(shutil.copytree(self.folder / "images", self.folder / "copied"))
        npz = Path(shutil.copy(self.folder / "data.npz", copy / "data.npz"))
        try:
            name = chance.choice([f"folder:{copy}", f"npz:{npz}"])
            files = [npz] if name.startswith("npz") else sorted(copy.rglob("*.png"))
            damage(chance.choice(files), chance)
            with contextlib.suppress(UserError):
                load_dataset(name, self.folder / "cache")
        finally:
            shutil.rmtree(copy)
            shutil.rmtree(self.folder / "cache", ignore_errors=True)

    def _refused(self, words: list[str]) -> None:
        """Assert that a command works, or says in one short line what is wrong."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main(words)
            except SystemExit as end:  # --help
                code = end.code or 0
        lines = [line for line in err.getvalue().splitlines() if line.startswith("fedflat: ")]
        said = [line for line in lines if not line.startswith("fedflat: warning: ")]
        good = code == 0 or (code == 2 and len(said) == 1 and len(said[0]) < 3000)
        assert good, f"{words} gave {code}: {err.getvalue()[:2000]}"


def damage(file: Path, chance: random.Random) -> None:
    """Change a file: some bytes, its end, a value inside, or all of it; or put a pipe in its place."""
    data = bytearray(file.read_bytes())
    how = chance.randrange(7)
    if how == 0:
        file.unlink()
    elif how == 1:
        file.write_bytes(data[: chance.randrange(len(data) + 1)])
    elif how == 2:
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        file.write_bytes(data)
    elif how == 3:
        file.write_bytes(chance.choice(ODD_JSON))
    elif how == 4:
        file.unlink()
        os.mkfifo(file)
    elif how == 5:
        file.write_bytes(data + bytes(data[: chance.randrange(len(data) + 1)]))
    else:
        file.write_bytes(_with_another_value(bytes(data), chance))


def _with_another_value(data: bytes, chance: random.Random) -> bytes:
    """JSON or JSON lines in which one value is replaced; other files as they are."""
    lines = data.splitlines()
    at = chance.randrange(len(lines) or 1)
    try:
        whole: Any = json.loads(data)
        rest: list[bytes] = []
    except ValueError:
        try:
            whole, rest = json.loads(lines[at]), lines
        except (ValueError, IndexError):
            return data
    if isinstance(whole, dict) and whole:
        whole[chance.choice(list(whole))] = chance.choice([None, -1, 10**400, "x", [], {}, [None], {"a": [1]}, True])
    text = json.dumps(whole).encode()
    return b"\n".join([*rest[:at], text, *rest[at + 1 :]]) + b"\n" if rest else text


def _hang(number: int, frame: object) -> None:
    raise AssertionError(f"hangs for {PATIENCE} seconds")
