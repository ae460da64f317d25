"""Serve the report of runs that are still training: the same page, which fetches what has changed and keeps its view.

Only GET, only with the token of the address, and nothing but the page itself: no file of the machine can be asked for.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedflat.report.html import page_contents, render_page, run_warnings
from fedflat.report.page_tables import PrintedAccuracy
from fedflat.report.run_labels import label_runs
from fedflat.runs.read import read_stored_runs

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SAFE_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",  # the token is in the address
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'unsafe-inline'; img-src data: blob:; connect-src 'self'",
}
WAITING = """<!doctype html><meta charset="utf-8"><title>fedflat watch</title>
<script>setTimeout(() => location.reload(), 3000)</script>
<p style="font: 16px system-ui; margin: 3em">No run has metrics yet. This page looks again every three seconds.</p>"""


class LivePage:
    """The page about all runs below some folders, made again when a file of a run has changed.

    Args:
        folders: where to look for runs, at any depth.
        target: accuracy, as a fraction, for the column "rounds to …".
        printed: what papers print for a run's configuration.
    """

    def __init__(self, folders: Sequence[Path], target: float, printed: PrintedAccuracy | None = None) -> None:
        self._folders, self._target, self._printed = folders, target, printed
        self._lock, self._version, self._page, self._part = threading.Lock(), "", WAITING, ""

    def current(self) -> tuple[str, str, str]:
        """Return the version of the runs' files, the whole page, and the part of it that changes."""
        with self._lock:
            version = self._files_version()
            if version != self._version:
                self._page, self._part = self._render()
                self._version = version
            return self._version, self._page, self._part

    def _run_folders(self) -> list[Path]:
        return sorted({path.parent for folder in self._folders for path in folder.rglob("config.yaml")})

    def _files_version(self) -> str:
        """Return a text that changes whenever a run's metrics, result or analysis does."""
        return str(hash(tuple(self._file_stamps())))

    def _file_stamps(self) -> Iterator[tuple[str, int, int]]:
        for folder in self._run_folders():
            for path in (folder / "metrics.jsonl", folder / "result.json", *sorted(folder.glob("analysis/*.json"))):
                if path.exists():
                    found = path.stat()
                    yield str(path), found.st_mtime_ns, found.st_size

    def _render(self) -> tuple[str, str]:
        runs, problems = read_stored_runs(self._run_folders())
        if not runs:
            return WAITING, ""
        runs = label_runs(runs)
        contents = page_contents(runs)
        warnings = [*(f"skipped: {problem}" for problem in problems), *run_warnings(runs), *contents.warnings]
        whole, part = (
            render_page(runs, contents, warnings, self._target, self._printed, live=live) for live in ("page", "part")
        )
        return whole, part


class LiveServer(ThreadingHTTPServer):
    """A server for one LivePage.

    Args:
        page: what to serve.
        host: the address to listen on.
        port: the port, 0 for any that is free.
    """

    daemon_threads = True

    def __init__(self, page: LivePage, host: str, port: int) -> None:
        self.page, self.token, self.loopback = page, secrets.token_urlsafe(16), host in LOOPBACK
        super().__init__((host, port), PageHandler)

    @property
    def url(self) -> str:
        """The address of the page, with its token."""
        return f"http://{self.server_address[0]!s}:{self.server_port}/?token={self.token}"


class PageHandler(BaseHTTPRequestHandler):
    """Answers GET / with the page and GET /update with what has changed; everything else is refused."""

    server: LiveServer

    def do_GET(self) -> None:
        """Answer one request."""
        address = urlsplit(self.path)
        words = parse_qs(address.query)
        if not self._is_allowed(words.get("token", [""])[0]):
            self._answer(403, "text/plain", "the address of this page has a token; fedflat watch prints it\n")
        elif address.path == "/":
            self._answer(200, "text/html", self.server.page.current()[1])
        elif address.path == "/update":
            version, _, part = self.server.page.current()
            known = words.get("version", [""])[0]
            new: dict[str, Any] = {} if version == known else {"html": part}
            self._answer(200, "application/json", json.dumps({"version": version, **new}))
        else:
            self._answer(404, "text/plain", "there is one page: /\n")

    def _is_allowed(self, token: str) -> bool:
        """Check the token and, on loopback, that the browser was led here by this machine's own name."""
        name = self.headers.get("Host", "").rpartition(":")[0].strip("[]")
        known = not self.server.loopback or name in LOOPBACK
        return known and secrets.compare_digest(token.encode(), self.server.token.encode())

    def _answer(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in SAFE_HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: a line for every update would hide the address."""
