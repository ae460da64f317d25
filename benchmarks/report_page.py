"""How long the report takes with many runs: writing the page, loading it in Chromium, hiding one run.

python benchmarks/report_page.py --runs 200 --evaluations 60
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

import fedflat as ff
from fedflat.methods.fedsol import FedSOL
from fedflat.runs.config import dump_experiment
from fedflat.runs.result import Result, summarise_history

TOGGLE = "const boxes = document.querySelectorAll('#runs li input'); boxes[arguments[0] % boxes.length].click()"


def write_run(folder: Path, number: int, evaluations: int, seeds: int = 3) -> None:
    """Write the folder of a run with made-up numbers; its method has one of five ρ, and its learning rate one of four.

    Args:
        folder: created.
        number: of the run; every 40th diverges half way.
        evaluations: rows of each seed.
        seeds: how many.
    """
    draw = random.Random(number)
    lr, rho = [0.01, 0.03, 0.1, 0.3][number % 4], [0.1, 0.5, 1.0, 2.0, 4.0][number // 4 % 5]
    experiment = ff.Experiment(
        method=FedSOL(rho=rho), lr=lr, seeds=tuple(range(seeds)), rounds=evaluations, partition_seed=number // 20
    )
    best, lost = 0.9 - 0.1 * abs(math.log10(lr / 0.05)) - 0.03 * abs(rho - 1), number % 40 == 39
    rows = []
    for round in range(1, evaluations + 1):
        for seed in range(seeds):
            broken = lost and round > evaluations // 2
            accuracy = 0.1 if broken else best * (1 - math.exp(-6 * round / evaluations)) + draw.gauss(0, 0.01)
            loss = None if broken else 2.3 * (1 - accuracy)
            rows.append({"round": round, "seed": seed, "accuracy": accuracy, "loss": loss, "seconds": 0.5 * round})
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump_experiment(experiment))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    numbers = {"client_steps_per_second": 9.0, "bytes_down_per_client_round": 4000, "bytes_up_per_client_round": 4000}
    facts = {"method": "fedsol", "seeds": [*range(seeds)], "versions": {"fedflat": "0"}, "parameters": 1000}
    summary = summarise_history(rows, [*range(seeds)])
    result = {**summary, **numbers, **facts, "seconds": 0.5 * evaluations, "rounds": evaluations}
    known = {f.name for f in dataclasses.fields(Result)}
    (folder / "result.json").write_text(json.dumps({key: value for key, value in result.items() if key in known}))


def measure_page(page: Path) -> dict[str, float]:
    """Return milliseconds of the main thread: until learning curves are on the screen, and to hide one run.

    They are the thread's processor time, which other programs on the machine do not change much.

    Args:
        page: the report.
    """
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for argument in ("--headless=new", "--no-sandbox", "--window-size=1440,1000"):
        options.add_argument(argument)
    with webdriver.Chrome(options, Service(shutil.which("chromedriver"))) as browser:
        browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        start = _busy(browser)
        browser.get(page.resolve().as_uri() + "#at=accuracy")
        drawn = "return document.querySelector('#accuracy .main-svg')"
        WebDriverWait(browser, 60).until(lambda b: b.execute_script(drawn))
        time.sleep(3)
        load = _busy(browser) - start
        steps = [_toggle(browser, number) for number in range(7)]
    names = ("hide a run, first figure", "all figures on the screen", "with what is drawn when idle")
    return {"load": load} | {name: statistics.median(step[n] for step in steps) for n, name in enumerate(names)}


def _toggle(browser: webdriver.Chrome, number: int) -> list[float]:
    """Hide a run and return the work until one figure shows it, until all do, and until all are drawn exactly."""
    before, found = _busy(browser), []
    for wait in (0.0, 0.3, 1.7):
        if not found:
            browser.execute_script(TOGGLE, number)
        time.sleep(wait)
        found.append(_busy(browser) - before)
    return found


def _busy(browser: webdriver.Chrome) -> float:
    """Return the milliseconds that the main thread has worked so far."""
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return next(1000 * each["value"] for each in metrics if each["name"] == "TaskDuration")


def main() -> None:
    """Write the runs and the page, and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--evaluations", type=int, default=60)
    parser.add_argument("--repeat", type=int, default=1, help="how often the page is opened in a new browser")
    parser.add_argument("--keep", type=Path, help="folder to keep runs and page in")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.keep or Path(temporary)
        missing = (number for number in range(chosen.runs) if not (folder / "runs" / f"run-{number:03}").exists())
        for number in missing:
            write_run(folder / "runs" / f"run-{number:03}", number, chosen.evaluations)
        start = time.perf_counter()
        ff.write_report(folder / "runs", folder / "page.html")
        written, page = time.perf_counter() - start, folder / "page.html"
        found = [measure_page(page) for _ in range(chosen.repeat)]
        size = f"{page.stat().st_size / 1e6:.1f} MB"
        print(f"{chosen.runs} runs, {chosen.evaluations} evaluations: written in {written:.1f} s, {size}")
        print(f"least and median of {chosen.repeat}, load average {os.getloadavg()[0]:.1f}")
        for name in found[0]:
            values = [each[name] for each in found]
            print(f"{name}: {min(values):.0f} ms, {statistics.median(values):.0f} ms")


if __name__ == "__main__":
    main()
