"""The GPU memory of a run, estimated before it begins, and where its clients' states are stored.

With P parameters of b bytes, L lanes, N clients, batches of B samples and a bytes of activations per sample:

    lanes    L (VECTORS_PER_LANE P b + B a + state + message): model, momentum, gradients and copies of each lane
    test     the normalised test set, and the activations of one batch of it
    servers  Σ (server's state + replies of a cohort), summed over seeds
    states   Σ 2 N states, if every client takes part: their table is copied when it grows

The images and labels of the data set are not included: they are on the device already when memory is estimated.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from fedflat.core.batch import Batch, map_samples
from fedflat.core.local_training import initial_client_state
from fedflat.core.method import Method
from fedflat.core.optimiser import Optimiser, initial_moments
from fedflat.core.state import count_bytes
from fedflat.core.task import Task
from fedflat.data.arrays import input_tensors
from fedflat.data.batches import ClientBatches
from fedflat.engine.rounds import EVALUATION_BATCH
from fedflat.errors import UserError, mention

VECTORS_PER_LANE = 8  # vectors of P numbers that a lane needs beside its state and message
USABLE_SHARE = 0.9  # of the free memory; the rest is for kernels and fragmentation
GB = 1e9
_MALLOC_TRIM_THRESHOLD, _MALLOC_MMAP_MAX = -1, -4  # glibc's numbers for M_TRIM_THRESHOLD and M_MMAP_MAX in mallopt


def keep_freed_memory() -> None:
    """Let the C library keep the memory that this process frees, instead of returning it to the system at once.

    By default glibc maps every block above 32 MB anew, and the system clears its pages one by one. For a model of
    millions of parameters that takes as long as the arithmetic of a step. Does nothing with other C libraries.
    """
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(_MALLOC_MMAP_MAX, 0)
        library.mallopt(_MALLOC_TRIM_THRESHOLD, -1)


class MemoryEstimate(NamedTuple):
    """Bytes on the GPU by purpose, as at the top of this file."""

    lanes: int
    test: int
    servers: int
    states: int

    def without_states(self) -> int:
        """Return the bytes that must be on the GPU in any case; states can also be stored on the host."""
        return sum(self) - self.states


def estimate_memory(
    method: Method,
    task: Task,
    client_data: ClientBatches,
    params: Tensor,
    lanes: int,
    trials: Sequence[tuple[int, int]],
    ranks: int = 1,
    optimiser: Optimiser | None = None,
) -> MemoryEstimate:
    """Estimate the GPU memory of a run by the formula at the top of this file.

    Args:
        method, task, client_data: what is trained.
        params: the initial model, a vector of P parameters.
        lanes: the number of lanes.
        trials: (clients in all, clients in a round) of each trial.
        ranks: the number of ranks, over which the clients' states are spread.
        optimiser: the clients' optimiser; SGD without momentum unless given.
    """
    server, optimiser = method.init_server(params), optimiser or Optimiser(params.new_ones(()))
    moments = count_bytes(initial_moments(optimiser, params))
    state = count_bytes(initial_client_state(method, optimiser, params))
    per_sample, model = activation_bytes(task, client_data, params), count_bytes(params)
    batch = client_data.batch_size * per_sample
    per_lane = VECTORS_PER_LANE * model + max(0, moments - model) + batch + state
    per_lane += count_bytes(method.broadcast(server))
    numbers = sum(t.numel() for t in input_tensors(client_data.dataset.x_test))
    test = numbers * params.element_size() + EVALUATION_BATCH * per_sample // 2
    servers = sum(count_bytes(server) + 2 * cohort * (model + state) for _, cohort in trials)
    return MemoryEstimate(lanes * per_lane, test, servers, 2 * sum(clients for clients, _ in trials) * state // ranks)


def free_gpu_memory(device: torch.device) -> int:
    """Return the free bytes of a GPU, including those that torch has reserved but does not use."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def activation_bytes(task: Task, client_data: ClientBatches, params: Tensor) -> int:
    """Return the bytes of activations per sample while a gradient is computed: twice what autograd saves.

    Measured with a batch of two samples, whose sum is the factor two; layers that normalise over the batch do not
    accept a single sample.
    """

    def two_zeros(t: Tensor) -> Tensor:
        dtype = client_data.dtype if t.dtype == torch.uint8 else t.dtype
        return torch.zeros(2, *t.shape[1:], dtype=dtype, device=params.device)

    x, y, saved = map_samples(two_zeros, client_data.x), two_zeros(client_data.y), 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal saved
        saved += count_bytes(tensor) if tensor.shape[:1] == (2,) else 0
        return tensor

    key = torch.zeros(2, dtype=torch.int64, device=params.device)
    batch = Batch(x, y, torch.ones_like(key, dtype=torch.bool), key)
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        task.loss(params.detach().requires_grad_(), batch)
    return saved


def choose_state_device(
    estimate: MemoryEstimate, free: int, report: Callable[[str], None] | None = None
) -> torch.device | None:
    """Return where to store the clients' states: None (on the GPU itself) if they fit there, else the CPU.

    Args:
        estimate: what the run needs.
        free: the free bytes of the GPU. Raises UserError if the rest of the run does not fit either.
        report: called with a line that says that states are stored on the host; by default it goes to stderr.
    """
    usable = USABLE_SHARE * free
    if sum(estimate) <= usable:
        return None
    if estimate.without_states() > usable:
        needed = f"the run needs about {estimate.without_states() / GB:.1f} GB of the GPU"
        raise UserError(None, "memory", f"{needed}, of which {free / GB:.1f} GB are free; {_advice()}")
    (report or _print_to_stderr)(
        f"memory: clients' states may grow to {estimate.states / GB:.1f} GB and are kept on the host, "
        f"since the GPU has {free / GB:.1f} GB free"
    )
    return torch.device("cpu")


@contextmanager
def explain_out_of_memory() -> Iterator[None]:
    """Turn CUDA's out-of-memory error into one line that says what to change (the estimate was too low)."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise UserError(None, "memory", f"the GPU has too little for this run; {_advice()}") from None


def _advice() -> str:
    smaller = f"a smaller {mention('batch_size')} or {mention('cohort')}"
    return f"use fewer {mention('seeds')}, {smaller}, or {mention('precision', 'bf16')}"


def _print_to_stderr(line: str) -> None:
    print(line, file=sys.stderr)
