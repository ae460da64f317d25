"""The page about made-up runs in a real browser: columns sort, lines can be smoothed and hidden, it fits a phone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browsers import chromium, errors, fits, phone, visit, wait
from selenium import webdriver
from selenium.webdriver.common.by import By

from fedflat.cli import main

MakeRun = Callable[..., Path]
LINES = "return document.querySelector('#accuracy .plot').data.filter(trace => trace.meta === 'line')"


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    with chromium() as driver:
        yield driver


@pytest.fixture
def page(browser: webdriver.Chrome, make_run: MakeRun, tmp_path: Path) -> webdriver.Chrome:
    runs = [
        make_run("steady", [0.5, 0.7, 0.9], seconds=12),
        make_run("quick", [0.6, 0.65, 0.7], seconds=3),
        make_run("lost", [0.2, 0.1, 0.1], seconds=100, lost=True),
        make_run("half", [0.3, 0.4], finished=False),
    ]
    assert main(["report", *map(str, runs), "--target", "0.45", "--out", str(tmp_path / "page.html")]) == 0
    return visit(browser, tmp_path / "page.html")


def first_column(page: webdriver.Chrome) -> list[str]:
    return [cell.text for cell in page.find_elements(By.CSS_SELECTOR, "#headline tbody td:first-child")]


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


def test_smoothing_is_a_moving_average_over_the_faint_raw_line(page: webdriver.Chrome) -> None:
    slider = page.find_element(By.CSS_SELECTOR, "#accuracy input")
    page.execute_script("arguments[0].value = 0.5; arguments[0].dispatchEvent(new Event('input'))", slider)
    smoothed = page.execute_script(LINES)[0]["y"]
    assert smoothed == pytest.approx([0.45, (0.45 + 2 * 0.65) / 3, (0.45 + 2 * 0.65 + 4 * 0.85) / 7])
    raw = page.execute_script(LINES.replace("line", "raw"))
    assert raw[0]["y"] == pytest.approx([0.45, 0.65, 0.85])
    assert raw[0]["opacity"] < 0.5
    page.execute_script("arguments[0].value = 0; arguments[0].dispatchEvent(new Event('input'))", slider)
    assert page.execute_script(LINES)[0]["y"] == pytest.approx([0.45, 0.65, 0.85])


def test_lines_hide_and_return(page: webdriver.Chrome) -> None:
    button = page.find_element(By.CSS_SELECTOR, "#accuracy .legend button")
    for names, pressed in ((["quick", "lost", "half"], "false"), (["steady", "quick", "lost", "half"], "true")):
        button.click()
        assert [line["name"] for line in page.execute_script(LINES)] == names
        assert button.get_attribute("aria-pressed") == pressed


def background(page: webdriver.Chrome) -> str:
    return page.execute_script("return getComputedStyle(document.body).backgroundColor")


def test_fits_a_phone(page: webdriver.Chrome) -> None:
    with phone(page):
        fits(page)


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


def test_paper_is_white_and_narrow(page: webdriver.Chrome) -> None:
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
