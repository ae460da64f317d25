"""What the server runs. For a model of your own: app = server_app(model=build), here and in client_app.py."""

from fedflat.flower.app import server_app

app = server_app()
