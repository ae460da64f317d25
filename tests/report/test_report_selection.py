"""The list of runs in a real browser: everything on the page follows it, and the address holds the view."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsers import errors, visit, wait
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from synthetic_runs import write_analysis, write_run

import fedflat as ff
from fedflat.cli import main
from fedflat.methods.fedsol import FedSOL

NAMES = "return document.querySelector('#accuracy .plot').data.filter(t => t.meta === 'line').map(t => t.name)"
ROWS = "return [...document.querySelectorAll('#headline tbody tr')].filter(r => !r.hidden).map(r => r.dataset.run)"
SHOWN = ("accuracy", "loss", "landscape")  # the figures that these tests look at
LABELS = [f"FedSOL, ρ = {rho}, lr = {lr}" for rho in ("0.5", "2") for lr in ("0.01", "0.1", "1.0")]
Page = webdriver.Chrome


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page about six runs that differ in ρ and lr; the last one diverges in its second round."""
    folder = tmp_path_factory.mktemp("selection")
    settings = [(rho, lr) for rho in (0.5, 2.0) for lr in (0.01, 0.1, 1.0)]
    runs = [
        write_run(folder / f"run{n}", [0.5 + n / 100, 0.6 + n / 50, 0.7], method=FedSOL(rho=rho), lr=lr)
        for n, (rho, lr) in enumerate(settings)
    ]
    for n, run in enumerate(runs[:2]):
        write_analysis(run, 1.0 + n)
    rows = [json.loads(line) for line in (runs[5] / "metrics.jsonl").read_text().splitlines()]
    for row in rows[2:]:
        row |= {"loss": None, "accuracy": 0.1}
    (runs[5] / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["report", *map(str, runs), "--out", str(folder / "page.html")]) == 0
    return folder / "page.html"


@pytest.fixture
def surfaces(surface_browser: Page, report: Path) -> Page:
    """The page in a browser with WebGL, which is slow in software."""
    return visit(surface_browser, report, only=SHOWN)


@pytest.fixture
def page(browser: Page, report: Path) -> Page:
    """The page in a browser without WebGL, which is fast."""
    return visit(browser, report, only=SHOWN)


def shown(page: Page) -> list[str]:
    return page.execute_script(NAMES)


def filtered(page: Page, text: str) -> list[str]:
    box = page.find_element(By.CSS_SELECTOR, "#runs [type=search]")
    page.execute_script("arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))", box, text)
    page.execute_script("drawAll()")
    return shown(page)


@pytest.mark.parametrize(
    ("text", "kept"),
    [("lr=0.01", [0, 3]), ("rho>1 lr<1", [3, 4]), ("RUN4", [4]), ("lr!=1 rho=0.5", [0, 1]), ("nothing", [])],
)
def test_figures_and_tables_follow_the_filter(text: str, kept: list[int], page: Page) -> None:
    assert filtered(page, text) == [LABELS[n] for n in kept]
    assert page.execute_script(ROWS) == [str(n) for n in kept]
    assert page.find_element(By.CSS_SELECTOR, "#runs output").text == f"{len(kept)} of 6"
    assert (
        f"filter={text.replace(' ', '+').partition('=')[0].partition('<')[0].partition('>')[0][:2]}" in page.current_url
    )


def test_only_pin_none_and_invert(page: Page) -> None:
    def press(selector: str, place: int = 0) -> list[str]:
        page.execute_script("document.querySelectorAll(arguments[0])[arguments[1]].click(); drawAll()", selector, place)
        return shown(page)

    assert press("#runs [data-only]", 2) == [LABELS[2]]
    assert press("#runs [data-invert]") == LABELS[:2] + LABELS[3:]
    assert press("#runs [data-pin]", 4) == LABELS[:2] + LABELS[3:]
    assert press("#runs [data-none]") == [LABELS[4]]
    assert press("#runs [data-all]") == LABELS
    assert page.execute_script("return document.querySelectorAll('#landscape .panel:not([hidden])').length") == 2
    press("#runs li input", 0)
    assert page.execute_script("return document.querySelectorAll('#landscape .panel:not([hidden])').length") == 1


def test_colour_by_a_setting(page: Page) -> None:
    page.execute_script(
        "const s = document.querySelector('#runs select'); s.value = 'lr'; s.dispatchEvent(new Event('change'))"
    )
    colours = page.execute_script(NAMES.replace("t.name", "t.line.color"))
    assert len(set(colours)) == 3
    assert colours[:3] == colours[3:]
    groups = page.find_elements(By.CSS_SELECTOR, "#runs .groups button")
    assert [group.text for group in groups] == ["lr = 0.01", "lr = 0.1", "lr = 1"]
    groups[0].click()
    assert shown(page) == LABELS[1:3] + LABELS[4:]
    page.execute_script("document.querySelector('[data-mean]').click(); drawAll()")
    assert shown(page) == ["lr = 0.1, mean of 2", "lr = 1, mean of 2"]


def test_a_diverged_run_has_a_banner_a_badge_and_a_cross(page: Page) -> None:
    assert "1 of 6 runs diverged" in page.find_element(By.CSS_SELECTOR, ".banner").text
    assert LABELS[5] in page.find_element(By.CSS_SELECTOR, ".banner").text
    badge = page.find_element(By.CSS_SELECTOR, "#headline tr[data-run='5'] .badge")
    assert badge.text == "✖ diverged: seed 0 1"
    assert badge.is_displayed()
    lost = "return document.querySelector('#{} .plot').data.filter(t => t.meta === 'lost').map(t => [t.x, t.y])[0]"
    assert page.execute_script(lost.format("accuracy")) == [[2], [pytest.approx(0.1)]]
    assert page.execute_script(lost.format("loss"))[0] == [1]


ZOOM = """return Plotly.relayout(document.querySelector('#accuracy .plot'),
    {'xaxis.range': [1.5, 2.5], 'yaxis.range': [0.2, 0.8]})"""
TURN = """return Plotly.relayout(document.querySelector('#landscape .plot'),
    {'scene.camera': {eye: {x: 0, y: 2, z: 1}}})"""
RANGES = "const p = document.querySelector('#accuracy .plot')._fullLayout; return [p.xaxis.range, p.yaxis.range]"
EYES = "return [...document.querySelectorAll('#landscape .plot')].map(p => p._fullLayout.scene.camera.eye.y)"


def test_zoom_and_cameras_survive_every_redraw_and_the_address_holds_them(surfaces: Page, report: Path) -> None:
    page = surfaces
    page.execute_script(ZOOM)
    page.execute_script(TURN)
    wait(page, EYES.replace("return ", "return (") + ").every(y => y === 2)")
    slider = page.find_element(By.CSS_SELECTOR, "#accuracy input[type=range]")
    page.execute_script("arguments[0].value = 0.5; arguments[0].dispatchEvent(new Event('input'))", slider)
    for action in ("document.getElementById('theme').click()", "document.querySelector('#runs li input').click()"):
        page.execute_script(action + "; drawAll()")
        assert page.execute_script(RANGES) == [[1.5, 2.5], [0.2, 0.8]]
        assert set(page.execute_script(EYES.replace(".map(", ".filter(p => p.layout).map("))) == {2}
    view = page.current_url.partition("#")[2]
    visit(page, report, f"#{view}")
    assert page.execute_script(RANGES) == [[1.5, 2.5], [0.2, 0.8]]
    assert shown(page) == LABELS[1:]
    assert page.execute_script("return document.documentElement.dataset.theme") == "dark"
    assert page.execute_script("return document.querySelector('#accuracy output').textContent") == "0.5"
    page.execute_script("return Plotly.relayout(document.querySelector('#accuracy .plot'), {'xaxis.autorange': true})")
    assert page.execute_script(RANGES)[0] != [1.5, 2.5]


def test_links_to_sections_keep_the_view(page: Page) -> None:
    filtered(page, "lr=0.1")
    page.find_element(By.CSS_SELECTOR, "nav a[href='#flatness']").click()
    assert "filter=lr" in page.current_url
    assert "at=flatness" in page.current_url


def test_rounds_bytes_or_seconds(page: Page) -> None:
    xs = "return document.querySelector('#accuracy .plot').data.filter(t => t.meta === 'line')[0].x"
    for value, expected in (("bytes", [40_000, 80_000, 120_000]), ("seconds", [0.1, 0.2, 0.3]), ("round", [1, 2, 3])):
        choose = (
            "const s = document.getElementById('x-axis'); s.value = arguments[0]; s.dispatchEvent(new Event('change'))"
        )
        page.execute_script(choose + "; drawAll()", value)
        assert page.execute_script(xs) == pytest.approx(expected)


def test_single_seeds_on_demand(page: Page) -> None:
    seeds = "return document.querySelector('#accuracy .plot').data.filter(t => t.meta === 'seed').map(t => t.y)"
    assert page.execute_script(seeds) == []
    page.execute_script("document.querySelector('#accuracy [data-seeds]').click()")
    assert len(page.execute_script(seeds)) == 12
    assert page.execute_script(seeds)[1] == pytest.approx([0.4, 0.5, 0.6])


def test_differences_between_selected_runs(page: Page) -> None:
    filtered(page, "rho=0.5")
    cells = "return [...document.querySelectorAll('#differences tr')].map(r => [...r.cells].map(c => c.textContent))"
    assert page.execute_script(cells) == [["setting", *LABELS[:3]], ["lr", "0.01", "0.1", "1"]]


def test_a_setting_that_is_off_is_no_difference_to_runs_without_it(
    browser: Page, make_run: Callable[..., Path], tmp_path: Path
) -> None:
    for method in (ff.FedAvg(), ff.FedGF()):  # FedGF's static_c is None
        make_run(f"runs/{type(method).__name__}", [0.5], method=method)
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "page.html")]) == 0
    visit(browser, tmp_path / "page.html", only=("accuracy",))
    rows = (
        "return [...document.querySelectorAll('#differences tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    found = browser.execute_script(rows)
    assert found[0] == ["method", "fedavg", "fedgf"]
    assert all(one != other for _, one, other in found)


def test_sweep(surfaces: Page) -> None:
    page = surfaces
    drawn = "return document.querySelectorAll('#sweep .sweep-plot')[arguments[0]].data[0]"
    points = page.execute_script(drawn, 0)
    assert points["x"] == [0.5, 0.5, 0.5, 2, 2]  # the diverged run is left out
    plot = page.find_element(By.CSS_SELECTOR, "#sweep .sweep-plot")
    spoken = "accuracy, last 10 % against rho, 5 runs: FedSOL, ρ = 0.5, lr = 0.01 65.0 %; "
    assert (plot.get_attribute("aria-label") or "").startswith(spoken)
    sweep_range = "return document.querySelector('#sweep .sweep-plot')._fullLayout.xaxis.range"
    before = page.execute_script(sweep_range)
    plot.send_keys("+")
    wait(page, f"{sweep_range}[0] > {before[0]}")
    zoomed = page.execute_script(sweep_range)
    page.execute_script("document.querySelector('#runs li input').click(); drawSweep()")
    assert page.execute_script(sweep_range) == zoomed
    assert "zoom" in page.current_url
    page.execute_script("document.querySelector('#runs li input').click()")
    choose = "const s = document.querySelector(`#sweep [name=${arguments[0]}]`); s.value = arguments[1];"
    page.execute_script(choose + "s.dispatchEvent(new Event('change')); drawAll()", "second", "lr")
    heat = page.execute_script(drawn, 0)
    assert (heat["type"], heat["x"], heat["y"]) == ("heatmap", ["0.5", "2"], ["0.01", "0.1", "1"])
    assert heat["z"][2] == [pytest.approx(0.65), None]
    parallel = page.execute_script(drawn, 1)
    assert [each["label"] for each in parallel["dimensions"]] == ["rho", "lr", "accuracy, last 10 %"]


def test_keys_text_and_numbers_for_readers_without_mouse_or_screen(surfaces: Page) -> None:
    page = surfaces
    plot = page.find_element(By.CSS_SELECTOR, "#accuracy .plot")
    assert (plot.get_attribute("role"), plot.get_attribute("tabindex")) == ("img", "0")
    assert f"{LABELS[0]} 65.0 %" in (plot.get_attribute("aria-label") or "")
    before = page.execute_script(RANGES)
    plot.send_keys("+")
    (low, high), _ = page.execute_script(RANGES)
    assert before[0][0] < low < high < before[0][1]
    plot.send_keys("0")
    wait(page, f"return JSON.stringify((() => {{ {RANGES} }})()) === '{json.dumps(before, separators=(',', ':'))}'")
    surface = page.find_element(By.CSS_SELECTOR, "#landscape .plot")
    eye = page.execute_script(EYES)
    surface.send_keys(Keys.ARROW_LEFT)
    wait(page, EYES.replace("return ", "return (") + f")[1] !== {eye[1]}")
    button = page.find_element(By.CSS_SELECTOR, "#loss [data-numbers]")
    button.send_keys(Keys.ENTER)
    head = [cell.text for cell in page.find_elements(By.CSS_SELECTOR, "#loss .numbers th")]
    assert head == ["name", "round", "cross entropy", "low", "high"]
    assert button.get_attribute("aria-expanded") == "true"


def test_every_figure_has_a_role_a_text_and_a_table(page: Page) -> None:
    bare = """return [...document.querySelectorAll('figure')].filter(figure => {
      const plots = [...figure.querySelectorAll('.panel:not([hidden]) .plot')];
      return !figure.querySelector('[data-numbers]') || plots.some(plot => plot.getAttribute('role') !== 'img'
        || plot.tabIndex !== 0 || plot.ariaLabel.length < figure.querySelector('h3').textContent.length + 20);
    }).map(figure => figure.id)"""
    assert page.execute_script(bare) == []


def test_overlaid_surfaces_share_one_scene(surfaces: Page) -> None:
    page = surfaces
    page.find_element(By.CSS_SELECTOR, "[data-view=overlay]").click()
    data: list[dict[str, Any]] = page.execute_script("return document.querySelector('#landscape .plot').data")
    assert [trace["type"] for trace in data] == ["surface", "surface"]
    assert len({trace["colorscale"][0][1] for trace in data}) == 2
    assert page.find_element(By.CSS_SELECTOR, "#landscape h4").text == f"{LABELS[0]}, seed 0{LABELS[1]}, seed 0"
    assert not page.find_element(By.CSS_SELECTOR, "#landscape .scale").is_displayed(), "colours are those of the runs"
    sizes = "const p = document.querySelector('#landscape .plot'); return [p._fullLayout.width, p.clientWidth]"
    wait(page, sizes.replace("return [", "return (").replace(", p.cl", " === p.cl").replace("Width]", "Width)"))
    page.find_element(By.CSS_SELECTOR, "[data-view='3d']").click()
    assert page.find_element(By.CSS_SELECTOR, "#landscape h4").text == f"{LABELS[0]}, seed 0"
    page.find_element(By.CSS_SELECTOR, "[data-view=overlay]").click()
    assert page.execute_script("return document.querySelectorAll('#landscape .panel:not([hidden])').length") == 1


BUNDLED = """return document.querySelector('#accuracy .plot').data.filter(t => t.meta === 'bundle')
.flatMap(t => [...new Set(t.text)]).filter(Boolean)"""
PATHS = "return [...document.querySelectorAll('#accuracy .js-line')].filter(p => p.style.display !== 'none')"
CLICK = "document.querySelectorAll('#runs li input')[arguments[0]].click()"
POINTS = ".map(p => p.getAttribute('d').match(/[-\\d.]+/g).map(Number))"


def test_many_runs_are_bundled_and_stay_selectable(
    browser: Page, make_run: Callable[..., Path], tmp_path: Path
) -> None:
    for n in range(30):
        make_run(f"many/run{n}", [0.5, 0.6 + n / 100], lr=0.01 * (n + 1))
    assert main(["report", str(tmp_path / "many"), "--out", str(tmp_path / "page.html")]) == 0
    visit(browser, tmp_path / "page.html")
    assert len({*browser.execute_script(BUNDLED)}) == 30
    assert not browser.find_elements(By.CSS_SELECTOR, "#accuracy .legend button")
    browser.execute_script("document.getElementById('accuracy').scrollIntoView()")
    wait(browser, "return seen.has(CHARTS.find(c => c.key === 'accuracy'))")
    browser.execute_script("clearTimeout(settle.timer); settle = () => {};")
    assert len(browser.execute_script(PATHS)) == 30
    browser.execute_script(CLICK, 3)
    assert len(browser.execute_script(PATHS)) == 29, "the line is gone at once"
    assert len({*browser.execute_script(BUNDLED)}) == 30, "and plotly has not drawn yet"
    browser.execute_script("drawAll()")
    assert len({*browser.execute_script(BUNDLED)}) == 29
    assert len(browser.execute_script(PATHS)) == 29, "nothing of the patch is left"
    browser.execute_script(CLICK, 3)
    (added,) = browser.execute_script("return [...document.querySelectorAll('#accuracy .added')]" + POINTS)
    browser.execute_script("drawAll()")
    exact = browser.execute_script(PATHS + POINTS)
    assert any(line == pytest.approx(added, abs=0.1) for line in exact), "where plotly draws it"
    assert not browser.find_elements(By.CSS_SELECTOR, "#accuracy .added")
    order = [item.text.partition(" lr = ")[2] for item in browser.find_elements(By.CSS_SELECTOR, "#runs li span")]
    assert [float(value) for value in order] == sorted(float(value) for value in order)
    assert errors(browser) == []


def test_nothing_was_logged(surface_browser: Page) -> None:
    assert errors(surface_browser) == []
