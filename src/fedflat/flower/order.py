"""What the server tells a client besides the method's message, and what the client tells besides its reply."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from flwr.app import ConfigRecord, MetricRecord

from fedflat.data.dataset import Dataset


def kind(data: Dataset) -> str:
    """What a sample is; pixels from 0 to 255 (uint8) and floats are normalised differently, so it has the type too."""
    return f"{str(data.x.dtype).removeprefix('torch.')} {list(data.shape)}"


@dataclass(frozen=True, kw_only=True)
class Order:
    """One client's work in one exchange, and what all must agree on about the data."""

    run: str
    seed: int
    round: int
    exchange: int
    turn: int
    accepted: int
    """Turn of the client's last reply that the server took, -1 for none."""
    population: int
    classes: int
    names: list[str]
    """What the classes are called, in the order of their labels."""
    samples: str
    """Type and shape of a sample."""
    mean: list[float]
    std: list[float]

    def record(self) -> ConfigRecord:
        """As a record."""
        return ConfigRecord({field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def read(cls, given: ConfigRecord) -> Order:
        """The inverse."""
        return cls(**{field.name: given[field.name] for field in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Who replies, and with how much work behind it."""

    client: int
    examples: int
    lost: int = 0
    """1 where the state that the server counts on is gone and the client began afresh."""

    def record(self) -> MetricRecord:
        """As a record."""
        return MetricRecord({field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def read(cls, given: Any) -> Facts:
        """The inverse; raises ValueError for what is no such record."""
        said = {field.name: given.get(field.name) for field in fields(cls)}
        if wrong := [f"{name} = {value!r:.40}" for name, value in said.items() if type(value) is not int or value < 0]:
            raise ValueError(f"it does not say who it is from ({', '.join(wrong)})")
        facts = cls(**said)
        if facts.examples < 1:
            raise ValueError(f"it says it comes from {facts.examples} examples")
        return facts
