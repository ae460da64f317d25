"""What happens after training: every client makes the global model its own."""

from __future__ import annotations

from fedflat.personal.fine_tuning import AccuracyRow, personalise
from fedflat.personal.table import personalise_command

__all__ = ["AccuracyRow", "personalise", "personalise_command"]
