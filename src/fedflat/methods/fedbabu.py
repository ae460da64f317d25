"""FedBABU (Oh et al., 2022, Algorithm 1): train the body only; the head keeps its random initial values.

down w | up w_k − w | client keeps – | server keeps w

Clients never change the parameters of the head (`frozen`), so that the head's part of what they send is 0. The model is
meant to be fine-tuned on each client after training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedflat.core.method import Method


@dataclass(frozen=True)
class FedBABU(Method):
    """Body aggregation and body update. The head is trained by fine-tuning afterwards."""

    citation: ClassVar[str] = """@inproceedings{oh2022fedbabu,
  title = {{FedBABU}: Toward Enhanced Representation for Federated Image Classification},
  author = {Oh, Jaehoon and Kim, Sangmook and Yun, Se-Young},
  booktitle = {ICLR},
  year = {2022}
}"""
    frozen: ClassVar[str] = "head."
