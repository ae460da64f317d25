"""FedAvg (McMahan et al., 2017, Algorithm 1): average what the clients learned.

down w | up w_k − w | client keeps – | server keeps w

w ← w + Σ p_k (w_k − w)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedflat.core.method import Method


@dataclass(frozen=True)
class FedAvg(Method):
    """Average the clients' models. The base class is this algorithm already."""

    citation: ClassVar[str] = """@inproceedings{mcmahan2017fedavg,
  title = {Communication-Efficient Learning of Deep Networks from Decentralized Data},
  author = {McMahan, Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and {Ag{\\"u}era y Arcas}, Blaise},
  booktitle = {AISTATS},
  year = {2017}
}"""
