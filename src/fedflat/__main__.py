"""python -m fedflat."""

import sys

from fedflat.cli import main

sys.exit(main())
