"""fedflat run and fedflat compare: train one method, or several with the same setting."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from fedflat.cli.arguments import (
    OutputFiles,
    RunFiles,
    check_inner_flags,
    parse_flags,
    parse_method,
    split_method,
    split_positionals,
)
from fedflat.cli.catalogue import summary_line
from fedflat.cli.outputs import output_folder, slug
from fedflat.core.local_training import example_messages
from fedflat.core.method import Method
from fedflat.engine.ranks import find_rank
from fedflat.engine.sequential import client_batches
from fedflat.errors import UserError, mention
from fedflat.methods import METHODS
from fedflat.methods.differential_privacy import describe_privacy
from fedflat.own_code import short_own_code
from fedflat.progress import TrainingBar
from fedflat.runs.build import build_run
from fedflat.runs.callbacks import Callback
from fedflat.runs.config import (
    MAY_CHANGE,
    dump_experiment,
    growing_options,
    load_experiment,
    same_run,
)
from fedflat.runs.experiment import Experiment, Setting
from fedflat.runs.folder import OtherRunError, check_run_files
from fedflat.runs.result import Result
from fedflat.runs.stopping import StopAtAccuracy
from fedflat.runs.trackers import MLflowLogger, TensorBoardLogger, WandbLogger
from fedflat.runs.train import check_method, run

F = TypeVar("F", bound=OutputFiles)


@contextmanager
def tell_how_to_continue(
    command: list[str], folders: list[Path], out: Path, report_flags: Sequence[str] = ()
) -> Iterator[None]:
    """Add the command that continues a run to the message of Ctrl-C, and to that of a folder with other options.

    Args:
        command: the words after fedflat, without options.
        folders: the folders of the runs that the command trains.
        out: the folder of --out.
        report_flags: flags of the report, such as --target 0.9.
    """
    command = [*command, *report_flags]
    try:
        yield
    except OtherRunError as error:
        again = _continue_command(command, error.value, out)
        raise UserError("out", error.value, f"{error.problem}, or continue that one: {again}") from None
    except KeyboardInterrupt as stop:
        begun = [folder for folder in folders if (folder / "config.yaml").exists()]
        if all((folder / "result.json").exists() for folder in folders):
            report = ["fedflat", "report", *map(str, folders), *report_flags]
            hint = f"training is complete; for the report: {shlex.join(report)}"
        else:
            hint = f"continue with: {_continue_command(command, begun[0], out)}" if begun else "nothing was written"
        stop.args = (hint,)
        raise


def _continue_command(command: list[str], folder: Path, out: Path) -> str:
    """The command that continues in `out` with the configuration of the run in `folder`."""
    return shlex.join(["fedflat", *command, "--config", str(folder / "config.yaml"), "--out", str(out), "--resume"])


def dry_run(experiments: Mapping[str, Experiment]) -> None:
    """Take one local step with every method; raise UserError for a method that cannot be trained.

    Args:
        experiments: experiments with the same setting, by the words that name their methods.
    """
    built = build_run(next(iter(experiments.values())))
    w, batch = built.initial_params[0], next(client_batches(built.client_data, 0, 0, 0, 0))
    for name, experiment in experiments.items():
        method = experiment.method
        check_method(experiment, built)
        try:
            method.step(built.task, w, batch, example_messages(method, w)[0], method.init_client(w))
        except UserError as error:
            subject = f"method {name}"
            raise error if error.value == subject else UserError(None, subject, error) from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareFiles(RunFiles):
    """Configuration file and results."""

    out: Path | None = None
    """Folder for the results; runs/compare-DATE-TIME unless given."""


def run_command(words: list[str]) -> None:
    """Train one method."""
    names, flags = split_positionals(words)
    if len(names) > 1:
        raise UserError(None, f"run {' '.join(names)}", "give one method; several are for fedflat compare")
    if not names and not _has_flag(flags, "--config", "--resume", "--help", "-h"):
        example = "name a method first, for example fedflat run fedsol"
        raise UserError(None, "run", f"{example}; methods are {', '.join(METHODS)}")
    if not names and not _has_flag(flags, "--config", "--help", "-h"):
        _check_continues(_flag_value(flags, "--out"))
    about = f"Train one method: {', '.join(METHODS)}. fedflat run METHOD --help shows its own flags as well."
    experiment, files = parse_experiment(names[0] if names else None, flags, RunFiles, "run METHOD", about, [""])
    label = short_own_code(names[0] if names else METHODS.name_of(type(experiment.method)))
    leads = find_rank(experiment.engine).leads
    with output_folder(files, label, leads) as out, _hints(["run"], [out], out, files):
        result = train_with_bar(experiment, out, label, files)
        if leads:
            _print_and_report([(label, result)], [out], out / "report.html", files.target)


def _check_continues(out: str) -> None:
    """Raise UserError if no run in the folder of --out says which method a resumed run without a name is of."""
    if out and not (Path(out) / "config.yaml").exists():
        start = f"fedflat run fedsol --out {shlex.quote(out)}"
        raise UserError("out", out, f"holds no run to continue; to start one, name its method: {start}")


def parse_experiment(
    spec: str | None, flags: list[str], files: type[F], usage: str, about: str, runs: Sequence[str] = ()
) -> tuple[Experiment, F]:
    """Return the experiment of one method that a command line describes, and its options `files`.

    Args:
        spec: the word that names the method; None to take that of --config.
        flags: the words from the first flag on.
        files: the class of the options of the command.
        usage: the command as the help shows it, with METHOD for the method.
        about: the help's first paragraph where no method is named.
        runs: the folders in that of --out whose options --resume takes; "" is that of --out itself.
    """
    base = _base_experiment(flags, runs)
    method = _choose_method(spec, base.method) if spec else base.method
    if spec:
        check_inner_flags(spec, method, flags)
        usage, about = usage.replace("METHOD", spec), f"Train {summary_line(type(method))}"
    options = parse_flags(method, base, files, flags, f"fedflat {usage}", about)
    values = {f.name: getattr(options.method, f.name) for f in dataclasses.fields(method)}
    return _make_experiment(dataclasses.replace(method, **values), options.setting), options.files


def compare_command(words: list[str]) -> None:
    """Train several methods with the same setting."""
    names, flags = split_positionals(words)
    if not names and not _has_flag(flags, "--help", "-h"):
        raise UserError(None, "compare", "name the methods first, for example fedflat compare fedavg fedsol:rho=2")
    labels = [short_own_code(name) for name in names]
    if len(set(labels)) < len(labels):
        raise UserError(None, f"compare {' '.join(names)}", "every method may appear once")
    base = _base_experiment(flags, map(slug, labels))
    methods = [parse_method(name) for name in names]
    about = f"Train several methods (NAME or NAME:rho=2,...) and compare them: {', '.join(METHODS)}."
    options = parse_flags(None, base, CompareFiles, flags, "fedflat compare METHOD METHOD ...", about)
    if find_rank(options.setting.engine).size > 1:
        raise UserError(None, "compare", "trains in one process; under torchrun use fedflat run for each method")
    pairs = zip(labels, methods, strict=True)
    experiments = {label: _make_experiment(method, options.setting) for label, method in pairs}
    with output_folder(options.files, "compare", leads=True) as out:
        folders = {label: out / slug(label) for label in labels}
        with _hints(["compare", *names], list(folders.values()), out, options.files):
            results = _train_all(experiments, folders, options.files)
            _print_and_report(results, list(folders.values()), out / "report.html", options.files.target)


def _hints(command: list[str], folders: list[Path], out: Path, files: RunFiles) -> AbstractContextManager[None]:
    """tell_how_to_continue, with the flags that config.yaml does not hold."""
    report_flags = [] if files.target == RunFiles.target else ["--target", str(files.target)]
    stop = [] if files.stop_at_accuracy is None else ["--stop-at-accuracy", str(files.stop_at_accuracy)]
    track = ["--track", *files.track] if files.track else []
    return tell_how_to_continue([*command, *stop, *track], folders, out, report_flags)


def _train_all(
    experiments: Mapping[str, Experiment], folders: Mapping[str, Path], files: RunFiles
) -> list[tuple[str, Result]]:
    """The result of every method by its name. Methods that a resumed comparison has finished are not trained again."""
    done = {name: _finished_result(e, folders[name], files.resume) for name, e in experiments.items()}
    if remaining := {name: experiment for name, experiment in experiments.items() if not done[name]}:
        dry_run(remaining)
    counted = {name: f"{name} ({number} of {len(experiments)})" for number, name in enumerate(experiments, 1)}
    return [
        (name, done[name] or train_with_bar(experiment, folders[name], counted[name], files))
        for name, experiment in experiments.items()
    ]


TRACKERS = {"wandb": WandbLogger, "mlflow": MLflowLogger, "tensorboard": TensorBoardLogger}


def make_callbacks(files: RunFiles) -> list[Callback]:
    """Return the callbacks that the options of a command ask for."""
    stop = [] if files.stop_at_accuracy is None else [StopAtAccuracy(files.stop_at_accuracy)]
    return [*(TRACKERS[name]() for name in files.track), *stop]


def train_with_bar(experiment: Experiment, out: Path, label: str, files: RunFiles) -> Result:
    """Train with a progress bar, or with a line now and then if stderr is not a terminal. Only rank 0 shows it.

    Args:
        experiment: what to train.
        out: the run's folder.
        label: the words that name the method.
        files: whether to continue an interrupted run, when to stop, and what to write.
    """
    callbacks = make_callbacks(files)
    if not find_rank(experiment.engine).leads:
        return run(experiment, out, files.resume, callbacks=callbacks)
    with TrainingBar(label, experiment.rounds) as bar:
        return run(experiment, out, files.resume, bar.update, callbacks)


def _print_and_report(results: list[tuple[str, Result]], runs: list[Path], page: Path, target: float) -> None:
    """Print the table of results, and write the report if the packages that it needs are installed."""
    from fedflat.report.run_labels import label_runs
    from fedflat.report.tables import print_results
    from fedflat.reproduce import write_report
    from fedflat.runs.read import read_stored_runs

    print_results(label_runs(read_stored_runs(runs)[0]), target)
    for label, result in results:
        if result.stopped:
            print(f"{label}: stopped after round {result.rounds} ({result.stopped})")
        if result.privacy:
            print(f"{label}: {describe_privacy(result.privacy)}")
    try:
        write_report(runs, page, target)
    except ImportError as missing:
        print(f"results in {page.parent}; no report, {missing.name} is not installed (fedflat report writes it later)")
        return
    print(f"results in {page.parent}, report in {page}")


def _finished_result(experiment: Experiment, folder: Path, resume: bool) -> Result | None:
    """The result in the folder of a resumed comparison, None if the method still has to be trained.

    Raises UserError if the options cannot be used or the folder belongs to another run.
    """
    from fedflat.runs.read import finished_result

    experiment.check()
    config, given = folder / "config.yaml", dump_experiment(experiment)
    if not config.exists():
        return None
    check_run_files(folder)
    if not resume:
        problem = f"already holds {folder.name}; add {mention('resume')} or choose another folder"
        raise UserError("out", folder.parent, problem)
    stored = config.read_text(encoding="utf-8", errors="replace")
    may_differ = (*MAY_CHANGE, *growing_options(stored, given))
    if not same_run(stored, given, may_differ):
        raise OtherRunError(folder, stored, given, may_differ)
    return finished_result(folder, experiment)


def _has_flag(words: Iterable[str], *flags: str) -> bool:
    """Whether one of `flags` is given."""
    return any(word.partition("=")[0] in flags for word in words)


def _flag_value(flags: Sequence[str], name: str) -> str:
    """The value of a flag, '' if it is not given; the last one counts, as for every option."""
    for word, value in reversed([*pairwise([*flags, ""])]):
        if word == name or word.startswith(f"{name}="):
            return value if word == name else word.removeprefix(f"{name}=")
    return ""


def _base_experiment(flags: list[str], runs: Iterable[str]) -> Experiment:
    """The options of --config, or with --resume those of the first run in the folder of --out, or the defaults.

    Args:
        flags: the words of the command line from the first flag on.
        runs: the folders of runs in that of --out.
    """
    if config := _flag_value(flags, "--config"):
        return load_experiment(Path(config))
    out = _flag_value(flags, "--out") if _has_flag(flags, "--resume") else ""
    for path in (Path(out) / name / "config.yaml" for name in runs if out):
        with suppress(UserError):  # the run's folder is refused with the reason
            if path.is_file():
                return load_experiment(path)
    return Experiment()


def _choose_method(spec: str, base: Method) -> Method:
    """The method of a spec; that of the config file if the spec is just the same name."""
    method = parse_method(spec)
    return base if type(method) is type(base) and not split_method(spec)[1] and "+" not in spec else method


def _make_experiment(method: Method, setting: Setting) -> Experiment:
    experiment = Experiment(method=method, **{f.name: getattr(setting, f.name) for f in dataclasses.fields(Setting)})
    experiment.check_named("train with fedflat.run in Python, or name another")
    return experiment
