"""fedflat personalise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedflat.commands.outputs import check_file
from fedflat.commands.parse import leading, parse
from fedflat.errors import UserError
from fedflat.options import Epochs, Positive


@dataclass(frozen=True, kw_only=True)
class PersonaliseOptions:
    """Let every client make the final model of a run its own, and measure it on the client's label mix."""

    epochs: tuple[Epochs, ...] = (1, 5)
    """Epochs of fine-tuning on the client's own data; 0 is the global model."""
    lr: Positive | None = None
    """Learning rate of fine-tuning; the run's unless given."""
    no_alone: bool = False
    """Leave out the models that clients train alone from the initial one."""
    out: Path | None = None
    """File for every client's accuracy; personalise.json in the run's folder unless given."""


def personalise_command(words: list[str]) -> None:
    """fedflat personalise RUN."""
    runs, flags = leading(words)
    options = parse(PersonaliseOptions, flags, "fedflat personalise RUN")
    if len(runs) != 1:
        raise UserError(f"{' '.join(['personalise', *runs])}: name the folder of one complete run")
    out = options.out or Path(runs[0]) / "personalise.json"
    check_file(out, "personalise.json")
    from fedflat.personal.table import personalise_command

    personalise_command(Path(runs[0]), options.epochs, out, not options.no_alone, options.lr)
