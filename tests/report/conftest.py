"""Fixtures of the report's tests: run folders, analyses and a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browsers import chromium
from selenium import webdriver
from synthetic_runs import write_analysis, write_run

MakeRun = Callable[..., Path]


@pytest.fixture(scope="session")
def browser() -> Iterator[webdriver.Chrome]:
    """One browser for all tests, without WebGL."""
    with chromium() as driver:
        yield driver


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """make_run(name, accuracies, ...) is write_run in a folder of the test."""
    return lambda name, *arguments, **options: write_run(tmp_path / name, *arguments, **options)


@pytest.fixture
def analyse() -> Callable[..., None]:
    """analyse(folder, height, shared_by, ...) writes the analysis of a run, measured with these settings."""
    return write_analysis
