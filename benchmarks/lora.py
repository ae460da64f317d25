"""LoRA on a transformer of about 100 million parameters: python benchmarks/lora.py [--device cpu --tiny].

Ten clients train adapters of rank 8 on sequences of 128 tokens, once with fedflat and once in a plain loop, one client
after another, with peft where it is installed and else with fedflat's own LoRA layers. Prints the client-steps per
second and the peak of GPU memory of both, and a last line of JSON. Weights and text are random.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from machine import describe
from synthetic import Timed
from torch import Tensor, nn

import fedflat as ff
from fedflat.models.text import transformer

CLIENTS, RANK, TARGET, LR = 10, 8, ("q_proj", "v_proj"), 0.1


class Size(NamedTuple):
    """A transformer, and the text of each client."""

    tokens: int
    length: int
    width: int
    depth: int
    heads: int
    batch_size: int
    steps: int


FULL, TINY = Size(8192, 128, 768, 12, 12, 8, 10), Size(50, 16, 16, 2, 2, 4, 2)


def text(size: Size) -> ff.Dataset:
    """Random tokens, as many for each client as it takes in a round."""
    count = CLIENTS * size.batch_size * size.steps
    words = torch.randint(size.tokens, (count, size.length + 1), generator=torch.Generator().manual_seed(0))
    x, y, owner = words[:, :-1].contiguous(), words[:, 1:].contiguous(), torch.arange(count) * CLIENTS // count
    return ff.Dataset("random", x, y, x[:2], y[:2], size.tokens, owner=owner)


def plain_lora(model: nn.Module) -> tuple[nn.Module, str]:
    """The model with adapters for the plain loop, and the name of the library that made them."""
    here = Path(__file__).parent.resolve()
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != here]  # kernels.py is also a package's name
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        return ff.lora(model, RANK, TARGET), "fedflat.lora"
    return get_peft_model(
        copy.deepcopy(model), LoraConfig(r=RANK, target_modules=list(TARGET), lora_alpha=2 * RANK)
    ), "peft"


class PlainLoop:
    """Federated averaging of the adapters, written as one would by hand."""

    def __init__(self, model: nn.Module, data: ff.Dataset, size: Size, device: torch.device) -> None:
        adapted, self.library = plain_lora(model)
        self.model, self.size = adapted.to(device), size
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.x, self.y = (t.to(device).unflatten(0, (CLIENTS, size.steps, -1)) for t in (data.x, data.y))
        self.server = [p.detach().clone() for p in self.trained]

    def play_round(self) -> None:
        """Train every client from the server's adapters, and average."""
        total = [torch.zeros_like(p) for p in self.server]
        for client in range(CLIENTS):
            self._load(self.server)
            sgd = torch.optim.SGD(self.trained, LR)
            for step in range(self.size.steps):
                sgd.zero_grad()
                self._loss(self.x[client, step], self.y[client, step]).backward()
                sgd.step()
            for mean, p in zip(total, self.trained, strict=True):
                mean += p.detach() / CLIENTS
        self.server = total

    def _load(self, values: list[Tensor]) -> None:
        with torch.no_grad():
            for p, value in zip(self.trained, values, strict=True):
                p.copy_(value)

    def _loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())


def measure(play: Any, rounds: int, steps: int, device: torch.device) -> dict[str, float | None]:
    """Client-steps per second over some rounds after a first one, and the peak of GPU memory in MiB."""
    gpu = device.type == "cuda"
    play()
    if gpu:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(rounds):
        play()
    if gpu:
        torch.cuda.synchronize()
    speed = rounds * CLIENTS * steps / (time.perf_counter() - begin)
    return {"client_steps_per_s": speed, "peak_mib": torch.cuda.max_memory_allocated() / 2**20 if gpu else None}


def free_memory() -> None:
    """Forget the peak of what ran before."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script out")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    size = TINY if options.tiny else FULL
    torch.manual_seed(0)
    model, data = transformer(*size[:5]), text(size)
    setting: dict[str, Any] = {"cohort": CLIENTS, "local_epochs": 1, "batch_size": size.batch_size, "lr": LR}
    setting |= {
        "device": options.device,
        "engine": "batched",
        "rounds": options.rounds + 2,
        "model": ff.lora(model, RANK, TARGET),
    }
    free_memory()
    timed = Timed(ff.Experiment(dataset=data, **setting))
    device = timed.training.built.client_data.y.device
    record: dict[str, Any] = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "adapters": timed.training.built.task.size,
    }
    record["fedflat"] = measure(timed.play, options.rounds, size.steps, device)
    del timed
    free_memory()
    loop = PlainLoop(model, data, size, device)
    record["plain"] = measure(loop.play_round, options.rounds, size.steps, device) | {"library": loop.library}
    for name in ("fedflat", "plain"):
        peak = record[name]["peak_mib"]
        memory = f", peak {peak:,.0f} MiB" if peak else ""
        print(f"{name}: {record[name]['client_steps_per_s']:.4g} client-steps/s{memory}")
    print(json.dumps(record | {"machine": describe(), "size": size._asdict(), "rounds": options.rounds}))


if __name__ == "__main__":
    main()
