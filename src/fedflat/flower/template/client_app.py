"""What every node runs, on data that never leave it."""

from fedflat.flower.app import client_app

app = client_app()
