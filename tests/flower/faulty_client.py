"""A client app with faults: the file faults/CLIENT-ROUND says which: raise, nan, shape, huge or hang."""

import time
from pathlib import Path

import numpy as np
from flwr.app import Array, Context, Message
from flwr.clientapp import ClientApp

from fedflat.flower.app import client_app

CHANGES = {"nan": lambda v: v * np.nan, "shape": lambda v: v[:7], "huge": lambda v: v * np.float32(1e9)}
app = ClientApp()  # Flower looks for an assignment to `app`
correct_app = client_app()


@app.query()
def query(message: Message, context: Context) -> Message:
    return correct_app(message, context)


@app.train("open")
def train(message: Message, context: Context) -> Message:
    faults = Path(str(context.node_config["faults"]))
    path = faults / f"{context.node_config['partition-id']}-{message.metadata.group_id}"
    kind = path.read_text() if path.exists() else ""
    if kind == "raise":
        raise ArithmeticError("this client's sensor is broken")
    if kind == "hang":
        path.with_name(path.name + ".reached").touch()
    while path.exists() and kind == "hang":
        time.sleep(0.1)
    reply = correct_app(message, context)
    if kind in CHANGES:
        reply.content["reply"]["delta"] = Array(CHANGES[kind](reply.content["reply"]["delta"].numpy()))
    return reply
