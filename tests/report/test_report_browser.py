"""The page in a real browser: figures draw, columns sort, it fits a phone, nothing is logged."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from fedflat.cli import main

MakeRun = Callable[..., Path]
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    if not CHROMIUM or not DRIVER:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1200,1400"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def page(browser: webdriver.Chrome, make_run: MakeRun, tmp_path: Path) -> webdriver.Chrome:
    runs = [
        make_run("steady", [0.5, 0.7, 0.9], seconds=12),
        make_run("quick", [0.6, 0.65, 0.7], seconds=3),
        make_run("lost", [0.2, 0.1, 0.1], seconds=100, lost=True),
        make_run("half", [0.3, 0.4], finished=False),
    ]
    assert main(["report", *map(str, runs), "--target", "0.45", "--out", str(tmp_path / "page.html")]) == 0
    browser.get((tmp_path / "page.html").as_uri())
    WebDriverWait(browser, 20).until(lambda b: len(b.find_elements(By.CSS_SELECTOR, ".main-svg")) >= 2)
    return browser


def first_column(page: webdriver.Chrome) -> list[str]:
    return [cell.text for cell in page.find_elements(By.CSS_SELECTOR, "#headline tbody td:first-child")]


def test_figures_are_drawn(page: webdriver.Chrome) -> None:
    figures = page.find_elements(By.CSS_SELECTOR, ".figure")
    assert len(figures) == 2
    for figure in figures:
        lines = figure.find_elements(By.CSS_SELECTOR, ".scatterlayer .trace path.js-line")
        assert len([line for line in lines if line.get_attribute("d")]) >= 4
        names = [text.text for text in figure.find_elements(By.CSS_SELECTOR, ".legendtext")]
        assert names == ["steady", "quick", "lost", "half"]


def test_columns_sort(page: webdriver.Chrome) -> None:
    orders = {
        "method": ["steady", "quick", "lost"],
        "last 10 %": ["steady", "quick", "lost"],
        "rounds to 45%": ["lost", "steady", "quick"],
        "seconds": ["lost", "steady", "quick"],
    }
    for head in page.find_elements(By.CSS_SELECTOR, "#headline th"):
        if order := orders.get(head.text):
            button = head.find_element(By.TAG_NAME, "button")
            button.click()
            assert first_column(page) == order
            assert head.get_attribute("aria-sort") == "descending"
            button.click()
            assert first_column(page) == order[::-1]
            assert head.get_attribute("aria-sort") == "ascending"
            orders.pop(head.text.rstrip(" ▲▼"))
    assert not orders


def test_best_run_is_bold(page: webdriver.Chrome) -> None:
    assert [row.text.split()[0] for row in page.find_elements(By.CSS_SELECTOR, "#headline tr.best")] == ["steady"]


def test_fits_a_phone_and_the_dark(page: webdriver.Chrome) -> None:
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    try:
        WebDriverWait(page, 20).until(
            lambda b: b.execute_script("return document.documentElement.scrollWidth <= 390 && innerWidth <= 390")
        )
        assert page.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_nothing_is_logged(page: webdriver.Chrome) -> None:
    assert page.get_log("browser") == []
