"""The two apps that Flower runs: a user's app consists of app = server_app() and app = client_app() in two files.

Errors of the user are shown with the keys of Flower's run configuration: federation.min_nodes 3: …
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from flwr.app import Context, Error, Message
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp
from torch import nn

from fedflat.errors import UserError
from fedflat.flower import client
from fedflat.flower.config import ConfigValue, FederationOptions, RunConfigError, from_run_config
from fedflat.flower.messages import ReportedError
from fedflat.flower.server import serve
from fedflat.runs.experiment import Experiment

ModelBuilder = Callable[[], nn.Module]


def server_app(model: ModelBuilder | None = None) -> ServerApp:
    """Return the app that trains the experiment of Flower's run configuration on the server.

    Args:
        model: builds a model of your own, which then replaces the configuration's; give the same to `client_app`.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            with _errors_name_keys(context.run_config):
                serve(*_read(context, model), grid)
        except UserError:
            sys.tracebacklimit = 0  # Flower logs the exception and ends the process: the log then has one line of it
            raise

    return app


class NodeApp(ClientApp):
    """A ClientApp that answers with an error instead of raising: the server must not learn paths or other details."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message. The node's own log has the whole error."""
        try:
            return super().__call__(message, context)
        except ReportedError as error:
            reason = str(error)
        except Exception as error:
            logging.getLogger("flwr").error("this client failed", exc_info=error)
            reason = "the client failed; its node's log says why"
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


def client_app(model: ModelBuilder | None = None) -> ClientApp:
    """Return the app that trains on a node, on the data of that node's client.

    Args:
        model: the same function as for `server_app`.
    """
    app = NodeApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return client.answer_query(_read(context, model)[0], message, context)

    @app.train("open")
    def train(message: Message, context: Context) -> Message:
        return client.train_client(_read(context, model)[0], message, context)

    @app.train(mods=[secaggplus_mod])
    def train_masked(message: Message, context: Context) -> Message:
        return client.train_client_masked(_read(context, model)[0], message, context)

    return app


@contextmanager
def _errors_name_keys(run_config: Mapping[str, ConfigValue]) -> Iterator[None]:
    """Raise UserErrors anew as RunConfigErrors, whose text names keys of the run configuration."""
    try:
        yield
    except UserError as error:
        raise RunConfigError(error, run_config) from None


def _read(context: Context, model: ModelBuilder | None) -> tuple[Experiment, FederationOptions]:
    """Return the experiment and the federation's options, with the user's own model if there is one."""
    experiment, federation = from_run_config(context.run_config)
    return (dataclasses.replace(experiment, model=model) if model else experiment), federation
