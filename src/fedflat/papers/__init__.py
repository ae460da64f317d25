"""The tables of the FedSOL, FedGF and FedGloSS papers as data, and how they are trained again."""

from __future__ import annotations

from fedflat.papers.catalogue import TABLES
from fedflat.papers.cells import printed
from fedflat.papers.table import Cell, Table

__all__ = ["TABLES", "Cell", "Table", "printed"]
