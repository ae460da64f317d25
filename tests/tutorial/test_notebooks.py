"""The notebooks of docs/notebooks: they run from the first cell to the last, with fewer rounds, and hold no outputs."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def read(name: str) -> NotebookNode:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


@pytest.fixture
def run_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A function that runs a notebook in an empty folder, with two rounds, and returns its outputs by the cell's id."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / ".ipython"))

    def run(name: str) -> dict[str, str]:
        book = read(name)
        parameters = next(cell for cell in book.cells if "parameters" in cell.metadata.get("tags", []))
        parameters.source, changes = re.subn(r"ROUNDS = \d+", "ROUNDS = 2", parameters.source)
        assert changes == 1
        NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
        code = [cell for cell in book.cells if cell.cell_type == "code"]
        assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
        return {cell.id: "".join(map(shown, cell.outputs)) for cell in code}

    return run


def shown(output: NotebookNode) -> str:
    """The text, the HTML or the picture (base64) of an output."""
    kinds = {"text": output.get("text"), **output.get("data", {})}
    return next(kinds[kind] for kind in ("text", "image/png", "text/html", "text/plain") if kinds.get(kind))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_outputs_are_stored_and_every_cell_is_explained(path: Path) -> None:
    cells = read(path.stem).cells
    code = [n for n, cell in enumerate(cells) if cell.cell_type == "code"]
    assert all(cells[n - 1].cell_type == "markdown" for n in code)
    assert all(cells[n].outputs == [] and cells[n].execution_count is None for n in code)


def test_first_comparison(run_notebook, tmp_path: Path) -> None:
    outputs = run_notebook("1-first-comparison")
    table = re.findall(r"^(\w+) +[\d.]+% ± [\d.]+% +([\d,]+) bytes up$", outputs["table"], re.M)
    assert table == [("fedavg", "19,240"), ("fedsam", "19,240"), ("fedgloss", "19,240")]
    assert re.search("<th>accuracy</th>.*<td>fedgloss</td><td>[0-9.]+% ± [0-9.]+%</td>", outputs["one"])
    assert outputs["report"] == "[]", "no warnings"
    assert outputs["partition"].startswith("iVBOR")  # a PNG in base64
    assert outputs["curves"].startswith("iVBOR")
    assert (tmp_path / "first.html").exists()
    assert (tmp_path / "runs/iid/result.json").exists()


def test_own_method(run_notebook, tmp_path: Path) -> None:
    outputs = run_notebook("2-own-method")
    assert outputs["check"] == "True", "with rho = 0 the method is FedAvg"
    accuracies = re.findall(r"^rho ([\d.]+) +validation accuracy ([\d.]+)%", outputs["sweep"], re.M)
    assert {rho for rho, _ in accuracies} == {"0.003", "0.01", "0.03", "0.1", "0.3"}
    values = [float(accuracy) for _, accuracy in accuracies]
    assert values == sorted(values, reverse=True)
    assert (tmp_path / f"runs/own/fedsignsam-{accuracies[0][0]}/result.json").exists()
    assert "iVBOR" in outputs["plot"]
    assert re.search(r"predicted \[(?:[012], ){4}[012]\] true \[", outputs["use"])


def test_why_flatter(run_notebook, tmp_path: Path) -> None:
    outputs = run_notebook("3-why-flatter")
    rows = re.findall(r"^(fed\w+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)$", outputs["numbers"], re.M)
    assert [row[0] for row in rows] == ["fedavg", "fedsam"]
    assert all(float(number) > 0 for row in rows for number in row[1:])
    for cell in ("landscape", "surface", "probe"):
        assert outputs[cell].startswith("iVBOR")
    assert (tmp_path / "runs/flat/fedsam/analysis/hessian.json").exists()
