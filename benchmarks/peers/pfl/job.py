"""The digits job with pfl-research: python benchmarks/peers/pfl/job.py JOB.npz prints one JSON line.

FederatedAveraging on a SimulatedBackend with in-memory user data, as in pfl-research's own benchmarks.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the modules that all peers share

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from plain import Job, Moment, accuracy, digits_cnn, load_job, now, timing
from torch import Tensor, nn


class Digits(nn.Module):
    """The model with the two functions pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = digits_cnn()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.layers(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        right = (self.layers(x).argmax(1) == y).sum().item()
        return {"accuracy": Weighted(right, len(y))}


class Watch(TrainingProcessCallback):
    """The time and the accuracy on the test set after every round."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.ends: list[Moment] = []
        self.accuracies: list[float] = []

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.accuracies.append(accuracy(model.pytorch_model.layers, self.job.x_test, self.job.y_test))
        self.ends.append(now())
        return False, Metrics()


def users(job: Job) -> FederatedDataset:
    """Every user's samples, shuffled whenever the user is drawn; a user comes again after all others had their turn."""
    samples = [job.client(number) for number in range(job.clients)]

    def dataset(number: int) -> PyTorchTensorDataset:
        x, y = samples[number]
        order = torch.randperm(len(y))
        return PyTorchTensorDataset((x[order], y[order]), user_id=str(number))

    return FederatedDataset(dataset, get_user_sampler("minimize_reuse", torch.randperm(job.clients).tolist()))


def main(path: str) -> None:
    """Run the job."""
    begin, job = now(), load_job(path)
    torch.manual_seed(job.seed)
    network, watch = Digits(), Watch(job)
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(job.rounds, evaluation_frequency=job.rounds, train_cohort_size=job.cohort, val_cohort_size=0),
        SimulatedBackend(users(job), users(job), postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(
            local_num_epochs=job.local_epochs, local_learning_rate=job.lr, local_batch_size=job.batch_size
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[watch],
        send_metrics_to_platform=False,
    )
    print(json.dumps(timing(begin, watch.ends, watch.accuracies) | {"version": version("pfl")}))


if __name__ == "__main__":
    main(sys.argv[1])
