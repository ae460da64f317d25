"""The two apps that Flower runs. An app of one's own needs two lines: app = server_app() and app = client_app()."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable

from flwr.app import Context, Message
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn

from fedflat.errors import UserError
from fedflat.flower import client
from fedflat.flower.config import FederationOptions, from_run_config
from fedflat.flower.server import serve
from fedflat.runs.experiment import Experiment

Model = Callable[[], nn.Module]


def server_app(model: Model | None = None) -> ServerApp:
    """The server; `model` builds a model of one's own, the same on server and clients."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            serve(*_read(context, model), grid)
        except UserError:
            sys.tracebacklimit = 0  # Flower logs the error and ends the process: one line says what is wrong
            raise

    return app


def client_app(model: Model | None = None) -> ClientApp:
    """A client."""
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return client.answer_hello(_read(context, model)[0], message, context)

    @app.train("open")
    def train(message: Message, context: Context) -> Message:
        return client.train_client(_read(context, model)[0], message, context)

    @app.train(mods=[secaggplus_mod])
    def train_in_secret(message: Message, context: Context) -> Message:
        return client.train_client_masked(_read(context, model)[0], message, context)

    return app


def _read(context: Context, model: Model | None) -> tuple[Experiment, FederationOptions]:
    experiment, federation = from_run_config(context.run_config)
    return (dataclasses.replace(experiment, model=model) if model else experiment), federation
