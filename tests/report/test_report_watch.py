"""fedflat watch: a real server, real requests, and a browser that keeps its view while a run goes on."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browsers import errors, until, wait
from selenium import webdriver
from selenium.webdriver.common.by import By
from synthetic_runs import write_run

from fedflat.cli import main
from fedflat.report.live_server import LivePage, LiveServer

MakeRun = Callable[..., Path]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    server = LiveServer(LivePage([tmp_path], 0.8), "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def get(server: LiveServer, path: str, method: str = "GET", host: str = "") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_only_get_with_the_token_and_nothing_but_the_page(server: LiveServer, make_run: MakeRun) -> None:
    run, token = make_run("deep/inside/run", [0.5]), f"token={server.token}"
    assert get(server, f"/?{token}")[0] == 200
    assert get(server, "/")[0] == get(server, "/?token=wrong")[0] == get(server, "/update")[0] == 403
    assert get(server, f"/{run}/config.yaml?{token}")[0] == get(server, f"/../../etc/passwd?{token}")[0] == 404
    assert get(server, f"/?{token}", host="evil.example:80")[0] == 403
    assert get(server, f"/?{token}", method="POST")[0] == get(server, f"/?{token}", method="PUT")[0] == 501
    assert server.server_address[0] == "127.0.0.1"


def test_updates_come_when_a_run_has_changed(server: LiveServer, make_run: MakeRun) -> None:
    assert "No run has metrics yet" in get(server, f"/?token={server.token}")[1]
    run = make_run("run", [0.5, 0.6], finished=False)
    first = json.loads(get(server, f"/update?token={server.token}")[1])
    assert "FedAvg" in first["html"]
    assert "Plotly" not in first["html"]
    again = f"/update?token={server.token}&version={first['version']}"
    assert json.loads(get(server, again)[1]) == {"version": first["version"]}
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "seed": 0, "accuracy": 0.7, "loss": 0.1, "seconds": 1}\n{"round": 3, "se')
    assert "html" in json.loads(get(server, again)[1])


POINTS = "return document.querySelector('#accuracy .plot').data.filter(t => t.meta === 'line').map(t => t.x.length)"


def test_the_page_updates_itself_and_keeps_the_view(
    browser: webdriver.Chrome, server: LiveServer, tmp_path: Path
) -> None:
    write_run(tmp_path / "one", [0.5, 0.6], finished=False)
    write_run(tmp_path / "two", [0.4, 0.5], lr=0.1)
    browser.get(server.url)
    wait(browser, "drawAll(); return document.querySelector('#loss .main-svg')")
    wait(browser, "return version")
    browser.execute_script("document.querySelectorAll('#runs li input')[0].click()")
    browser.execute_script(
        "return Plotly.relayout(document.querySelector('#accuracy .plot'), {'yaxis.range': [0.2, 0.8]})"
    )
    browser.execute_script("document.querySelector('#loss').scrollIntoView(); window.same = true")
    top = browser.execute_script("return scrollY")
    with (tmp_path / "two" / "metrics.jsonl").open("a") as file:
        file.writelines(
            json.dumps({"round": 3, "seed": s, "accuracy": 0.9, "loss": 0.1, "seconds": 1.0}) + "\n" for s in (0, 1)
        )
    wait(
        browser,
        "const d = document.querySelector('#accuracy .plot').data; if (!d) { drawAll(); } " + POINTS + ".includes(3)",
    )
    assert browser.execute_script(POINTS) == [3]
    assert browser.execute_script("return document.querySelector('#accuracy .plot').layout.yaxis.range") == [0.2, 0.8]
    assert browser.execute_script("return [window.same, Math.abs(scrollY - arguments[0]) < 80]", top) == [True, True]
    assert errors(browser) == []
    browser.get("about:blank")  # a page that is left open would ask a server that has ended


def test_a_page_that_is_opened_before_the_first_run_waits_for_it(
    browser: webdriver.Chrome, server: LiveServer, make_run: MakeRun
) -> None:
    browser.get(f"{server.url}#at=loss")
    assert "No run has metrics yet" in browser.page_source
    make_run("run", [0.5, 0.6], finished=False)
    until(lambda: browser.find_elements(By.ID, "loss"), "the page did not look again")
    assert browser.current_url.endswith("#at=loss")
    browser.get("about:blank")


def test_what_is_on_the_screen_stays_there(browser: webdriver.Chrome, server: LiveServer, tmp_path: Path) -> None:
    write_run(tmp_path / "one", [0.5, 0.6], finished=False)
    browser.get(server.url)
    wait(browser, "drawAll(); return version")
    browser.execute_script("document.querySelector('#loss').scrollIntoView()")
    place = "return document.querySelector('#loss').getBoundingClientRect().top"
    before = browser.execute_script(place)
    write_run(tmp_path / "two", [0.5, 0.6], lr=0.1)
    wait(browser, "return document.querySelector('#headline')")
    assert browser.execute_script(place) == pytest.approx(before, abs=3), "although a table came above it"
    assert browser.title == "2 runs on digits"
    browser.get("about:blank")


def test_the_command_prints_the_address_and_ends_with_ctrl_c(make_run: MakeRun, tmp_path: Path, capsys) -> None:
    make_run("run", [0.5])
    words = [sys.executable, "-m", "fedflat", "watch", str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        line = process.stdout.readline()
        assert line.startswith("open http://127.0.0.1:")
        assert "/?token=" in line
        process.send_signal(2)
        try:
            assert process.wait(30) == 0
        finally:
            process.kill()
    for wrong, problem in ((["watch"], "name a folder"), (["watch", str(tmp_path / "none")], "is not a folder")):
        assert main(wrong) == 2
        assert problem in capsys.readouterr().err
