"""The command line: fedflat COMMAND … Flags and help are made from dataclasses of options.

A command's module is imported when the command is given, so that help and errors come fast.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from fedflat.errors import NOT_SHOWN, UserError, near_miss, shorten, spelled_by
from fedflat.files import disk_failed
from fedflat.runs.interrupt import ended_like_ctrl_c

ABOUT = "Federated learning on heterogeneous data with methods that seek flat minima."
COMMANDS = {
    "run": ("fedflat.cli.train:run_command", "train one method: fedflat run fedsol --rho 2 --rounds 60"),
    "compare": ("fedflat.cli.train:compare_command", "train several methods: fedflat compare fedavg fedsol:rho=2"),
    "sweep": (
        "fedflat.cli.sweep:sweep_command",
        "train a grid of options: fedflat sweep fedsol rho=0.5,1,2",
    ),
    "tune": ("fedflat.cli.tune:tune_command", "search for good options: fedflat tune fedsol --space rho=0.1..5:log"),
    "report": ("fedflat.cli.report:report_command", "write one HTML page about runs: fedflat report runs/*"),
    "watch": ("fedflat.cli.watch:watch_command", "the report in a browser while runs train: fedflat watch runs"),
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
        "draw how a partition splits the classes: fedflat data show digits --alpha 0.1",
    ),
}


FLOWER = {"new": ("fedflat.cli.flower:new_app", "write a Flower app: fedflat flower new DIR --config config.yaml")}


UNUSABLE_NAMES = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)  # mistakes in paths that were given


INTERRUPTED = {  # what Ctrl-C prints after "interrupted"; run and compare print how to continue
    "analyse": "what was measured before is in analysis/ of each run's folder",
    "reproduce": "the same command continues where this one stopped",
    "personalise": "nothing was written",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    A mistake of the user is one line on stderr and code 2, an error of the system code 1, Ctrl-C code 130,
    SIGTERM and SIGHUP code 143.

    Args:
        argv: the words after fedflat; those of this process if None.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    words = [word for word in given if word != "--debug"]
    os.environ.setdefault(
        "OMP_WAIT_POLICY", "passive"
    )  # threads that wait sleep; where cores are busy, spinning stalls
    _replace_unknown_characters()
    with spelled_by(flag_spelling), ended_like_ctrl_c():
        return _run(words, debug=words != given)


def flag(field: str) -> str:
    """Return the flag of a field: batch_size is --batch-size. A field that is a word of Python, from_, ends in _."""
    return "--" + field.rstrip("_").replace("_", "-")


def flag_spelling(option: str, value: Any) -> str:
    """Return an option and its value as typed on the command line: --perturb all, or --no-regularise for False."""
    if value is NOT_SHOWN or value is True:
        return shorten(flag(option))
    if value is False:
        return flag(f"no_{option}")
    from fedflat.options import value_words

    try:
        words = value_words(value)
    except ValueError:  # a number that Python does not write
        words = [shorten(value)]
    return shorten(" ".join([flag(option), *words]))


def _run(words: list[str], debug: bool) -> int:
    """Run one command; turn what it raises into a line on stderr and an exit code, or a traceback if `debug`."""
    try:
        _dispatch("fedflat", COMMANDS, words, ABOUT)
        sys.stdout.flush()
    except UserError as error:
        if debug and error.__cause__:
            raise
        return _print_error(error, 1 if disk_failed(error) else 2)
    except KeyboardInterrupt as stop:
        hints = stop.args or [INTERRUPTED[word] for word in words[:1] if word in INTERRUPTED]
        return _print_error("; ".join(["interrupted", *hints]), getattr(stop, "exit_code", 130))
    except BrokenPipeError:  # the reader ended, as head does; without this, Python's flush at exit would fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        problem = f"{shorten(error.filename)}: {error.strerror}" if error.filename and error.strerror else error
        return _print_error(problem, 2 if error.errno in UNUSABLE_NAMES else 1)
    except SystemExit:  # of the help
        raise
    except BaseException as error:
        if _is_out_of_memory(error):
            return _print_error("not enough memory; a smaller model, cohort or batch size needs less", 1)
        if debug:
            raise
        if disk_failed(error):  # some libraries raise something else while they clean up
            return _print_error("a file cannot be written; the disk is full or broken", 1)
        problem = f"{type(error).__name__}: {shorten(error)}"
        return _print_error(f"internal error ({problem}); the same command with --debug shows where", 1)
    return 0


def _replace_unknown_characters() -> None:
    """Print a character that the terminal's encoding lacks, such as ± in ASCII, as ? instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _is_out_of_memory(error: BaseException) -> bool:
    """Return whether Python, torch on a CPU or torch on a GPU ran out of memory."""
    return isinstance(error, MemoryError) or any(
        words in str(error) for words in ("out of memory", "can't allocate memory")
    )


def data_command(words: list[str]) -> None:
    """Run fedflat data COMMAND."""
    _dispatch("fedflat data", DATA, words, "Prepare, list and show data sets.")


def flower_command(words: list[str]) -> None:
    """Run fedflat flower COMMAND."""
    _dispatch("fedflat flower", FLOWER, words, "Train with clients on machines of their own, with Flower.")


def _dispatch(prog: str, commands: Mapping[str, tuple[str, str]], words: list[str], about: str) -> None:
    """Import and call the function of the command that the first word names, with the other words."""
    if not words or words[0] in ("-h", "--help"):
        print(_usage(prog, commands, about))
    elif words[0] == "--version":
        from fedflat import __version__

        print(f"fedflat {__version__}")
    elif words[0] not in commands:
        name = f"{prog} {words[0]}".removeprefix("fedflat ")
        hint = near_miss(words[0], commands)
        raise UserError(None, name, f"unknown command{hint}; commands are {', '.join(commands)}")
    else:
        module, _, function = commands[words[0]][0].partition(":")
        getattr(import_module(module), function)(words[1:])


def _usage(prog: str, commands: Mapping[str, tuple[str, str]], about: str) -> str:
    rows = "\n".join(f"  {name:<12} {text}" for name, (_, text) in commands.items())
    end = f"{prog} COMMAND --help shows the options of a command, --debug the traceback of an error."
    return f"usage: {prog} COMMAND ...\n\n{about}\n\n{rows}\n\n{end}"


def _print_error(problem: object, code: int) -> int:
    """Print one line on stderr and return `code`. Ranks other than 0 begin the line with their number."""
    rank = os.environ.get("RANK", "0")
    prefix = "fedflat" if rank == "0" else f"fedflat: rank {rank}"
    print(f"{prefix}: {' '.join(str(problem).split())}", file=sys.stderr)
    return code
