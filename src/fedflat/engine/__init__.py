"""How a round is executed. Engines never know the method."""

from __future__ import annotations

from collections.abc import Callable

from fedflat.data.feed import Source
from fedflat.engine.batched import Batched
from fedflat.engine.contract import Engine
from fedflat.engine.sequential import Sequential
from fedflat.method import Method
from fedflat.task import Task

ENGINES: dict[str, Callable[[Method, Task, Source], Engine]] = {"sequential": Sequential, "batched": Batched}
