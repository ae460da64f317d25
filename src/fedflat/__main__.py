"""python -m fedflat."""

from __future__ import annotations

import sys

from fedflat.cli import main

sys.exit(main())
