"""The digits job with Flower's simulation: python benchmarks/peers/flower/job.py JOB.npz prints one JSON line.

ClientApp and ServerApp with the FedAvg strategy, as in Flower's own quickstart; each client takes one core, so as many
clients train at once as there are cores.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])  # where the processes that Ray starts find `plain`
sys.path.insert(0, os.environ["PYTHONPATH"])

import flwr
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from plain import Moment, accuracy, digits_cnn, load_job, now, timing, train


def client_app(path: str) -> ClientApp:
    """Local training of one client."""
    app = ClientApp()

    @app.train()
    def fit(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        job, model = load_job(path), digits_cnn()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = job.client(int(context.node_config["partition-id"]))
        train(model, x, y, job)
        metrics = MetricRecord({"num-examples": len(y)})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    return app


def server_app(path: str, log: list[tuple[Moment, float]]) -> ServerApp:
    """FedAvg over a part of the clients; `log` gets the time and the accuracy after every round."""
    app, job = ServerApp(), load_job(path)

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
        model = digits_cnn()
        model.load_state_dict(arrays.to_torch_state_dict())
        log.append((now(), accuracy(model, job.x_test, job.y_test)))
        return MetricRecord({"accuracy": log[-1][1]})

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        torch.manual_seed(job.seed)
        strategy = FedAvg(fraction_train=job.cohort / job.clients, fraction_evaluate=0.0)
        arrays = ArrayRecord(digits_cnn().state_dict())
        strategy.start(grid, arrays, num_rounds=job.rounds, evaluate_fn=evaluate)

    return app


def main(path: str) -> None:
    """Run the job; Ray starts its processes in the first round."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    log: list[tuple[Moment, float]] = []  # of the start and of every round
    begin, job = now(), load_job(path)
    one_core = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app(path, log), client_app(path), job.clients, backend_config=one_core)
    record = timing(begin, *zip(*log[1:], strict=True))
    del record["cpu_s_per_round"]  # clients train in processes of their own
    print(json.dumps(record | {"version": flwr.__version__}))


if __name__ == "__main__":
    main(sys.argv[1])
