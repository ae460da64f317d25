"""The page docs/leaderboard.md: the methods that were trained in a setting, ranked, from the stored results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache

import torch

from fedflat.core.local_training import count_traffic
from fedflat.core.method import Method
from fedflat.data.catalogue import DATASETS
from fedflat.data.partition import describe_partition
from fedflat.methods import METHODS
from fedflat.methods.fedavg import FedAvg
from fedflat.models import build_model
from fedflat.reproduce.cells import cells_by_experiment, experiment_key
from fedflat.reproduce.render import TextRow, as_markdown
from fedflat.reproduce.results import StoredRecord, StoredResults, first_reaching
from fedflat.runs.config import experiment_from_dict
from fedflat.runs.experiment import Experiment
from fedflat.runs.result import mean_std

SMALL_IMAGES = {"mnist": (1, 28, 28), "tissuemnist": (1, 28, 28), "pathmnist": (3, 28, 28)}  # others: (3, 32, 32)
LEADERBOARD_HEADINGS = "method|last round|last tenth|λ1|MB to target|seconds|seeds|command|commit"
RULES = """# Leaderboard

Which method has the best accuracy in which setting, among our own runs. A heading names data, model, partition and
participants per round. α of `dirichlet` and α of `lda` are not the same
([data-partitions.md](data-partitions.md#the-two-dirichlet-conventions)). Most rows have one seed: small differences
mean nothing. Written by `fedflat reproduce --show` from [results/](../results/README.md); do not edit it. The rules:

1. Test accuracy in percent, mean ± standard deviation over seeds. "Last round" is that of the final model, "last
   tenth" the mean over the last tenth of the stored evaluations (a stored curve has at most 50). The best round is
   never used.
2. Methods are ranked by the last tenth, and compared only within a setting: the same data, partition, participants,
   model, rounds, local training and augmentation. Hyper-parameters of methods are those of the papers, not tuned by
   us, unless a page says so.
3. All rounds must have been trained, on the original images. Runs that diverged stay in the table.
4. "MB to target": megabytes that the server and all participants have sent until a method reaches FedAvg's last
   tenth, counted on real messages; "never" if it does not, empty if FedAvg was not trained. λ1 is the largest Hessian
   eigenvalue of the final model, where it was measured.
5. "Seconds": training time of the runs that were trained together, divided by their number. The hardware is in the
   results.
6. The command trains the row again; the commit is that of the code. To add a row, add a cell to a table, train it and
   store it.
"""


def leaderboard_page(stored: StoredResults) -> str:
    """Return the page: rules, then one table for each setting in which two methods or more were trained."""
    return "\n\n".join([RULES.strip(), *map(_section, ranked_settings(stored))]) + "\n"


def ranked_settings(stored: StoredResults) -> list[list[StoredRecord]]:
    """Return the records of each setting in which two methods or more were trained, in the order of their titles."""
    settings: dict[str, list[StoredRecord]] = {}
    for record in [record for by_rounds in stored.records.values() for record in by_rounds.values()]:
        if not record.jpeg and record.key in cells_by_experiment() and "@" not in record.cell:
            settings.setdefault(_setting_key(record), []).append(record)
    return sorted((group for group in settings.values() if len(group) > 1), key=lambda group: setting_title(group[0]))


def _setting_key(record: StoredRecord) -> str:
    """Return a text that is equal for records that differ in the method alone."""
    return experiment_key(replace(_experiment(record), method=FedAvg()), without=())


def _experiment(record: StoredRecord) -> Experiment:
    return experiment_from_dict(record.config)


def _section(records: Sequence[StoredRecord]) -> str:
    """Return the heading, the settings and the table of one setting."""
    target = next((last_tenth(r)[0] for r in records if isinstance(_experiment(r).method, FedAvg)), None)
    best_first = sorted(records, key=lambda record: -last_tenth(record)[0])
    table = as_markdown([_row(record, target) for record in best_first], tuple(LEADERBOARD_HEADINGS.split("|")))
    return "\n\n".join([f"## {setting_title(records[0])}", _details(_experiment(records[0])), table])


def setting_title(record: StoredRecord) -> str:
    """Return the heading of a record's setting: cifar10, fedavg-cnn, lda α = 0.1, 10 of 100."""
    e = _experiment(record)
    tail = f", long tail {e.long_tail:g}" if e.long_tail != 1 else ""
    return (
        f"{e.dataset}, {e.model}, {describe_partition(e.partition, e.alpha, e.shards)}{tail}, {e.cohort} of {e.clients}"
    )


def _details(e: Experiment) -> str:
    """Return the other settings in words."""
    local = f"{e.epochs} local epochs of batches of {e.batch_size}, lr {e.lr:g} · {e.lr_decay:g}^t"
    sgd = f"momentum {e.momentum:g}, weight decay {e.weight_decay:g}"
    return f"{e.rounds} rounds, {local}, {sgd}, augmentation {e.augment}, participants {e.sampling}."


def _row(record: StoredRecord, target: float | None) -> TextRow:
    final = [value for seed in record.seeds if (value := record.numbers(seed).get("final")) is not None]
    flatness = [value for seed in record.seeds if (value := record.numbers(seed).get("lambda1")) is not None]
    seconds = sum(run["seconds"] / run["together"] for run in record.runs) / len(record.runs)
    return (
        method_text(_experiment(record).method),
        spread_text(mean_std(final)),
        spread_text(last_tenth(record)),
        f"{mean_std(flatness)[0]:.1f}" if flatness else "",
        _sent_text(record, target),
        f"{seconds:.0f}",
        " ".join(record.seeds),
        f"`{_command(record)}`",
        ", ".join(dict.fromkeys(str(run.get("commit") or "?") for run in record.runs)),
    )


def last_tenth(record: StoredRecord) -> tuple[float, float]:
    """Return mean and standard deviation over seeds of the mean over the last tenth of a stored curve."""
    curves = [[accuracy for _, accuracy in seed["curve"]] for seed in record.seeds.values() if seed["curve"]]
    ends = [curve[-max(1, math.ceil(len(curve) / 10)) :] for curve in curves]
    return mean_std([sum(end) / len(end) for end in ends]) if ends else (math.nan, 0.0)


def spread_text(mean_and_std: tuple[float, float]) -> str:
    """Return 64.1 ± 0.5, or 64.1 if the standard deviation is 0 or not known."""
    mean, std = mean_and_std
    return f"{mean:.1f} ± {std:.1f}" if std > 0 else f"{mean:.1f}"


def method_text(method: Method) -> str:
    """Return a method's name with the hyper-parameters that differ from its defaults: fedsam:rho=0.15."""
    default = type(method)()
    changed = [f for f in fields(method) if getattr(method, f.name) != getattr(default, f.name)]
    values = [(f.name, getattr(method, f.name)) for f in changed]
    options = [f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in values]
    return ":".join([METHODS.name_of(type(method)), ",".join(options)]).removesuffix(":")


def _sent_text(record: StoredRecord, target: float | None) -> str:
    """Return the megabytes that were sent until the target, the mean over seeds."""
    if target is None:
        return ""
    rounds = [first_reaching(seed["curve"], target) for seed in record.seeds.values()]
    if math.isinf(max(rounds)):
        return "never"
    experiment = _experiment(record)
    parameters = _parameters(str(experiment.model), str(experiment.dataset))
    traffic = count_traffic(experiment.method, torch.zeros(parameters))
    return f"{sum(rounds) / len(rounds) * experiment.cohort * (traffic.down + traffic.up) / 1e6:,.0f}"


@cache
def _parameters(model: str, dataset: str) -> int:
    """Return the number of parameters of a model on the images of a data set."""
    with torch.device("meta"):
        built = build_model(model, SMALL_IMAGES.get(dataset, (3, 32, 32)), DATASETS[dataset].classes)
    return sum(parameter.numel() for parameter in built.parameters())


def _command(record: StoredRecord) -> str:
    """Return the command that trains a record again."""
    cell = cells_by_experiment()[record.key][0]
    variant = f" --variant {cell.variant}" if cell.variant else ""
    chosen = f'fedflat reproduce {cell.table} --cells "{cell.column} {cell.row}"{variant}'
    return f"{chosen} --seeds {' '.join(record.seeds)} --precision {record.runs[-1]['precision']}"
