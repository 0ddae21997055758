"""What several files of tests share."""

import sys
from pathlib import Path

# Modules that tests share lie beside them.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
