"""What can be put around any method: server momentum, adaptive steps, averaging of models, differential privacy."""

from __future__ import annotations

from fedflat.wrappers.adaptive import ServerAdagrad, ServerAdam, ServerYogi
from fedflat.wrappers.averaged import Averaged
from fedflat.wrappers.momentum import ServerMomentum
from fedflat.wrappers.private import Private
from fedflat.wrappers.wrapper import Wrapper

__all__ = ["Averaged", "Private", "ServerAdagrad", "ServerAdam", "ServerMomentum", "ServerYogi", "Wrapper"]
