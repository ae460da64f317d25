"""fedflat: federated learning on heterogeneous data with methods that seek flat minima.

The names of `fedflat.public` come with the first use of one: the command line begins before torch is imported, so that
Ctrl-C meets it and not Python.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"


if TYPE_CHECKING:
    from fedflat.public import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        """A public name, or a module that comes with them."""
        found = vars(import_module("fedflat.public")) | globals()
        if name not in found:
            raise AttributeError(f"module 'fedflat' has no attribute '{name}'")
        return found[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
