"""The app that runs on every node, on the data of that node's client. The data never leave the node."""

from fedflat.flower.app import client_app

app = client_app()
