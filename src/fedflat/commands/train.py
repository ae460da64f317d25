"""fedflat run and fedflat compare."""

from __future__ import annotations

import dataclasses
import re
import time
from pathlib import Path
from typing import Any

from fedflat.commands.parse import cli_setting, leading, method_spec, parse
from fedflat.errors import UserError
from fedflat.experiments.config import load
from fedflat.experiments.experiment import Experiment, Setting
from fedflat.experiments.result import Result
from fedflat.experiments.run import run
from fedflat.method import Method
from fedflat.options import Fraction


@dataclasses.dataclass(frozen=True, kw_only=True)
class Files:
    """Where the run is described and what it leaves."""

    config: Path | None = None
    """YAML file with options; flags override it."""
    out: Path | None = None
    """Folder for the results (default: runs/METHOD-DATE-TIME)."""
    resume: bool = False
    """Continue an interrupted run in the folder given by --out."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison(Files):
    """Where the comparison is described and what it leaves."""

    target: Fraction = 0.8
    """Accuracy whose first reaching is counted in rounds."""


def run_command(words: list[str]) -> None:
    """Train one method."""
    names, flags = leading(words)
    if len(names) > 1:
        raise UserError(f"run {' '.join(names)}: give one method; several are for fedflat compare")
    base = _from_file(flags)
    method = method_spec(names[0]) if names else base.method
    if names and type(method) is type(base.method) and ":" not in names[0]:
        method = base.method
    options = _parse(method, base, Files, flags, f"fedflat run {names[0] if names else 'METHOD'}")
    experiment = _experiment(options.method, method, options.setting)
    out = options.files.out or Path("runs") / f"{_slug(names[0] if names else 'run')}-{time.strftime('%Y%m%d-%H%M%S')}"
    result = train(experiment, out, options.files.resume, type(method).__name__)
    write_report([out], out / "report.html")
    from fedflat.report.table import print_table

    print_table([(type(method).__name__, result)])
    print(f"results in {out}, report in {out / 'report.html'}")


def compare_command(words: list[str]) -> None:
    """Train several methods under the same setting."""
    names, flags = leading(words)
    if not names and "--help" not in flags and "-h" not in flags:
        raise UserError("compare: name the methods first, for example fedflat compare fedavg fedsol:rho=2")
    if len(set(names)) < len(names):
        raise UserError(f"compare {' '.join(names)}: every method may appear once")
    base = _from_file(flags)
    methods = {name: method_spec(name) for name in names}
    options = _parse(None, base, Comparison, flags, "fedflat compare METHOD METHOD ...")
    experiments = {name: _experiment(None, method, options.setting) for name, method in methods.items()}
    for experiment in experiments.values():
        experiment.check()
    out = options.files.out or Path("runs") / f"compare-{time.strftime('%Y%m%d-%H%M%S')}"
    results = [
        (name, _one_of_many(e, out / _slug(name), options.files.resume, name)) for name, e in experiments.items()
    ]
    from fedflat.report.table import print_table

    write_report([out / _slug(name) for name in names], out / "report.html", options.files.target)
    print_table(results, options.files.target)
    print(f"report in {out / 'report.html'}")


def train(experiment: Experiment, out: Path, resume: bool, label: str) -> Result:
    """Train with a live progress bar."""
    from fedflat.report.progress import Bar

    with Bar(label, experiment.rounds) as bar:
        return run(experiment, out, resume, bar.update)


def _one_of_many(experiment: Experiment, out: Path, resume: bool, label: str) -> Result:
    """A comparison that is resumed keeps the methods it has finished."""
    from fedflat.report.runs import read_run

    if resume and (out / "result.json").exists():
        return read_run(out).result_object()
    return train(experiment, out, resume, label)


def write_report(runs: list[Path], path: Path, target: float = 0.8) -> None:
    """The HTML report, where the packages that draw it are installed."""
    try:
        from fedflat.report.page import report
    except ImportError as missing:
        print(f"no report: {missing.name} is not installed; fedflat report RUN writes it later")
        return
    report(runs, path, target)


def _from_file(flags: list[str]) -> Experiment:
    """The experiment of --config, or the defaults."""
    for number, word in enumerate(flags):
        if word == "--config" and number + 1 < len(flags):
            return load(Path(flags[number + 1]))
        if word.startswith("--config="):
            return load(Path(word.removeprefix("--config=")))
    return Experiment()


def _parse(method: Method | None, base: Experiment, files: type[Files], flags: list[str], prog: str) -> Any:
    """Flags for the method, the setting and the files, with `base` as defaults."""
    setting = cli_setting()
    values = {f.name: getattr(base, f.name) for f in dataclasses.fields(Setting)}
    fields: list[Any] = [("setting", setting, setting(**values)), ("files", files, files())]
    if method is not None:
        fields.insert(0, ("method", _without_inner(type(method)), _flat(method)))
    options = dataclasses.make_dataclass("Options", fields, frozen=True)
    return parse(options, flags, prog, options())


def _without_inner(cls: type[Method]) -> Any:
    """The method's own hyper-parameters; a wrapped method is given on the command line as WRAPPER+METHOD."""
    own: list[Any] = [(f.name, f.type, f) for f in dataclasses.fields(cls) if f.name != "inner"]
    if len(own) == len(dataclasses.fields(cls)):
        return cls
    return dataclasses.make_dataclass(cls.__name__, own, namespace={"__doc__": cls.__doc__}, frozen=True)


def _flat(method: Method) -> Any:
    cls = _without_inner(type(method))
    return cls(**{f.name: getattr(method, f.name) for f in dataclasses.fields(cls)})


def _experiment(flags: Any, method: Method, setting: Setting) -> Experiment:
    """The experiment that the parsed flags describe."""
    if flags is not None:
        method = dataclasses.replace(method, **{f.name: getattr(flags, f.name) for f in dataclasses.fields(flags)})
    return Experiment(method=method, **{f.name: getattr(setting, f.name) for f in dataclasses.fields(Setting)})


def _slug(name: str) -> str:
    """A method's words as a folder name."""
    return re.sub(r"[^\w.+=-]+", "-", name)
