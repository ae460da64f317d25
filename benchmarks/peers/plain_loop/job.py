"""A federated loop in plain PyTorch: python benchmarks/peers/plain_loop/job.py JOB [--rounds N] [--device cuda].

FedAvg as one writes it without a framework: a module, torch.optim.SGD, one client after another, state_dicts averaged.
Data, split, model and hyper-parameters are those of the job of the same name in benchmarks/jobs.py. Images stay on the
device and are augmented there batch by batch, which is faster than the usual loader with one process per image.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the modules that all peers share

import torch
import torch.nn.functional as F
from jobs import JOBS, made_up
from plain import accuracy, blazefl_cnn, crop_and_flip, cut_out, digits_cnn, fedavg_cnn, now, pfl_cnn, timing
from torch import Tensor, nn

import fedflat
from fedflat.runs.build import build_run
from fedflat.runs.result import software_versions

MODELS: dict[str, Callable[[], nn.Module]] = {
    "digits": digits_cnn,
    "fedavg": fedavg_cnn,
    "pfl": pfl_cnn,
    "blazefl": blazefl_cnn,
}
State = dict[str, Tensor]
Images = Callable[[Tensor], tuple[Tensor, Tensor]]  # the augmented images and classes of these rows


def train_client(model: nn.Module, job: fedflat.Experiment, images: Images, rows: Tensor, lr: float) -> State:
    """Local epochs of SGD from the global model; returns the client's weights."""
    model = copy.deepcopy(model)
    sgd = torch.optim.SGD(model.parameters(), lr=lr, momentum=job.momentum, weight_decay=job.weight_decay)
    for _ in range(job.epochs):
        for batch in rows[torch.randperm(len(rows), device=rows.device)].split(job.batch_size):
            x, y = images(batch)
            sgd.zero_grad()
            F.cross_entropy(model(x), y).backward()
            sgd.step()
    return model.state_dict()


def average(states: list[State], sizes: list[int]) -> State:
    """Mean of the clients' weights, weighted by their numbers of samples."""
    total = sum(sizes)
    return {name: sum(n / total * s[name] for n, s in zip(sizes, states, strict=True)) for name in states[0]}


class Loop:
    """One job under way, with a model that starts from the job's first seed."""

    def __init__(self, job: fedflat.Experiment, build_model: Callable[[], nn.Module]) -> None:
        self.job, self.data = job, build_run(job)
        self.device, self.test = self.data.client_data.y.device, self.data.client_data.test()
        torch.manual_seed(job.seeds[0])
        self.model, self.draw = build_model().to(self.device), random.Random(job.seeds[0])
        constants = (self.data.dataset.mean, self.data.dataset.std)
        self.mean, self.std = (torch.tensor(c, device=self.device).view(-1, 1, 1) for c in constants)
        self.clients = [torch.from_numpy(part).to(self.device) for part in self.data.client_rows]
        self.steps = 0

    def images(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """These images, augmented and normalised, and their classes."""
        client_data, x = self.data.client_data, self.data.client_data.x[rows]
        if client_data.spec.crop:
            x = crop_and_flip(x, client_data.spec.crop)
        x = ((x / 255 if x.dtype == torch.uint8 else x) - self.mean) / self.std
        return cut_out(x, client_data.spec.cutout) if client_data.spec.cutout else x, client_data.y[rows]

    def play_round(self, round: int) -> None:
        """Train a cohort and average it."""
        job = self.job
        cohort = [self.clients[k] for k in self.draw.sample(range(len(self.clients)), job.cohort)]
        lr = job.lr * job.lr_decay**round
        states = [train_client(self.model, job, self.images, rows, lr) for rows in cohort]
        self.model.load_state_dict(average(states, [len(rows) for rows in cohort]))
        self.steps += job.epochs * sum(-(-len(rows) // job.batch_size) for rows in cohort)

    def is_due(self, round: int) -> bool:
        """Whether the model is evaluated after this round."""
        return (round + 1) % self.job.eval_every == 0 or round + 1 == self.job.rounds

    def wait(self) -> None:
        """Until the device has done what it was told."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def measure(name: str, job: fedflat.Experiment) -> dict[str, object]:
    """Train and time every round."""
    begin, loop = now(), Loop(job, MODELS[name])
    ends, accuracies = [], []
    for round in range(job.rounds):
        loop.play_round(round)
        if loop.is_due(round):
            accuracies.append(accuracy(loop.model, loop.test.x, loop.test.y))
        loop.wait()
        ends.append(now())
    record = timing(begin, ends, accuracies)
    full = {"job": name, "rounds": job.rounds, "full_job_s": record["s_per_round"] * JOBS[name].rounds}
    return full | {"client_steps_per_round": loop.steps / job.rounds} | record


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=MODELS)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--made-up", action="store_true", help="random images in place of CIFAR-10")
    given = parser.parse_args()
    job = made_up(JOBS[given.job]) if given.made_up else JOBS[given.job]
    job = replace(job, rounds=given.rounds or job.rounds, device=given.device, seeds=(given.seed,))
    print(json.dumps(measure(given.job, job) | software_versions()))


if __name__ == "__main__":
    main()
