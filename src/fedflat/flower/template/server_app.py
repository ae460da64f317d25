"""The app that runs on the server. For your own model: app = server_app(model=build), also in client_app.py."""

from fedflat.flower.app import server_app

app = server_app()
