"""What happens after training: every client makes the global model its own."""

from __future__ import annotations

from fedflat.personal.measure import Row, personalise
from fedflat.personal.table import personalise_command

__all__ = ["Row", "personalise", "personalise_command"]
