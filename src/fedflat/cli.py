"""The command line: fedflat COMMAND … Help and flags come from the dataclasses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from fedflat.errors import UserError, near_miss


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the user's mistakes are one line on stderr and exit code 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except UserError as error:
        print(f"fedflat: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fedflat: interrupted; a run with --out continues with --resume", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(_usage())
        return 0
    if words[0] == "--version":
        from fedflat import __version__

        print(f"fedflat {__version__}")
        return 0
    if words[0] not in COMMANDS:
        raise UserError(f"command {words[0]}: unknown{near_miss(words[0], COMMANDS)}; see fedflat --help")
    COMMANDS[words[0]][0](words[1:])
    return 0


def _usage() -> str:
    rows = "\n".join(f"  {name:<12} {text}" for name, (_, text) in COMMANDS.items())
    return (
        "usage: fedflat COMMAND ...\n\nFederated learning on heterogeneous data with methods that seek flat minima.\n\n"
        f"{rows}\n\nfedflat COMMAND --help shows the options of a command."
    )


def _run(words: list[str]) -> None:
    from fedflat.commands.train import run_command

    run_command(words)


def _compare(words: list[str]) -> None:
    from fedflat.commands.train import compare_command

    compare_command(words)


def _methods(words: list[str]) -> None:
    from fedflat.commands.catalogue import methods_command

    methods_command(words)


def _cite(words: list[str]) -> None:
    from fedflat.commands.catalogue import cite_command

    cite_command(words)


def _report(words: list[str]) -> None:
    from fedflat.commands.catalogue import report_command

    report_command(words)


COMMANDS: dict[str, tuple[Callable[[list[str]], None], str]] = {
    "run": (_run, "train one method: fedflat run fedsol --rho 2 --rounds 60"),
    "compare": (_compare, "train several methods and compare them: fedflat compare fedavg fedsol"),
    "report": (_report, "write one HTML report of finished or unfinished runs"),
    "methods": (_methods, "list the methods, their hyper-parameters and what they send"),
    "cite": (_cite, "print the BibTeX entries of methods"),
}
