"""In a real browser each run can be told from the others by its line style and its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from browsers import visit, wait
from selenium import webdriver
from selenium.webdriver.common.by import By

from fedflat.cli import main

MakeRun = Callable[..., Path]


def test_eight_runs_can_be_told_apart(
    browser: webdriver.Chrome, make_run: MakeRun, analyse: Callable[..., None], tmp_path: Path
) -> None:
    runs, page = [make_run(f"run{n}", [0.5, 0.6], probes={"norm.model": 1.0}) for n in range(8)], tmp_path / "page.html"
    for run in runs:
        analyse(run)
    assert main(["report", *map(str, runs), "--out", str(page)]) == 0
    visit(browser, page)
    for key, drawn in (("probe-norm-model", ".js-line"), ("hessian", ".js-line"), ("local", ".points path")):
        one, other = (line_style(browser, f"#{key} .trace:nth-last-of-type({back}) {drawn}") for back in (8, 1))
        assert one[0] == other[0]
        assert one[1:] != other[1:]
        marks = [
            button.get_attribute("innerHTML") for button in browser.find_elements(By.CSS_SELECTOR, f"#{key} button svg")
        ]
        assert len(marks) == len(set(marks)) == 8


def line_style(page: webdriver.Chrome, selector: str) -> list[str]:
    """Return colour, dashes and shape of the first element that the selector finds."""
    drawn = page.find_element(By.CSS_SELECTOR, selector)
    colour = "fill" if "points" in selector else "stroke"
    shape = (drawn.get_attribute("d") or "") if "points" in selector else ""
    return [drawn.value_of_css_property(colour), drawn.value_of_css_property("stroke-dasharray"), shape]


def test_names_are_not_read_as_markup(browser: webdriver.Chrome, make_run: MakeRun, tmp_path: Path) -> None:
    name, page = "<b>x&lt;", tmp_path / "page.html"
    runs = [make_run(each, [0.5, 0.6], probes={f"mine.{name}": 1.0}) for each in (name, "other")]
    assert main(["report", *map(str, runs), "--out", str(page)]) == 0
    visit(browser, page)
    browser.execute_script(
        "Plotly.Fx.hover(document.querySelector('#accuracy .plot'), [{curveNumber: 2, pointNumber: 0}])"
    )
    wait(browser, "return document.querySelector('#accuracy .hoverlayer text')")
    hover = "return [...document.querySelectorAll('#accuracy .hoverlayer text')].map(text => text.textContent).join()"
    assert name in browser.execute_script(hover)
    titles = "return [...document.querySelectorAll('.ytitle')].map(text => text.textContent)"
    assert name in browser.execute_script(titles)
