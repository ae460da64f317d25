"""Charts of what `fedflat analyse` measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median
from typing import Any

from fedflat.report.charts import Axis, Chart, ChartLine, Curves, Grid, Grids, band, dash
from fedflat.report.comparison import Documents, direction_seed, landscape_axes
from fedflat.runs.read import StoredRun

LOSS = Axis("loss")


Found = list[tuple[int, str, dict[str, Any]]]  # a run's number and name, and the document of one measurement


def flatness_charts(runs: Sequence[StoredRun], documents: Sequence[Documents]) -> Iterator[Chart]:
    """Every figure for which at least one run was measured."""
    for what, draw in FIGURES.items():
        numbered = enumerate(zip(runs, documents, strict=True))
        found = [(number, run.name, each[what]) for number, (run, each) in numbered if what in each]
        if found:
            yield draw(found)


def _first(document: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The first seed that was measured, and what was found."""
    return next(iter(document["seeds"].items()))


def _finite_points(document: dict[str, Any], x: str, y: str) -> Iterator[tuple[float, float]]:
    """Points (x, y) of all seeds, without those that are not finite."""
    for seed in document["seeds"].values():
        yield from ((a, b) for a, b in zip(seed[x], seed[y], strict=True) if a is not None and b is not None)


def _landscape(found: Found) -> Grids:
    """The loss around each model, cut at the median of the runs' highest values, so that one cannot flatten all."""
    grids = []
    for _, name, document in found:
        seed, surface = _first(document)
        grids.append(Grid(f"{name}, seed {seed}", surface["x"], surface["y"], surface["loss"]))
    low, high = _scale(grids)
    caption = (
        f"The loss in a square around each final model (the cross), along {_axes_note(found)}. All pictures have one "
        "scale of height and colour: a wide dark valley is a flat minimum, a narrow one is sharp. The dot marks the "
        f"lowest point; losses above {high:.3g} are cut off. Drag to turn a surface."
    )
    names = Axis("direction 1"), Axis("direction 2"), LOSS
    return Grids("landscape", "Loss landscapes", caption, *names, grids, low, high, relief=True)


def _axes_note(found: Found) -> str:
    return landscape_axes({name: document for _, name, document in found})


def _scale(grids: Sequence[Grid]) -> tuple[float, float]:
    """From the lowest value of all to the median of the pictures' highest ones, and a little more if all are equal."""
    values = [[z for row in grid.z for z in row if z is not None] for grid in grids]
    low = min(map(min, values))
    return low, max(median(sorted(map(max, values))), low + max(1e-6 * abs(low), 1e-9))


def _local_landscape(found: Found) -> Grids:
    grids = []
    for _, name, document in found:
        seed, each = _first(document)
        first = each["surfaces"][0]
        for key, data in (("own", "own data"), ("all", "all data")):
            title = f"{name}, seed {seed}, client {first['client']}, {data}"
            grids.append(Grid(title, each["x"], each["y"], first[key]))
    caption = (
        "The loss around one client's model after one more round, on its own samples and on everyone's, on one scale "
        f"and along {_axes_note(found)}. A pale valley that is wide on its own samples and narrow on everyone's "
        "looks flat to the client and is sharp for the federation."
    )
    names = Axis("direction 1"), Axis("direction 2"), LOSS
    return Grids("local-landscape", "One client's view and everyone's", caption, *names, grids, *_scale(grids))


def _spectrum(found: Found) -> Curves:
    lines = []
    for number, name, document in found:
        seed, each = _first(document)
        density = [_seen(d) for d in each["density"]]
        lines.append(ChartLine(f"{name}, seed {seed}", number, each["eigenvalue"], density, dash=dash(number)))
    caption = (
        "How the eigenvalues of the Hessian of the loss are distributed, on a logarithmic scale. Most are near zero, "
        "directions in which the loss hardly changes; the further a line reaches to the right, the sharper the minimum."
    )
    axes = Axis("eigenvalue"), Axis("density", log=True)
    return Curves("spectrum", "Hessian spectrum", caption, *axes, lines)


def _seen(density: float | None) -> float | None:
    """A density that a logarithmic axis can show, without the tails of the smoothing."""
    return density if density and density > 1e-6 else None


def _eigenvalues(found: Found) -> Curves:
    lines = [band(name, n, _finite_points(document, "number", "eigenvalue")) for n, name, document in found]
    caption = "The largest eigenvalues of the Hessian, mean over seeds: the lower the line, the flatter the minimum."
    return Curves("hessian", "Largest eigenvalues", caption, Axis("number"), Axis("eigenvalue"), lines)


def _local(found: Found) -> Curves:
    lines = []
    for number, name, document in found:
        points = list(_finite_points(document, "lambda_local", "lambda_global"))
        own, everyone = [point[0] for point in points], [point[1] for point in points]
        lines.append(ChartLine(name, number, own, [*everyone], dash=dash(number), marks=True))
    caption = (
        "A point is a client's model after one more round: across, the largest eigenvalue on its own samples; upwards, "
        "on everyone's. Points above the diagonal look flat to the client and are sharp for the federation."
    )
    axes = Axis("λ₁ on the client's samples", log=True), Axis("λ₁ on all samples", log=True)
    return Curves("local", "Local against global sharpness", caption, *axes, lines, diagonal=True)


def _path(found: Found) -> Curves:
    ways = (("along_gradient", "gradient"), ("along_random", "random"))
    lines = [
        band(f"{name}, {called}", n, _finite_points(document, "distance", key), way, len(ways))
        for n, name, document in found
        for way, (key, called) in enumerate(ways)
    ]
    shared = len({direction_seed(document) for *_, document in found}) == 1
    caption = (
        "The loss on straight lines through the model: along the gradient, of length 1, and, on average, along random "
        f"filter-normalised directions{'' if shared else ', not the same for all runs'}. These are about as long as "
        "the model: the two kinds of line share no unit of length."
    )
    return Curves("path", "Along straight lines", caption, Axis("r, in lengths of the direction"), LOSS, lines)


def _barrier(found: Found) -> Curves:
    lines = [
        band(f"{document.get('to', '?')} → {name}", n, _between(_finite_points(document, "gamma", "loss")))
        for n, name, document in found
    ]
    caption = (
        "The loss on the straight way from one run's model (0) to another's (1). Where it rises in between, the two "
        "lie in different basins; where it does not, in one."
    )
    return Curves("barrier", "Between the models", caption, Axis("γ"), LOSS, lines)


def _between(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The way between the models; what lies beyond them would dwarf it."""
    return [(gamma, loss) for gamma, loss in points if -1e-6 <= gamma <= 1 + 1e-6]


FIGURES: dict[str, Callable[[Found], Chart]] = {
    "landscape": _landscape,
    "local-landscape": _local_landscape,
    "spectrum": _spectrum,
    "hessian": _eigenvalues,
    "local": _local,
    "path": _path,
    "barrier": _barrier,
}
