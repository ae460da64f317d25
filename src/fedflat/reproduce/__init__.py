"""The tables of the FedSOL, FedGF and FedGloSS papers as data, and how they are trained again."""

from __future__ import annotations

from fedflat.reproduce.cells import TABLES, printed_accuracy
from fedflat.reproduce.table import PaperTable, TableCell

__all__ = ["TABLES", "PaperTable", "TableCell", "printed_accuracy"]
