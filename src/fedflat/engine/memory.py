"""Memory of a run: how much of a GPU it takes, estimated before it begins, and where its clients' states go.

With P parameters of b bytes, L lanes, N clients, batches of B samples and a bytes of activations per sample:

    lanes    L (SPARE P b + B a + state + message): model, momentum, gradients and copies of each lane
    test     the normalised test set, and the activations of one batch of it
    servers  Σ (server's state + replies of a cohort), one for each seed
    states   Σ 2 N states, if every client takes part: their table is copied when it grows

Images and labels are on the device when this is asked.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from fedflat.core.method import Method
from fedflat.core.state import count_bytes
from fedflat.core.task import Batch, Task
from fedflat.data.batches import ClientBatches
from fedflat.engine.rounds import EVALUATION_BATCH
from fedflat.errors import UserError

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # glibc's names for what mallopt sets: M_TRIM_THRESHOLD, M_MMAP_MAX


def keep_freed_memory() -> None:
    """Let the C library keep what this process frees instead of giving it back to the system at once.

    glibc maps every block above 32 MB anew, and the system clears its pages one by one. In a step with a model of
    millions of parameters that takes as long as the arithmetic. Other C libraries are left as they are.
    """
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(_MMAP_MAX, 0)
        library.mallopt(_TRIM_THRESHOLD, -1)


SPARE = 8  # vectors of the model's length that a lane needs beside its state and message


USABLE = 0.9  # of the free memory; the rest is for kernels and fragments


GB = 1e9


ADVICE = "use fewer --seeds, a smaller --batch-size or --cohort, or --precision bf16"


class MemoryEstimate(NamedTuple):
    """Bytes by purpose."""

    lanes: int
    test: int
    servers: int
    states: int

    def without_states(self) -> int:
        """What must be on the device in any case."""
        return sum(self) - self.states


def estimate_memory(
    method: Method,
    task: Task,
    feed: ClientBatches,
    params: Tensor,
    lanes: int,
    trials: Sequence[tuple[int, int]],
    ranks: int = 1,
) -> MemoryEstimate:
    """The estimate above for `trials` with so many clients, and so many of them in a round, on one of `ranks`."""
    server, state = method.init_server(params), count_bytes(method.init_client(params))
    each, model = activation_bytes(task, feed, params), count_bytes(params)
    per_lane = SPARE * model + feed.batch_size * each + state + count_bytes(method.broadcast(server))
    test = feed.dataset.x_test.numel() * params.element_size() + EVALUATION_BATCH * each // 2
    servers = sum(count_bytes(server) + 2 * cohort * (model + state) for _, cohort in trials)
    return MemoryEstimate(lanes * per_lane, test, servers, 2 * sum(clients for clients, _ in trials) * state // ranks)


def free_gpu_memory(device: torch.device) -> int:
    """Bytes that the GPU has free, and those that torch holds but does not use."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def activation_bytes(task: Task, feed: ClientBatches, params: Tensor) -> int:
    """Bytes that the gradient of one sample keeps and makes: what autograd saves, twice.

    Asked of two samples, since layers that normalise over the batch refuse a single one.
    """
    x, kept = torch.zeros(2, *feed.dataset.x.shape[1:], dtype=feed.dtype, device=params.device), 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += count_bytes(tensor) if tensor.shape[:1] == (2,) else 0
        return tensor

    key = torch.zeros(2, dtype=torch.int64, device=params.device)
    batch = Batch(x, key, torch.ones_like(key, dtype=torch.bool), key)
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        task.loss(params.detach().requires_grad_(), batch)
    return kept


def choose_state_device(
    estimate: MemoryEstimate, free: int, say: Callable[[str], None] | None = None
) -> torch.device | None:
    """Where clients' states go: None for the device itself, the host where they do not fit beside the rest.

    Raises UserError where the rest does not fit either.
    """
    room = USABLE * free
    if sum(estimate) <= room:
        return None
    if estimate.without_states() > room:
        raise UserError(
            f"memory: the run needs about {estimate.without_states() / GB:.1f} GB of the GPU, of which "
            f"{free / GB:.1f} GB are free; {ADVICE}"
        )
    (say or _tell)(
        f"memory: clients' states may grow to {estimate.states / GB:.1f} GB and are kept on the host, "
        f"since the GPU has {free / GB:.1f} GB free"
    )
    return torch.device("cpu")


@contextmanager
def explain_out_of_memory() -> Iterator[None]:
    """Say in words that the memory did not do, where the estimate was too low."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise UserError(f"memory: the GPU's does not suffice for this run; {ADVICE}") from None


def _tell(line: str) -> None:
    print(line, file=sys.stderr)
