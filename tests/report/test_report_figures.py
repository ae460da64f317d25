"""Figures for papers and TensorBoard event files."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fedflat.cli import main
from fedflat.report.charts import COLOURS, Grids
from fedflat.report.html import make_report, page_contents
from fedflat.report.matplotlib_figures import draw_figures
from fedflat.runs.read import read_stored_run, read_stored_runs
from fedflat.runs.trackers import row_scalars

MakeRun = Callable[..., Path]
PROBES = {"drift.global_local": 1.0, "classes.accuracy": [0.25, None], "norm.model": None}


@pytest.fixture
def words(make_run: MakeRun, analyse: Callable[..., None], tmp_path: Path) -> list[str]:
    """The start of a report command about two runs; the first has probes and an analysis."""
    runs = [make_run("steady", [0.5, 0.9], probes=PROBES), make_run("quick", [0.6, 0.7])]
    analyse(runs[0])
    return ["report", *map(str, runs), "--out", str(tmp_path / "page.html")]


def test_figures_are_pdf_and_png_one_column_wide(words: list[str], tmp_path: Path, capsys) -> None:
    folder = tmp_path / "new" / "figures"
    assert main([*words, "--figures", str(folder)]) == 0
    assert f"figures in {folder}" in capsys.readouterr().out
    keys = re.findall(r'<figure id="([^"]+)"', (tmp_path / "page.html").read_text())
    expected = {*keys, "landscape-3d", "learning"}
    assert {"accuracy", "clients", "landscape", "spectrum", "probe-drift"} <= expected
    assert {path.name for path in folder.iterdir()} == {f"{key}.{kind}" for key in expected for kind in ("pdf", "png")}
    for key in expected:
        pdf = (folder / f"{key}.pdf").read_bytes()
        assert pdf.startswith(b"%PDF")
        assert pdf.rstrip().endswith(b"%%EOF")
        assert b"/FontFile2" in pdf  # TrueType, embedded
        assert b"/Type3" not in pdf
        with Image.open(folder / f"{key}.png") as image:
            assert image.width == round((6.9 if key == "learning" else 3.3) * 300)
            assert len(image.convert("L").getcolors() or []) > 20


def test_figures_in_the_style_of_cvpr(make_run: MakeRun, analyse: Callable[..., None], tmp_path: Path) -> None:
    run = make_run("one", [0.5, 0.6])
    analyse(run)
    drawn = [c for c in page_contents([read_stored_run(run)]).charts if c.key in ("accuracy", "landscape")]
    for columns, width in ((1, 3.25), (2, 6.875)):
        draw_figures(drawn, tmp_path / str(columns), "cvpr", columns)
        assert b"STIXGeneral" in (tmp_path / str(columns) / "accuracy.pdf").read_bytes()
        with Image.open(tmp_path / str(columns) / "landscape-3d.png") as image:
            assert image.width == pytest.approx(width * 300, abs=1)


def coloured(path: Path) -> float:
    """Return the share of pixels that are neither grey, black nor white."""
    with Image.open(path) as image:
        saturation = image.convert("HSV").getchannel("S").histogram()
    return sum(saturation[50:]) / sum(saturation)


def test_surfaces_and_heat_maps_fill_their_figures(
    make_run: MakeRun, analyse: Callable[..., None], tmp_path: Path
) -> None:
    run = make_run("one", [0.5], probes={"classes.accuracy": [0.9, 0.8]})
    analyse(run, 400.0, extent=0.05)
    draw_figures(
        [chart for chart in page_contents([read_stored_run(run)]).charts if isinstance(chart, Grids)], tmp_path
    )
    shares = {"landscape-3d": 0.04, "landscape": 0.2, "local-landscape": 0.1, "probe-classes-accuracy": 0.3}
    for key, share in shares.items():
        assert coloured(tmp_path / f"{key}.png") > share, key


def pixels(path: Path, colour: str) -> int:
    """Return how many pixels have the hue of a colour, whatever shines through it."""
    hue = Image.new("RGB", (1, 1), colour).convert("HSV").getpixel((0, 0))[0]
    with Image.open(path) as image:
        hues, saturations, _ = image.convert("HSV").split()
    return sum(abs(h - hue) < 6 and s > 60 for h, s in zip(hues.tobytes(), saturations.tobytes(), strict=True))


def test_overlaid_surfaces_have_the_colours_of_their_runs(
    make_run: MakeRun, analyse: Callable[..., None], tmp_path: Path
) -> None:
    runs = [make_run("flat", [0.5]), make_run("sharp", [0.5])]
    for height, run in enumerate(runs, 1):
        analyse(run, float(height))
    stored = [read_stored_run(run) for run in runs]
    draw_figures([c for c in page_contents(stored).charts if c.key == "landscape"], tmp_path)
    for colour in COLOURS[:2]:
        assert pixels(tmp_path / "landscape-overlay.png", colour) > 5000
    draw_figures([c for c in page_contents(stored[:1]).charts if c.key == "landscape"], tmp_path / "one")
    assert not (tmp_path / "one" / "landscape-overlay.pdf").exists()


def test_a_list_without_any_number_leaves_its_run_out_of_the_heat_map(make_run: MakeRun, tmp_path: Path) -> None:
    lists = {"full": [0.5, 0.25], "partly": [None, 0.5], "empty": [None, None], "bare": []}
    runs = [make_run(name, [0.5, 0.6], probes={"lambda.mean": found}) for name, found in lists.items()]
    make_report(runs, tmp_path / "page.html", 0.8, figures=tmp_path / "figures")
    assert (tmp_path / "figures" / "probe-lambda-mean.png").exists()
    (heat,) = (chart for chart in page_contents(read_stored_runs(runs)[0]).charts if chart.key == "probe-lambda-mean")
    assert isinstance(heat, Grids)
    assert [grid.name for grid in heat.grids] == ["full", "partly"]


@pytest.mark.parametrize("loss", [0.0, 0.5, 1e8, -1e8])
def test_a_landscape_without_any_slope_is_drawn(loss: float, make_run: MakeRun, analyse, tmp_path: Path) -> None:
    run = make_run("flat", [0.5])
    analyse(run)
    path = run / "analysis" / "landscape.json"
    document = json.loads(path.read_text())
    document["seeds"]["0"]["loss"] = [[loss] * 3] * 3
    path.write_text(json.dumps(document))
    (chart,) = (chart for chart in page_contents([read_stored_run(run)]).charts if chart.key == "landscape")
    draw_figures([chart], tmp_path / "figures")
    assert len([*(tmp_path / "figures").iterdir()]) == 4


def test_names_are_not_read_as_formulas(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run(name, [0.5, 0.6]) for name in (r"$\nothing$", "$x$")]
    accuracy = page_contents([read_stored_run(run) for run in runs]).charts[0]
    draw_figures([accuracy], tmp_path / "figures")
    assert len([*(tmp_path / "figures").iterdir()]) == 2


def test_figures_that_cannot_be_written(words: list[str], capsys) -> None:
    assert main([*words, "--figures", "/proc/nowhere"]) == 2
    assert "--figures /proc/nowhere: cannot be written" in capsys.readouterr().err


def test_events_hold_every_number(words: list[str], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):  # the second report replaces the first one's events
        assert main([*words, "--tensorboard", str(tmp_path / "events")]) == 0
    found = EventAccumulator(str(tmp_path / "events" / "steady" / "seed-1")).Reload()
    tags = {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
    assert tags["test/accuracy"] == [(1, pytest.approx(0.4)), (2, pytest.approx(0.8))]
    assert tags["drift/global_local"] == [(1, 2.0), (2, 2.0)]
    assert tags["classes/accuracy/0"] == [(1, 1.25), (2, 1.25)]
    assert tags.keys() == {"test/accuracy", "test/loss", "drift/global_local", "classes/accuracy/0"}
    assert {path.name for path in (tmp_path / "events").iterdir()} == {"steady", "quick"}
    options = session_options(found)
    assert (options["seed"], options["lr"], options["method.name"], options["rounds"]) == (1, 0.05, "fedavg", 2)


def session_options(events: Any) -> dict[str, Any]:
    """Return what TensorBoard's page HPARAMS shows of a session."""
    from tensorboard.plugins.hparams.metadata import parse_session_start_info_plugin_data

    content = events.PluginTagToContent("hparams")
    assert [*content] == ["_hparams_/session_start_info"], "no description of one experiment, which hides other options"
    start = parse_session_start_info_plugin_data(content["_hparams_/session_start_info"])
    return {name: value.string_value or value.number_value for name, value in start.hparams.items()}


def test_events_of_validation_are_not_called_test() -> None:
    row = {"accuracy": 0.5, "loss": None, "probes": {"norm.model": 1.0}}
    assert dict(row_scalars(row, "validation")) == {"validation/accuracy": 0.5, "norm/model": 1.0}


def test_events_of_runs_with_one_name_stay_apart_and_below_the_folder(make_run: MakeRun, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    runs = [make_run(name, [0.5]) for name in ("one/fedavg", "two/fedavg")]
    out, events = str(tmp_path / "page.html"), tmp_path / "events"
    assert main(["report", *map(str, runs), "--out", out, "--tensorboard", str(events)]) == 0
    assert len([*events.glob("*/seed-0/events.out.tfevents.*")]) == 2
    assert not [*runs[0].glob("**/events*")]


@pytest.mark.parametrize("other", ["two/there", "two/here"])  # the first is named by its folder, or as it is given
def test_events_of_a_folder_given_by_dots_stay_below_the_folder(
    other: str, make_run: MakeRun, tmp_path: Path, monkeypatch
) -> None:
    pytest.importorskip("tensorboard")
    run, second = make_run("one/here", [0.5]), make_run(other, [0.5])
    (run / "sub").mkdir()
    monkeypatch.chdir(run / "sub")
    events = tmp_path / "events" / "deep"
    assert main(["report", "..", str(second), "--out", str(tmp_path / "page.html"), "--tensorboard", str(events)]) == 0
    assert len([*events.glob("*/seed-0/events.out.tfevents.*")]) == 2
    assert [path.name for path in (tmp_path / "events").iterdir()] == ["deep"]


def test_events_without_tensorboard(words: list[str], tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert main([*words, "--tensorboard", str(tmp_path / "events")]) == 2
    assert "fedflat[tensorboard]" in capsys.readouterr().err
