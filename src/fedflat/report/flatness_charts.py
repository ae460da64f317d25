"""Charts of what `fedflat analyse` measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from fedflat.report.charts import Axis, Chart, ChartLine, Curves, Grid, Grids, dash_index, mean_line
from fedflat.report.comparison import (
    AnalysisDocuments,
    folder_name,
    landscape_axes,
    random_directions_key,
)
from fedflat.runs.read import StoredRun

LOSS_AXIS = Axis("loss")


class MeasuredRun(NamedTuple):
    """A run's number, which gives its colour, its name, and the document of one measurement."""

    number: int
    name: str
    document: dict[str, Any]

    def first_seed(self) -> tuple[str, dict[str, Any]]:
        """Return the first seed that was measured, and its values."""
        return next(iter(self.document["seeds"].items()))

    def points(self, x: str, y: str) -> list[tuple[float, float]]:
        """Return the finite points (x, y) of all seeds, given the names of two arrays."""
        pairs = (pair for seed in self.document["seeds"].values() for pair in zip(seed[x], seed[y], strict=True))
        return [(a, b) for a, b in pairs if a is not None and b is not None]


def flatness_charts(runs: Sequence[StoredRun], documents: Sequence[AnalysisDocuments]) -> Iterator[Chart]:
    """Yield a chart for every measurement that at least one run has.

    Args:
        runs: the runs that are shown together.
        documents: their analyses, as read_analyses returns them.
    """
    for what, make_chart in _CHARTS.items():
        if measured := measured_runs(runs, documents, what):
            yield make_chart(measured)


def measured_runs(runs: Sequence[StoredRun], documents: Sequence[AnalysisDocuments], what: str) -> list[MeasuredRun]:
    """Return the runs that have a measurement.

    Args:
        runs: the runs that are shown together.
        documents: their analyses.
        what: the measurement, such as "hessian".
    """
    labels, measured = {folder_name(run): run.name for run in runs}, []
    for n, (run, of_run) in enumerate(zip(runs, documents, strict=True)):
        if what in of_run:
            to: Any = of_run[what].get("to")  # the folder of the run at the other end of a barrier
            measured.append(MeasuredRun(n, run.name, of_run[what] | {"to": labels.get(to, to)}))
    return measured


def _landscape(runs: Sequence[MeasuredRun]) -> Grids:
    grids = []
    for run in runs:
        seed, surface = run.first_seed()
        grids.append(Grid(f"{run.name}, seed {seed}", surface["x"], surface["y"], surface["loss"], run.number))
    low, high = loss_scale(grids)
    caption = (
        f"The loss in a square around each final model (the cross), along {_directions(runs)}. All panels have one "
        "scale of height and colour: a wide dark valley is a flat minimum, a narrow one is sharp. The dot marks the "
        f"lowest point; losses above {high:.3g} are cut off. Drag to turn a surface."
    )
    axes = Axis("direction 1"), Axis("direction 2"), LOSS_AXIS
    return Grids("landscape", "Loss landscapes", caption, *axes, grids, low, high, relief=True)


def _directions(runs: Sequence[MeasuredRun]) -> str:
    return landscape_axes({run.name: run.document for run in runs})


def loss_scale(grids: Sequence[Grid]) -> tuple[float, float]:
    """Return the ends of the common scale: the lowest value, and the median of the panels' highest values.

    The median keeps one steep run from flattening all others. The ends differ even if all values are equal.
    """
    values = [[z for row in grid.z for z in row if z is not None] for grid in grids]
    low = min(map(min, values))
    return low, max(median(sorted(map(max, values))), low + max(1e-6 * abs(low), 1e-9))


def _local_landscape(runs: Sequence[MeasuredRun]) -> Grids:
    grids = []
    for run in runs:
        seed, values = run.first_seed()
        first = values["surfaces"][0]
        for key, data in (("own", "own data"), ("all", "all data")):
            title = f"{run.name}, seed {seed}, client {first['client']}, {data}"
            grids.append(Grid(title, values["x"], values["y"], first[key], run.number))
    caption = (
        "The loss around one client's model after one more round, on its own samples and on all clients' samples, on "
        f"one scale and along {_directions(runs)}. A pale valley that is wide on its own samples and narrow on all "
        "samples looks flat to the client but is sharp for the federation."
    )
    axes = Axis("direction 1"), Axis("direction 2"), LOSS_AXIS
    title = "One client's landscape on its own and on all data"
    return Grids("local-landscape", title, caption, *axes, grids, *loss_scale(grids))


def _spectrum(runs: Sequence[MeasuredRun]) -> Curves:
    lines = []
    for run in runs:
        seed, values = run.first_seed()
        density = [_positive_density(d) for d in values["density"]]
        name, dash = f"{run.name}, seed {seed}", dash_index(run.number)
        lines.append(ChartLine(name, run.number, values["eigenvalue"], density, dash=dash))
    caption = (
        "How the eigenvalues of the Hessian of the loss are distributed, on a logarithmic scale. Most are near zero: "
        "in these directions the loss hardly changes. The further a line reaches to the right, the sharper the minimum."
    )
    axes = Axis("eigenvalue"), Axis("density", log=True)
    return Curves("spectrum", "Hessian spectrum", caption, *axes, lines)


def _positive_density(density: float | None) -> float | None:
    """Return a density that a logarithmic axis can show; None for zero and for the tails of the smoothing."""
    return density if density and density > 1e-6 else None


def _eigenvalues(runs: Sequence[MeasuredRun]) -> Curves:
    lines = [mean_line(run.name, run.number, run.points("number", "eigenvalue")) for run in runs]
    caption = "The largest eigenvalues of the Hessian, mean over seeds: the lower the line, the flatter the minimum."
    return Curves("hessian", "Largest eigenvalues", caption, Axis("number"), Axis("eigenvalue"), lines)


def _local(runs: Sequence[MeasuredRun]) -> Curves:
    lines = []
    for run in runs:
        points = run.points("lambda_local", "lambda_global")
        x, y = [point[0] for point in points], [point[1] for point in points]
        lines.append(ChartLine(run.name, run.number, x, [*y], dash=dash_index(run.number), marks=True))
    caption = (
        "Each point is a client's model after one more round. Its x is the largest eigenvalue on the client's own "
        "samples, its y the one on all clients' samples. Points above the diagonal look flat to the client but are "
        "sharp for the federation."
    )
    axes = Axis("λ₁ on the client's samples", log=True), Axis("λ₁ on all samples", log=True)
    return Curves("local", "Local against global sharpness", caption, *axes, lines, diagonal=True)


def _path(runs: Sequence[MeasuredRun]) -> Curves:
    directions = (("along_gradient", "gradient"), ("along_random", "random"))
    lines = [
        mean_line(f"{run.name}, {name}", run.number, run.points("distance", key), variant)
        for run in runs
        for variant, (key, name) in enumerate(directions)
    ]
    shared = len({random_directions_key(run.document) for run in runs}) == 1
    caption = (
        "The loss on straight lines through the model: along the gradient, scaled to length 1, and along random "
        f"filter-normalised directions (mean){'' if shared else ', not the same for all runs'}. The random directions "
        "are about as long as the model: the two kinds of line share no unit of length."
    )
    return Curves("path", "Along straight lines", caption, Axis("r, in lengths of the direction"), LOSS_AXIS, lines)


def _barrier(runs: Sequence[MeasuredRun]) -> Curves:
    lines = []
    for run in runs:
        # Only the part between the two models: the losses beyond them would dwarf it.
        points = [(gamma, loss) for gamma, loss in run.points("gamma", "loss") if -1e-6 <= gamma <= 1 + 1e-6]
        lines.append(mean_line(f"{run.document['to'] or '?'} → {run.name}", run.number, points))
    caption = (
        "The loss on the straight line from one run's model (0) to another's (1). Where it rises in between, the two "
        "models lie in different basins; where it does not, they lie in the same."
    )
    return Curves("barrier", "Between the models", caption, Axis("γ"), LOSS_AXIS, lines)


_CHARTS: dict[str, Callable[[Sequence[MeasuredRun]], Chart]] = {  # in the order of the page
    "landscape": _landscape,
    "local-landscape": _local_landscape,
    "spectrum": _spectrum,
    "hessian": _eigenvalues,
    "local": _local,
    "path": _path,
    "barrier": _barrier,
}
