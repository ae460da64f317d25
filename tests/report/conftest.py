"""Fixtures of the report's tests: run folders, analyses and a browser."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browsers import NO_WEBGL, WEBGL, chromium
from selenium import webdriver
from synthetic_runs import write_analysis, write_run

from fedflat.data import digits

MakeRun = Callable[..., Path]


@pytest.fixture(scope="session")
def browser() -> Iterator[webdriver.Chrome]:
    """One browser for all tests, without WebGL."""
    with chromium(*NO_WEBGL) as driver:
        yield driver


@pytest.fixture(scope="session")
def surface_browser() -> Iterator[webdriver.Chrome]:
    """One browser for all tests of surfaces; WebGL is slow in software."""
    with chromium(*WEBGL) as driver:
        yield driver


@pytest.fixture(scope="session", autouse=True)
def digits_once() -> Iterator[None]:
    """Read the digits once; every page asks for them twice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "_read_values", functools.cache(digits._read_values))
        yield


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """make_run(name, accuracies, ...) is write_run in a folder of the test."""
    return lambda name, *arguments, **options: write_run(tmp_path / name, *arguments, **options)


@pytest.fixture
def analyse() -> Callable[..., None]:
    """analyse(folder, height, shared_by, ...) writes the analysis of a run, measured with these settings."""
    return write_analysis
