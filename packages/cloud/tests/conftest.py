"""What several files of tests share; without the cluster's double, few are collected."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

# Modules that tests share lie beside them.
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.append(str(HERE.parent / "benchmarks"))
# A script that was written for Horovod is one that an operator starts.
sys.path.append(str(HERE.parents[1] / "horovod/tests"))
DOUBLE = "drivetrain_cluster_double"
collect_ignore = []
if not find_spec(DOUBLE):
    shared = [
        file.stem for file in HERE.glob("*.py") if f"from {DOUBLE}" in file.read_text()
    ]
    words = [DOUBLE, *shared]
    collect_ignore = [
        file.name
        for file in HERE.glob("test_*.py")
        if any(f"from {word} " in file.read_text() for word in words)
    ]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in list(os.environ):
        if name.startswith("DRIVETRAIN_ELASTIC_"):
            monkeypatch.delenv(name)
