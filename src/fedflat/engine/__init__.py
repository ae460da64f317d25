"""How the clients of a round are trained. An engine works for every method and knows none of them."""

from __future__ import annotations

from collections.abc import Callable

from fedflat.core.method import Method
from fedflat.core.task import Task
from fedflat.data.batches import BatchSource
from fedflat.engine.batched import Batched
from fedflat.engine.rounds import Engine
from fedflat.engine.sequential import Sequential

ENGINES: dict[str, Callable[[Method, Task, BatchSource], Engine]] = {"sequential": Sequential, "batched": Batched}
