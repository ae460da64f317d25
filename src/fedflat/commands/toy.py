"""fedflat toy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedflat.commands.parse import parse


@dataclass(frozen=True)
class ToyOptions:
    """FedSOL's two-dimensional example: where FedProx and FedSOL come to rest, and on which paths."""

    out: Path = Path("toy.png")
    """The picture to write."""


def toy_command(words: list[str]) -> None:
    """fedflat toy."""
    options = parse(ToyOptions, words, "fedflat toy")
    from fedflat.toy import toy_command

    toy_command(options.out)
