"""What happens after training: every client makes the global model its own."""

from __future__ import annotations

from fedflat.personal.fine_tuning import AccuracyRow, personalise

__all__ = ["AccuracyRow", "personalise"]
