"""Federations on Flower (https://flower.ai): the methods of a simulation, with every client on a machine of its own.

Only `config` works without the package flwr. It is all that `fedflat flower new` needs to write an app.
"""
