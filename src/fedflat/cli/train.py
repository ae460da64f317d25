"""fedflat run and fedflat compare."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from fedflat.cli.arguments import RunFiles, parse_flags, parse_method, refuse_inner, split_positionals
from fedflat.cli.catalogue import summary_line
from fedflat.cli.outputs import output_folder, slug
from fedflat.core.local_training import example_messages
from fedflat.core.method import Method
from fedflat.engine.processes import find_rank
from fedflat.engine.sequential import client_batches
from fedflat.errors import UserError
from fedflat.methods import METHODS
from fedflat.methods.differential_privacy import describe_privacy
from fedflat.options import Fraction
from fedflat.progress import LogTicker
from fedflat.runs.build import build_run
from fedflat.runs.config import dump_experiment, load_experiment, method_to_dict, same_run
from fedflat.runs.experiment import Experiment, Setting
from fedflat.runs.folder import OtherRunError
from fedflat.runs.result import Result
from fedflat.runs.train import run


@contextmanager
def tell_how_to_continue(
    command: list[str], folders: list[Path], out: Path, shown: Sequence[str] = ()
) -> Iterator[None]:
    """Whatever stops `command`, which trains in `folders` and reports with the flags `shown`, tells how to continue."""
    again = [*command, *shown]
    try:
        yield
    except OtherRunError as error:
        raise UserError(f"{error}, or continue that one: {_continue_command(again, error.path, out)}") from None
    except KeyboardInterrupt:
        begun = [folder for folder in folders if (folder / "config.yaml").exists()]
        if all((folder / "result.json").exists() for folder in folders):
            report = ["fedflat", "report", *map(str, folders), *shown]
            hint = f"training is complete; for the report: {shlex.join(report)}"
        else:
            hint = f"continue with: {_continue_command(again, begun[0], out)}" if begun else "nothing was written"
        raise KeyboardInterrupt(hint) from None


def _continue_command(command: list[str], folder: Path, out: Path) -> str:
    """The command that continues in `out` as one of its folders was begun."""
    return shlex.join(["fedflat", *command, "--config", str(folder / "config.yaml"), "--out", str(out), "--resume"])


def dry_run(experiments: Mapping[str, Experiment]) -> None:
    """One step of every method, by the words that name it; methods of one setting share data and model."""
    assembly = build_run(next(iter(experiments.values())))
    w, batch = assembly.starts[0], next(client_batches(assembly.feed, 0, 0, 0, 0))
    for name, experiment in experiments.items():
        method = experiment.method
        try:
            method.step(assembly.task, w, batch, example_messages(method, w)[0], method.init_client(w))
        except UserError as error:
            named = str(error).startswith(f"method {name}:")
            raise error if named else UserError(f"method {name}: {error}") from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareFiles(RunFiles):
    """Where the comparison is described and what it leaves."""

    out: Path | None = None
    """Folder for the results; runs/compare-DATE-TIME unless given."""
    target: Fraction = 0.8
    """Accuracy whose first reaching is counted in rounds."""


def run_command(words: list[str]) -> None:
    """Train one method."""
    names, flags = split_positionals(words)
    if len(names) > 1:
        raise UserError(f"run {' '.join(names)}: give one method; several are for fedflat compare")
    if not names and not _asks(flags, "--config", "--help", "-h"):
        raise UserError(f"run: name a method first, for example fedflat run fedsol; methods are {', '.join(METHODS)}")
    base = _from_file(flags)
    method = _method(names[0], base.method) if names else base.method
    known = f"Train one method: {', '.join(METHODS)}. fedflat run METHOD --help shows its own flags as well."
    about = f"Train {summary_line(type(method))}" if names else known
    prog = f"fedflat run {names[0] if names else 'METHOD'}"
    if names:
        refuse_inner(names[0], method, flags)
    options = parse_flags(method, base, RunFiles, flags, prog, about)
    values = {f.name: getattr(options.method, f.name) for f in dataclasses.fields(method)}
    experiment = _experiment(dataclasses.replace(method, **values), options.setting)
    label = names[0] if names else method_to_dict(method)["name"]
    leads = find_rank(experiment.engine).leads
    with output_folder(options.files, label, leads) as out, tell_how_to_continue(["run"], [out], out):
        result = train_with_bar(experiment, out, options.files.resume, label)
        if leads:
            _show([(label, result)], [out], out / "report.html", 0.8)


def compare_command(words: list[str]) -> None:
    """Train several methods under the same setting."""
    names, flags = split_positionals(words)
    if not names and not _asks(flags, "--help", "-h"):
        raise UserError("compare: name the methods first, for example fedflat compare fedavg fedsol:rho=2")
    if len(set(names)) < len(names):
        raise UserError(f"compare {' '.join(names)}: every method may appear once")
    base = _from_file(flags)
    methods = [parse_method(name) for name in names]
    about = f"Train several methods (NAME or NAME:rho=2,...) and compare them: {', '.join(METHODS)}."
    options = parse_flags(None, base, CompareFiles, flags, "fedflat compare METHOD METHOD ...", about)
    if find_rank(options.setting.engine).size > 1:
        raise UserError("compare: trains in one process; under torchrun use fedflat run for each method")
    experiments = {name: _experiment(method, options.setting) for name, method in zip(names, methods, strict=True)}
    with output_folder(options.files, "compare", leads=True) as out:
        folders = {name: out / slug(name) for name in names}
        target = options.files.target
        shown = [] if target == CompareFiles.target else ["--target", str(target)]
        with tell_how_to_continue(["compare", *names], list(folders.values()), out, shown):
            results = _compared(experiments, folders, options.files.resume)
            _show(results, list(folders.values()), out / "report.html", target)


def _compared(
    experiments: Mapping[str, Experiment], folders: Mapping[str, Path], resume: bool
) -> list[tuple[str, Result]]:
    """Every method's result, those of a resumed comparison as they are; what cannot be trained is refused first."""
    done = {name: _finished(experiment, folders[name], resume) for name, experiment in experiments.items()}
    if left := {name: experiment for name, experiment in experiments.items() if not done[name]}:
        dry_run(left)
    return [(name, done[name] or train_with_bar(e, folders[name], resume, name)) for name, e in experiments.items()]


def train_with_bar(experiment: Experiment, out: Path, resume: bool, label: str) -> Result:
    """Train with a live progress bar, or lines where there is no terminal, of which many processes show one."""
    from fedflat.progress import TrainingBar

    if not find_rank(experiment.engine).leads:
        return run(experiment, out, resume)
    pulse = LogTicker()
    with TrainingBar(label, experiment.rounds) as bar:

        def watch(round: int, rows: list[dict[str, Any]]) -> None:
            bar.update(round, rows)
            pulse.tell(_progress_line(label, round, experiment.rounds, rows))

        return run(experiment, out, resume, watch)


def _progress_line(label: str, round: int, rounds: int, rows: list[dict[str, Any]]) -> str:
    """How far training is, in words."""
    accuracy = f", accuracy {fmean(row['accuracy'] for row in rows):.1%}" if rows else ""
    return f"{label}: round {round} of {rounds}{accuracy}"


def _show(results: list[tuple[str, Result]], runs: list[Path], page: Path, target: float) -> None:
    """Write the report, where the packages that draw it are installed, and print the table."""
    from fedflat.public import write_report
    from fedflat.report.tables import print_results

    print_results(results, target)
    for label, result in results:
        if result.privacy:
            print(f"{label}: {describe_privacy(result.privacy)}")
    try:
        write_report(runs, page, target)
    except ImportError as missing:
        print(f"results in {page.parent}; no report, {missing.name} is not installed (fedflat report writes it later)")
        return
    print(f"results in {page.parent}, report in {page}")


def _finished(experiment: Experiment, folder: Path, resume: bool) -> Result | None:
    """The result that a resumed comparison keeps; refuses early what could not be trained or kept."""
    from fedflat.runs.read import read_stored_run

    experiment.check()
    config = folder / "config.yaml"
    if not config.exists():
        return None
    if not resume:
        raise UserError(f"--out {folder.parent}: already holds {folder.name}; add --resume or choose another folder")
    if not same_run(stored := config.read_text(encoding="utf-8", errors="replace"), dump_experiment(experiment)):
        raise OtherRunError(folder, stored, dump_experiment(experiment))
    return read_stored_run(folder).result if (folder / "result.json").exists() else None


def _asks(flags: Iterable[str], *wanted: str) -> bool:
    """Whether one of these flags is given."""
    return any(word.partition("=")[0] in wanted for word in flags)


def _from_file(flags: list[str]) -> Experiment:
    """The experiment of --config, or the defaults."""
    for word, value in pairwise([*flags, ""]):
        if word == "--config" and value:
            return load_experiment(Path(value))
        if word.startswith("--config="):
            return load_experiment(Path(word.removeprefix("--config=")))
    return Experiment()


def _method(spec: str, base: Method) -> Method:
    """The method a spec names, with the hyper-parameters of the config file where it is the file's method."""
    method = parse_method(spec)
    return base if type(method) is type(base) and ":" not in spec and "+" not in spec else method


def _experiment(method: Method, setting: Setting) -> Experiment:
    """The experiment that the parsed flags describe."""
    experiment = Experiment(method=method, **{f.name: getattr(setting, f.name) for f in dataclasses.fields(Setting)})
    experiment.check_named("train with fedflat.run in Python, or name another")
    return experiment
