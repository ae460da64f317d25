"""The command line: fedflat COMMAND … Help and flags come from the dataclasses."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from fedflat.errors import UserError, near_miss

COMMANDS = {
    "run": ("fedflat.cli.train:run_command", "train one method: fedflat run fedsol --rho 2 --rounds 60"),
    "compare": ("fedflat.cli.train:compare_command", "train several methods: fedflat compare fedavg fedsol:rho=2"),
    "report": ("fedflat.cli.report:report_command", "write one HTML page about runs: fedflat report runs/*"),
    "analyse": ("fedflat.cli.analyse:analyse_command", "measure how flat minima are: fedflat analyse runs/*"),
    "personalise": ("fedflat.cli.personalise:personalise_command", "fine-tune a run's model for each client"),
    "methods": ("fedflat.cli.catalogue:methods_command", "list the methods, their options and what they send"),
    "probes": ("fedflat.cli.catalogue:probes_command", "list what can be measured during training and its cost"),
    "reach": ("fedflat.cli.report:reach_command", "rounds and bytes to an accuracy: fedflat reach runs/*"),
    "cite": ("fedflat.cli.catalogue:cite_command", "print the BibTeX entries of methods"),
    "reproduce": ("fedflat.cli.reproduce:reproduce_command", "a paper's table: fedflat reproduce fedsol/table2"),
    "toy": ("fedflat.cli.toy:toy_command", "FedSOL's two-dimensional example as a table and a picture"),
    "data": ("fedflat.cli:data_command", "prepare, list and show data sets"),
    "flower": ("fedflat.cli:flower_command", "train with clients on machines of their own"),
}


DATA = {
    "list": ("fedflat.cli.data:list_data", "what is prepared and what can be"),
    "prepare": ("fedflat.cli.data:prepare_data", "make a set ready: fedflat data prepare cifar10"),
    "show": (
        "fedflat.cli.data:show_data",
        "draw how a partition deals the classes: fedflat data show digits --alpha 0.1",
    ),
}


FLOWER = {"new": ("fedflat.cli.flower:new_app", "write a Flower app: fedflat flower new DIR --config config.yaml")}


INTERRUPTED = {  # what the user may want to know then; run and compare tell it themselves
    "analyse": "what was measured before is in analysis/ of each run's folder",
    "reproduce": "the same command continues where this one stopped",
    "personalise": "nothing was written",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the user's mistakes are one line on stderr and exit code 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    _allow_any_text()
    try:
        _dispatch("fedflat", COMMANDS, words)
        sys.stdout.flush()
    except UserError as error:
        return _complain(error, 2)
    except KeyboardInterrupt as stop:
        hints = stop.args or [INTERRUPTED[word] for word in words[:1] if word in INTERRUPTED]
        return _complain("; ".join(["interrupted", *hints]), 130)
    except BrokenPipeError:  # the reader went away, as head does; Python's own flush at exit shall not mind
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        return _complain(error, 1)
    except (MemoryError, RuntimeError) as error:
        if not _memory(error):
            raise
        return _complain("not enough memory; a smaller model, cohort or batch size needs less", 1)
    return 0


def _allow_any_text() -> None:
    """Signs that the terminal's encoding does not have, such as ± in ASCII, are printed as ? instead of ending all."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _memory(error: Exception) -> bool:
    """Whether Python, torch on a CPU or torch on a GPU ran out of memory."""
    return isinstance(error, MemoryError) or any(
        words in str(error) for words in ("out of memory", "can't allocate memory")
    )


def data_command(words: list[str]) -> None:
    """fedflat data …"""
    _dispatch("fedflat data", DATA, words)


def flower_command(words: list[str]) -> None:
    """fedflat flower …"""
    _dispatch("fedflat flower", FLOWER, words)


def _dispatch(prog: str, commands: Mapping[str, tuple[str, str]], words: list[str]) -> None:
    """Import and call the function of the command that the first word names."""
    if not words or words[0] in ("-h", "--help"):
        print(_usage(prog, commands))
    elif words[0] == "--version":
        from fedflat import __version__

        print(f"fedflat {__version__}")
    elif words[0] not in commands:
        known = f"commands are {', '.join(commands)}"
        name = f"{prog} {words[0]}".removeprefix("fedflat ")
        raise UserError(f"{name}: unknown command{near_miss(words[0], commands)}; {known}")
    else:
        module, _, function = commands[words[0]][0].partition(":")
        getattr(import_module(module), function)(words[1:])


def _usage(prog: str, commands: Mapping[str, tuple[str, str]]) -> str:
    rows = "\n".join(f"  {name:<12} {text}" for name, (_, text) in commands.items())
    return (
        f"usage: {prog} COMMAND ...\n\nFederated learning on heterogeneous data with methods that seek flat minima.\n\n"
        f"{rows}\n\n{prog} COMMAND --help shows the options of a command."
    )


def _complain(problem: object, code: int) -> int:
    """One line on stderr, whatever the problem's text is made of; of many processes all but the first give a name."""
    rank = os.environ.get("RANK", "0")
    who = "fedflat" if rank == "0" else f"fedflat: rank {rank}"
    print(f"{who}: {' '.join(str(problem).split())}", file=sys.stderr)
    return code
