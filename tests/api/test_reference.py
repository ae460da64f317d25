"""docs/reference is what the code says (make reference writes it), and a real run writes the fields that it lists."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from safetensors import safe_open

import fedflat as ff
from fedflat.cli import COMMANDS, main
from fedflat.data.catalogue import DATASETS
from fedflat.data.load import OWN_KINDS
from fedflat.models import MODELS, TEXT_MODELS

DOCS = Path(__file__).parents[2] / "docs"
ONLY_SOMETIMES = {"privacy", "stopped", "clients_asked_per_round", "clients_replied_per_round", "metric"}
ONLY_SOMETIMES |= {"training_clients", "held_out_clients"}
TINY = "--rounds 1 --clients 4 --cohort 2 --partition iid --model mlp --local-epochs 1 --probes norm"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_reference", DOCS / "generate_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference") / "run"
    assert main(["run", "scaffold", *TINY.split(), "--out", str(folder)]) == 0
    return folder


def listed(page: str, section: str) -> set[str]:
    """The names in the first column of the tables of a section."""
    text = (DOCS / "reference" / page).read_text(encoding="utf-8").partition(f"\n## {section}\n")[2]
    return set(re.findall(r"^\| `([^`]+)`", text.partition("\n## ")[0], re.M))


@pytest.mark.parametrize(
    "page", ["README.md", "commands.md", "experiment.md", "names.md", "run-folder.md", "python.md"]
)
def test_the_pages_are_current(page: str, generator: ModuleType) -> None:
    stored = (DOCS / "reference" / page).read_text(encoding="utf-8")
    assert stored == generator.PAGES[page]().rstrip() + "\n", "run make reference"


def test_every_page_is_generated(generator: ModuleType) -> None:
    assert {path.name for path in (DOCS / "reference").iterdir()} == set(generator.PAGES)


def test_every_public_name_is_listed() -> None:
    page = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^## ff\.(\w+)$", page, re.M)) == sorted(ff.__all__)


def test_every_name_that_a_page_imports_is_listed() -> None:
    pages = [*DOCS.parent.glob("*.md"), *DOCS.rglob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    imports = re.findall(r"^from (fedflat\.(?!core|options)[\w.]+) import ([\w, ]+)$", text, re.M)
    used = {f"{module}.{name}" for module, names in imports for name in names.split(", ")}
    page = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    assert len(used) > 10
    assert used <= set(re.findall(r"^## (fedflat\.[\w.]+)$", page, re.M))


def test_every_model_and_kind_of_data_is_listed() -> None:
    assert listed("names.md", "Models") == {*MODELS, *TEXT_MODELS}
    page = (DOCS / "reference" / "names.md").read_text(encoding="utf-8")
    assert all(f"`{kind}:PATH`" in page for kind in (*OWN_KINDS, "hf"))
    assert {"digits", "sklearn-text", *DATASETS} == listed("names.md", "Data sets")


def commands_on_the_page() -> list[str]:
    page = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    return re.findall(r"^## fedflat ([\w ]+)$", page, re.M)


def test_every_command_is_listed() -> None:
    assert list(dict.fromkeys(command.split()[0] for command in commands_on_the_page())) == list(COMMANDS)


@pytest.mark.parametrize("command", commands_on_the_page())
def test_every_flag_of_the_help_is_listed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        main([*command.split(), "--help"])
    flags = set(re.findall(r"^\W (--\w[\w-]*)", capsys.readouterr().out, re.M))
    known = listed("commands.md", f"fedflat {command}")
    if command in ("run", "compare", "sweep", "tune"):
        page = (DOCS / "reference" / "experiment.md").read_text(encoding="utf-8")
        known |= set(re.findall(r"^\| `([^`]+)`", page, re.M))
    assert flags or command == "cite", "the one command without options"
    assert flags - {"--help"} == known


def test_a_run_writes_these_files(run_folder: Path, generator: ModuleType) -> None:
    written = {path.relative_to(run_folder).as_posix() for path in run_folder.rglob("*") if path.is_file()}
    assert written - {"checkpoint/.lock"} == set(generator.RUN_FILES)


def test_config_and_metrics(run_folder: Path) -> None:
    config = set(yaml.safe_load((run_folder / "config.yaml").read_text()))
    page = (DOCS / "reference" / "run-folder.md").read_text(encoding="utf-8")
    assert config == {*re.findall(r"^\| `(\w+)` \| always", page, re.M), "probes", "probe_every"}
    assert config < listed("run-folder.md", "config.yaml")
    (row,) = (json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines())
    assert set(row) == listed("run-folder.md", "metrics.jsonl")


def test_result(run_folder: Path) -> None:
    fields = {name.replace("METRIC", "accuracy") for name in listed("run-folder.md", "result.json")}
    written = set(json.loads((run_folder / "result.json").read_text()))
    assert written == fields - ONLY_SOMETIMES - {"higher_is_better"}
    assert fields > ONLY_SOMETIMES


def test_checkpoint(run_folder: Path) -> None:
    fields = listed("run-folder.md", "checkpoint/state.safetensors")
    with safe_open(run_folder / "checkpoint" / "state.safetensors", "pt") as file:
        names, metadata = list(file.keys()), file.metadata()
    patterns = [re.sub("SEED", r"\\d+", name.replace(".", r"\.")).replace("NAME", ".+") for name in fields]
    assert [name for name in names if not any(re.fullmatch(pattern, name) for pattern in patterns)] == []
    used = {pattern for pattern in patterns if any(re.fullmatch(pattern, name) for name in names)}
    assert len(used) + len(metadata) == len(fields)
    assert set(metadata) < fields
