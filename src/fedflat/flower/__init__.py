"""Real federations on Flower: the same methods, the clients on machines of their own.

Only app, server, fleet, client and wire need the package flwr; writing a new app does not.
"""
