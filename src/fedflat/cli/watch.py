"""fedflat watch: the report in a browser while runs train."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fedflat.cli.arguments import parse_options, split_positionals
from fedflat.core.metric import DEFAULT_TARGET
from fedflat.errors import UserError, mention
from fedflat.options import Fraction, Range


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """Serve the report of runs while they train; it updates itself and keeps your view. Ctrl-C ends it."""

    port: Annotated[int, Range(0, 65535)] = 0
    """Port to listen on; 0 takes one that is free."""
    host: str = "127.0.0.1"
    """Address to listen on. Any but this machine's own shows the page to all who can reach it and have the token."""
    target: Fraction = DEFAULT_TARGET
    """Accuracy for the column "rounds to ...": the first round that reaches it."""


def watch_command(words: list[str]) -> None:
    """Run fedflat watch FOLDER [FOLDER ...]."""
    names, flags = split_positionals(words)
    options = parse_options(WatchOptions, flags, "fedflat watch FOLDER [FOLDER ...]")
    folders = [Path(name) for name in names]
    if not folders:
        raise UserError(None, "watch", "name a folder of runs, for example fedflat watch runs")
    for folder in folders:
        if not folder.is_dir():
            raise UserError(None, f"watch {folder}", "is not a folder")
    serve_live_page(folders, options)


def serve_live_page(folders: list[Path], options: WatchOptions) -> None:
    """Serve until Ctrl-C; raise UserError if the address cannot be used.

    Args:
        folders: where to look for runs.
        options: the address, and the report's target.
    """
    from fedflat.report.live_server import LOOPBACK, LivePage, LiveServer
    from fedflat.reproduce import printed_by_papers

    try:
        server = LiveServer(LivePage(folders, options.target, printed_by_papers), options.host, options.port)
    except OSError as error:
        problem = f"cannot be used ({error.strerror or error}); {mention('port', 0)} takes one that is free"
        raise UserError("port", options.port, problem) from None
    try:
        print(f"open {server.url}", flush=True)
        if options.host not in LOOPBACK:
            print("all who can reach this machine and have the token see the page; it is sent unencrypted", flush=True)
        server.serve_forever()
    except KeyboardInterrupt:
        print("stopped")
    finally:
        server.server_close()
