"""What a server can do around any method: momentum, adaptive steps, averaging of its models."""

from __future__ import annotations

from fedflat.wrappers.adaptive import ServerAdagrad, ServerAdam, ServerYogi
from fedflat.wrappers.averaged import Averaged
from fedflat.wrappers.momentum import ServerMomentum
from fedflat.wrappers.wrapper import Wrapper

__all__ = ["Averaged", "ServerAdagrad", "ServerAdam", "ServerMomentum", "ServerYogi", "Wrapper"]
