"""Modules of the folder are found beside it, as when it runs as a script."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
