"""FedBABU (Oh et al., 2022, Algorithm 1): train the body under a random head that stays as it is.

down w | up w_k − w | client keeps – | server keeps w

The head of w_k is that of w at every step, so the head's part of what is sent is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedflat.core.method import Method


@dataclass(frozen=True)
class FedBABU(Method):
    """Body aggregation and body update; the head is for fine-tuning afterwards."""

    citation: ClassVar[str] = """@inproceedings{oh2022fedbabu,
  title = {{FedBABU}: Toward Enhanced Representation for Federated Image Classification},
  author = {Oh, Jaehoon and Kim, Sangmook and Yun, Se-Young},
  booktitle = {ICLR},
  year = {2022}
}"""
    frozen: ClassVar[str] = "head."
