"""Start headless Chromium, with WebGL rendered in software or without WebGL, and wait for the page."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

WEBGL = ("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader")
PATIENCE = 100  # seconds: surfaces drawn in software take many on a busy machine; selenium itself gives up after 120
NO_WEBGL = ("--disable-gpu", "--disable-3d-apis")
DRAWN = """const plots = [...document.querySelectorAll('.panel:not([hidden]) .plot')];
return plots.every(plot => plot.querySelector('.main-svg')) && plots.length > 0"""

ONLY = """const others = CHARTS.filter(chart => !arguments[0].includes(chart.key));
others.forEach(chart => { home(chart).remove(); due.delete(chart); seen.delete(chart); });
CHARTS = CHARTS.filter(chart => !others.includes(chart))"""


@contextmanager
def chromium(*arguments: str) -> Iterator[webdriver.Chrome]:
    """Give a browser that records its console; skip the test if Chromium is not installed."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not binary or not driver:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    always = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1200,1400")
    for argument in (*always, *arguments):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, Service(driver))
    browser.set_script_timeout(PATIENCE)
    try:
        yield browser
    finally:
        browser.quit()


def visit(browser: webdriver.Chrome, page: Path, view: str = "", only: Sequence[str] = ()) -> webdriver.Chrome:
    """Open a page from disk with a view in its address, and wait until its figures, or only some, are drawn."""
    browser.get("about:blank")
    browser.get(page.as_uri() + view)
    if only:
        browser.execute_script(ONLY, only)
    browser.execute_script("drawAll()")
    wait(browser, DRAWN)
    return browser


def wait(browser: webdriver.Chrome, script: str) -> Any:
    """Wait until `script` returns something true, and return that."""
    return until(lambda: browser.execute_script(script), script)


def until(condition: Callable[[], Any], problem: str) -> Any:
    """Call `condition` until it returns something true, and return that; fail with `problem` if it never does."""
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, problem
        time.sleep(0.02)
    return found


@contextmanager
def phone(browser: webdriver.Chrome) -> Iterator[None]:
    """Emulate a phone's screen, 360 pixels wide."""
    size = {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def fits(browser: webdriver.Chrome) -> None:
    """Wait until nothing is wider than the phone's screen."""
    wait(browser, "return document.documentElement.scrollWidth <= 360 && innerWidth <= 360")
    wait(browser, "return [...document.querySelectorAll('.plot .main-svg')].every(svg => svg.clientWidth <= 360)")


def errors(browser: webdriver.Chrome) -> list[dict[str, Any]]:
    """Return the errors of the console; hints about rendering speed do not count."""
    return [e for e in browser.get_log("browser") if e["level"] == "SEVERE" or e["source"] != "rendering"]
