"""The page in a real browser: sorting columns, smoothing and hiding lines, themes, printing, and phones."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browsers import errors, fits, phone, visit, wait
from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By
from synthetic_runs import write_run

from fedflat.cli import main
from fedflat.methods.fedsol import FedSOL

MakeRun = Callable[..., Path]
LINES = "return document.querySelector('#accuracy .plot').data.filter(trace => trace.meta === 'line')"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page about four runs."""
    folder = tmp_path_factory.mktemp("browser")
    runs = [
        write_run(folder / "steady", [0.5, 0.7, 0.9], seconds=12),
        write_run(folder / "quick", [0.6, 0.65, 0.7], seconds=3),
        write_run(folder / "lost", [0.2, 0.1, 0.1], seconds=100, lost=True),
        write_run(folder / "half", [0.3, 0.4], finished=False),
    ]
    assert main(["report", *map(str, runs), "--target", "0.45", "--out", str(folder / "page.html")]) == 0
    return folder / "page.html"


@pytest.fixture
def page(browser: webdriver.Chrome, report: Path) -> webdriver.Chrome:
    return visit(browser, report)


def folders(page: webdriver.Chrome) -> list[str]:
    return [cell.text for cell in page.find_elements(By.CSS_SELECTOR, "#headline td.folder")]


def test_columns_sort(page: webdriver.Chrome) -> None:
    orders = {
        "folder": ["steady", "quick", "lost"],
        "last 10 %": ["steady", "quick", "lost"],
        "rounds to 45%": ["lost", "steady", "quick"],
        "seconds": ["lost", "steady", "quick"],
    }
    for head in page.find_elements(By.CSS_SELECTOR, "#headline th"):
        if order := orders.get(head.text):
            button = head.find_element(By.TAG_NAME, "button")
            button.click()
            assert folders(page) == order
            assert head.get_attribute("aria-sort") == "descending"
            button.click()
            assert folders(page) == order[::-1]
            assert head.get_attribute("aria-sort") == "ascending"
            orders.pop(head.text.rstrip(" ▲▼"))
    assert not orders


def test_smoothing_is_a_moving_average_over_the_faint_raw_line(page: webdriver.Chrome) -> None:
    slider = page.find_element(By.CSS_SELECTOR, "#accuracy input")
    page.execute_script("arguments[0].value = 0.5; arguments[0].dispatchEvent(new Event('input'))", slider)
    smoothed = page.execute_script(LINES)[3]["y"]
    assert smoothed == pytest.approx([0.45, (0.45 + 2 * 0.65) / 3, (0.45 + 2 * 0.65 + 4 * 0.85) / 7])
    raw = page.execute_script(LINES.replace("line", "raw"))
    assert raw[3]["y"] == pytest.approx([0.45, 0.65, 0.85])
    assert raw[3]["opacity"] < 0.5
    page.execute_script("arguments[0].value = 0; arguments[0].dispatchEvent(new Event('input'))", slider)
    assert page.execute_script(LINES)[3]["y"] == pytest.approx([0.45, 0.65, 0.85])


def test_lines_hide_and_return(page: webdriver.Chrome) -> None:
    button = page.find_element(By.CSS_SELECTOR, "#accuracy .legend button")
    everyone = ["FedAvg, rounds = 2", *(f"FedAvg, rounds = 3 ({name})" for name in ("lost", "quick", "steady"))]
    for names, pressed in ((everyone[1:], "false"), (everyone, "true")):
        button.click()
        assert [line["name"] for line in page.execute_script(LINES)] == names
        button = page.find_element(By.CSS_SELECTOR, "#accuracy .legend button")
        assert button.get_attribute("aria-pressed") == pressed


def background(page: webdriver.Chrome) -> str:
    return page.execute_script("return getComputedStyle(document.body).backgroundColor")


def test_fits_a_phone(page: webdriver.Chrome) -> None:
    with phone(page):
        fits(page)


LONG = "a-run-whose-folder-has-a-name-that-no-line-of-a-phone-can-hold"
TOPS = "return arguments[0].map(e => e.getBoundingClientRect()).map(box => box.top + box.height / 2)"
FIRST_LINES = """const boxes = [...document.querySelectorAll('.legend button, .run')];
return boxes.filter(box => box.offsetParent).map(box => {
  const text = document.createRange(), mark = box.firstElementChild.getBoundingClientRect();
  text.selectNodeContents(box.lastChild);
  const line = text.getClientRects()[0];
  return mark.bottom > line.top && mark.top < line.bottom && mark.right <= line.left;
})"""


@pytest.fixture
def narrow(browser: webdriver.Chrome, long_names: Path) -> Iterator[webdriver.Chrome]:
    """The page about runs with long names, on a phone."""
    with phone(browser):
        yield visit(browser, long_names)


@pytest.fixture(scope="module")
def long_names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long")
    methods = [FedSOL(rho=2.0), FedSOL(rho=2.123456789012345)]
    runs = [write_run(folder / f"{LONG}-{n}", [0.5, 0.6], method=method) for n, method in enumerate(methods)]
    assert main(["report", *map(str, runs), "--out", str(folder / "page.html")]) == 0
    return folder / "page.html"


def test_buttons_of_a_figure_are_in_one_line_with_the_slider(narrow: webdriver.Chrome) -> None:
    for figure in narrow.find_elements(By.CSS_SELECTOR, "figure.curves"):
        parts = figure.find_elements(By.CSS_SELECTOR, ".tools input, .tools button")
        assert len(parts) in (3, 4, 5)
        tops = narrow.execute_script(TOPS, parts)
        assert max(tops) - min(tops) < 5


def test_marks_are_beside_the_first_line_of_long_names(narrow: webdriver.Chrome) -> None:
    beside = narrow.execute_script(FIRST_LINES)
    assert len(beside) == 14
    assert all(beside)


def right_edge(page: webdriver.Chrome, left: int) -> float:
    """Return the brightness (0 to 255) at the right edge of the table of results, scrolled to `left`."""
    box = page.find_element(By.CSS_SELECTOR, ".scroll")
    page.execute_script("arguments[0].scrollLeft = arguments[1]", box, left)
    image = Image.open(io.BytesIO(box.screenshot_as_png)).convert("L")
    return sum(image.getpixel((image.width - 2, y)) for y in range(3, 9)) / 6  # above the words


def test_a_shadow_shows_that_a_table_goes_on(narrow: webdriver.Chrome) -> None:
    assert right_edge(narrow, 0) < 235
    assert right_edge(narrow, 9999) == 255


def test_probes_that_measured_once_are_in_a_table(browser: webdriver.Chrome, make_run: MakeRun, tmp_path: Path) -> None:
    run, page = make_run("fedavg", [0.5, 0.6], probes={"norm.model": 1.0}), tmp_path / "page.html"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in rows[:2]:
        row["probes"] |= {"cost.gradients": 2.0 + row["seed"], "cost.seconds": 0.00123}
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["report", str(run), "--out", str(page)]) == 0
    visit(browser, page)
    cells = [cell.text for cell in browser.find_elements(By.CSS_SELECTOR, "#probes #once tr > *")]
    assert cells[1:] == [
        "folder",
        "cost, gradients",
        "cost, seconds",
        "FedAvg",
        "fedavg",
        "2.50 ± 0.71",
        "0.00123 ± 0.00000",
    ]
    figures = [figure.get_attribute("id") for figure in browser.find_elements(By.CSS_SELECTOR, "#probes figure")]
    assert figures == ["probe-norm-model"]


def test_probes_of_single_clients(browser: webdriver.Chrome, make_run: MakeRun, tmp_path: Path) -> None:
    probes = {
        "clients.accuracy": [0.9, 0.1, 0.5],
        "clients.worst": 0.1,
        "sharpness.lambda1": 7.0,
        "alignment.cosine": 0.2,
    }
    lists = {"class-forgetting.client": [4.0, 7.0], "class-forgetting.forgotten": [0.1, 0.2, None, -0.4]}
    runs = [make_run(name, [0.5, 0.6], less=0.0, probes=probes | lists) for name in "ab"]
    for run in runs:  # the second seed of synthetic probes is 1 more
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        rows = [row | {"probes": probes | lists} for row in rows]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["report", *map(str, runs), "--out", str(tmp_path / "page.html")]) == 0
    visit(browser, tmp_path / "page.html")
    drawn = (
        "return document.querySelector('#' + arguments[0] + ' .plot').data.filter(t => t.meta !== undefined || t.z)[0]"
    )
    assert browser.execute_script(drawn, "client-accuracy")["y"] == [0.1, 0.5, 0.9], "worst to best"
    forgotten = browser.execute_script(drawn, "class-forgetting")
    assert (forgotten["x"], forgotten["z"]) == ([4, 7], [[0.1, None], [0.2, -0.4]])
    assert browser.execute_script(drawn, "probe-sharpness-lambda1")["y"] == [7, 7]
    assert browser.execute_script(drawn, "probe-alignment-cosine")["y"] == pytest.approx([0.2, 0.2])
    titles = [title.text for title in browser.find_elements(By.CSS_SELECTOR, "#probes h3")]
    assert {"Probe: sharpness, λ₁", "Probe: clients, worst tenth", "Which client forgets which class"} <= {*titles}
    assert errors(browser) == []


def test_heat_maps_of_a_chart_have_one_axis(browser: webdriver.Chrome, make_run: MakeRun, tmp_path: Path) -> None:
    for name, rounds in (("long", 4), ("short", 2)):
        make_run(f"runs/{name}", [0.5] * rounds, probes={"classes.accuracy": [0.1, 0.2]}, less=0.0)
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "page.html")]) == 0
    visit(browser, tmp_path / "page.html")
    ranges = (
        "return [...document.querySelectorAll('#probe-classes-accuracy .plot')].map(p => p._fullLayout.xaxis.range)"
    )
    assert browser.execute_script(ranges) == [[0.5, 4.5]] * 2
    assert browser.execute_script("return commonEnds([{x: [7]}])") == [6.5, 7.5]
    assert browser.execute_script("return commonEnds([{x: [4, 8]}, {x: [4, 8, 20]}])") == [2, 26]


def test_light_and_dark_follow_the_system_and_the_button(page: webdriver.Chrome) -> None:
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    assert background(page) == "rgb(255, 255, 255)"
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    try:
        assert background(page) == "rgb(20, 23, 27)"
        wait(page, "return document.querySelector('#accuracy .plot').layout.font.color === 'rgb(232, 235, 239)'")
        page.find_element(By.ID, "theme").click()
        assert background(page) == "rgb(255, 255, 255)"
        wait(page, "return document.querySelector('#accuracy .plot').layout.font.color === 'rgb(27, 30, 35)'")
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_printing_is_light_and_narrow(page: webdriver.Chrome) -> None:
    page.find_element(By.ID, "theme").click()
    assert background(page) == "rgb(20, 23, 27)"
    page.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert background(page) == "rgb(255, 255, 255)"
    assert wait(page, "return document.querySelector('#accuracy .main-svg').clientWidth") <= 680
    assert page.execute_script("return document.querySelector('details').open")
    page.execute_script("dispatchEvent(new Event('afterprint'))")
    assert background(page) == "rgb(20, 23, 27)"


def test_nothing_is_logged(page: webdriver.Chrome) -> None:
    assert errors(page) == []
