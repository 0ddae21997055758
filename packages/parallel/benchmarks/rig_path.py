"""Lets the programs of this folder import the rig, which lies in `integration/`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "integration"))
