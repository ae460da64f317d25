"""fedflat compare, analyse and report on digits, and the page in a browser."""

from __future__ import annotations

import csv
import shutil
import time
from pathlib import Path

from browsers import errors, fits, phone, until, visit, wait
from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By

from fedflat.cli import main

METHODS = ["fedavg", "fedsam", "fedsol", "fedgf", "fedgloss"]
FIGURES = [
    "accuracy",
    "loss",
    "communication",
    "wins",
    "pareto-bytes",
    "pareto-seconds",
    "clients",
    "probe-classes-accuracy",
    "probe-drift",
    "probe-forgetting",
]
FIGURES += ["landscape", "spectrum", "hessian", "local", "barrier"]
FIGURES += [f"sharpness-{what}-{y}" for what in ("lambda1", "trace", "lpf") for y in ("accuracy", "gap")]
SMALL = "--rounds 3 --local-epochs 1 --cohort 3 --seeds 0 1 --probes drift forgetting classes"
QUICK = "--grid 7 --samples 40 --run-seeds 0 --top 2 --probes 2 --draws 4 --clients 0"
TYPES = "return [...document.querySelectorAll('#landscape .plot')].map(plot => plot.data[0].type)"


def test_from_compare_to_the_browser(
    surface_browser: webdriver.Chrome, browser: webdriver.Chrome, tmp_path: Path
) -> None:
    """All checks are in one test, so that the runs are trained only once."""
    page = make_report(tmp_path)
    visit(surface_browser, page)
    every_figure_is_drawn(surface_browser)
    landscapes_switch_between_surfaces_and_contours(surface_browser)
    turning_one_surface_turns_all(surface_browser)
    tables_have_all_methods_and_sort(surface_browser)
    damaged_and_half_finished_runs_are_reported_and_skipped(surface_browser, tmp_path)
    for key in FIGURES:
        figures_and_their_data_can_be_saved(key, surface_browser, tmp_path / "downloads")
    with phone(surface_browser):
        fits(surface_browser)
    nothing_is_logged_and_nothing_fetched(surface_browser)
    a_browser_without_webgl_shows_contours_and_says_so(browser, page)


def make_report(folder: Path) -> Path:
    """Make a page about five methods, a damaged run and an unfinished run."""
    runs, page = folder / "runs", folder / "page.html"
    assert main(["compare", *METHODS, *SMALL.split(), "--out", str(runs)]) == 0
    measures = ["hessian", "landscape", "spectrum", "lpf", "local", "barrier"]
    assert main(["analyse", str(runs), *QUICK.split(), "--what", *measures]) == 0
    for name, lost in (("damaged", "metrics.jsonl"), ("half", "result.json")):
        shutil.copytree(runs / "fedavg", folder / name, ignore=shutil.ignore_patterns(lost, "analysis"))
    (folder / "damaged" / "metrics.jsonl").write_text('{"round": "one"}\n')
    folders = [str(path) for path in (runs, folder / "damaged", folder / "half")]
    assert main(["report", *folders, "--out", str(page)]) == 0
    return page


def every_figure_is_drawn(browser: webdriver.Chrome) -> None:
    assert [figure.get_attribute("id") for figure in browser.find_elements(By.TAG_NAME, "figure")] == FIGURES
    marks = "path.js-line, .heatmaplayer image, .points path, canvas"
    for key in FIGURES:
        for plot in browser.find_elements(By.CSS_SELECTOR, f"#{key} .plot"):
            assert plot.find_elements(By.CSS_SELECTOR, marks), key
    assert len(browser.find_elements(By.CSS_SELECTOR, "#accuracy .js-line")) >= 12  # bands and lines of six runs
    assert len(browser.find_elements(By.CSS_SELECTOR, "#landscape canvas")) >= 5


def landscapes_switch_between_surfaces_and_contours(browser: webdriver.Chrome) -> None:
    views = {b.get_attribute("data-view"): b for b in browser.find_elements(By.CSS_SELECTOR, "[data-view]")}
    scales = set()
    for view, kind in (("contours", "contour"), ("3d", "surface"), ("contours", "contour"), ("3d", "surface")):
        views[view].click()
        assert browser.execute_script(TYPES) == [kind] * 5
        assert views[view].get_attribute("aria-pressed") == "true"
        drawn = ".contourlayer path" if kind == "contour" else "canvas"
        wait(browser, f"return document.querySelectorAll('#landscape {drawn}').length >= 5")
        ends = "zmin, p.data[0].zmax" if kind == "contour" else "cmin, p.data[0].cmax"
        script = f"return [...document.querySelectorAll('#landscape .plot')].map(p => [p.data[0].{ends}])"
        scales |= {tuple(pair) for pair in browser.execute_script(script)}
    assert len(scales) == 1


def turning_one_surface_turns_all(browser: webdriver.Chrome) -> None:
    turn = "Plotly.relayout(document.querySelector('#landscape .plot'), {'scene.camera': {eye: {x: 0, y: 2, z: 1}}})"
    browser.execute_script(turn)
    eyes = "[...document.querySelectorAll('#landscape .plot')].map(p => p._fullLayout.scene.camera.eye.y)"
    wait(browser, f"return {eyes}.every(y => y === 2)")


def tables_have_all_methods_and_sort(browser: webdriver.Chrome) -> None:
    for table in ("headline", "flat"):
        head = browser.find_element(By.CSS_SELECTOR, f"#{table} th button")
        browser.execute_script("arguments[0].click()", head)
        names = [cell.text for cell in browser.find_elements(By.CSS_SELECTOR, f"#{table} td:first-child")]
        assert [name.lower().partition(" ")[0] for name in names] == sorted(METHODS, reverse=True)


def damaged_and_half_finished_runs_are_reported_and_skipped(browser: webdriver.Chrome, folder: Path) -> None:
    warnings = [note.text for note in browser.find_elements(By.CSS_SELECTOR, "main > .warning")]
    assert len(warnings) == 2
    assert f"skipped: {folder / 'damaged'}" in warnings[0]
    assert f"skipped in the results: {folder / 'half'}: unfinished (round 3 of 3)" in warnings[1]


def downloaded(browser: webdriver.Chrome, folder: Path, key: str, kind: str) -> Path:
    """Click a button and wait for the file it saves."""
    button, path = f"document.querySelector('#{key} [data-save={kind}]')", folder / f"{key}.{kind}"
    browser.execute_script(f"{button}.click()")
    until(lambda: path.exists() and path.stat().st_size, f"{path.name} was not downloaded")
    time.sleep(0.11)  # Chromium drops what a page saves beyond ten files in a second
    return path


def figures_and_their_data_can_be_saved(key: str, browser: webdriver.Chrome, folder: Path) -> None:
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})
    with Image.open(downloaded(browser, folder, key, "png")) as image:
        assert image.width >= 1200
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 50
    with downloaded(browser, folder, key, "csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert head[0] == "name"
    assert rows
    assert {len(row) for row in rows} == {len(head)}
    if key == "landscape":
        assert len(rows) == len(METHODS) * 7 * 7


def nothing_is_logged_and_nothing_fetched(browser: webdriver.Chrome) -> None:
    assert errors(browser) == []
    fetched = "return performance.getEntriesByType('resource').map(e => e.name).filter(n => /^(http|file)/.test(n))"
    assert browser.execute_script(fetched) == []


def a_browser_without_webgl_shows_contours_and_says_so(browser: webdriver.Chrome, page: Path) -> None:
    visit(browser, page, only=("landscape",))
    assert browser.execute_script(TYPES) == ["contour"] * 5
    assert "no WebGL" in browser.find_element(By.CSS_SELECTOR, "#landscape .warning").text
    assert not browser.find_element(By.CSS_SELECTOR, "[data-view='3d']").is_enabled()
    assert errors(browser) == []
