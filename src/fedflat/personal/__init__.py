"""Personal models: after federated training every client fine-tunes the global model on its own data."""

from __future__ import annotations

from fedflat.personal.fine_tuning import AccuracyRow, personalise

__all__ = ["AccuracyRow", "personalise"]
