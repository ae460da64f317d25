"""The headline table, the same numbers for the terminal and the page, and the page's table of flatness."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from fedflat.runs.result import Result

COLUMNS = ("method", "accuracy", "last 10 %", "rounds to {target}", "bytes down", "bytes up", "seconds", "note")


def cells(name: str, result: Result, target: float) -> list[str]:
    """One method's row as text."""
    reached = result.rounds_to(target)
    seeds = len(result.seeds)
    lost = "diverged: seed " + " ".join(map(str, result.diverged_seeds)) if result.diverged else ""
    return [
        name,
        with_spread(result.final_accuracy, result.final_accuracy_std, seeds, ".2%"),
        with_spread(result.last10_accuracy, result.last10_accuracy_std, seeds, ".2%"),
        "–" if reached is None else f"{reached:.1f}".removesuffix(".0"),
        f"{result.bytes_down_per_client_round:,}",
        f"{result.bytes_up_per_client_round:,}",
        f"{result.seconds:.1f}",
        lost,
    ]


def with_spread(mean: float, std: float, count: int, form: str) -> str:
    """mean ± standard deviation; of a single value, which has none, the value."""
    return f"{mean:{form}}" + (f" ± {std:{form}}" if count > 1 else "")


def headings(target: float) -> list[str]:
    """Titles of the columns."""
    return [column.format(target=f"{target:.0%}") for column in COLUMNS]


def best(results: Sequence[Result]) -> float:
    """The highest mean accuracy over the last tenth of the evaluations, which tables set in bold."""
    return max((result.last10_accuracy for result in results), default=0.0)


def print_table(results: Sequence[tuple[str, Result]], target: float = 0.8) -> None:
    """Print the comparison; bytes are per client and round."""
    table = Table(caption="mean ± standard deviation over seeds; bytes per client and round")
    for column in headings(target):
        table.add_column(column, justify="left" if column in ("method", "note") else "right")
    top = best([result for _, result in results])
    for name, result in results:
        style = "bold" if len(results) > 1 and result.last10_accuracy == top else None
        table.add_row(*cells(name, result, target), style=style)
    if not any(result.diverged for _, result in results):
        table.columns.pop()
    console = Console()
    console.print(table) if console.is_terminal else Console(width=140).print(table)
