"""Modules of functions that came by value."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import cloudpickle
import pytest

from drivetrain_core.extending import by_value
from drivetrain_search.process.modules_by_value import provide_modules

FUNCTION = "FACTOR = 3\ndef times(x):\n    return FACTOR * x\n"


@pytest.fixture
def by_path(tmp_path, monkeypatch):
    """Returns a module that was loaded by its path, which no other process can import."""
    file = tmp_path / "by_path.py"
    file.write_text(FUNCTION)
    spec = importlib.util.spec_from_file_location("by_path", file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "by_path", module)
    spec.loader.exec_module(module)
    return module


def test_function_that_came_by_value_finds_its_module(by_path):
    with by_value("by_path") as names:
        whole = cloudpickle.dumps(by_path.times)
    assert names == ("__main__", "by_path")
    code = (
        "import pickle, sys\n"
        "from drivetrain_search.process.modules_by_value import provide_modules\n"
        "times = pickle.load(sys.stdin.buffer); provide_modules(['by_path'])\n"
        "import by_path; print(by_path.FACTOR, by_path.times is times)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=whole, capture_output=True, check=True
    )
    assert done.stdout.decode().split() == ["3", "True"]


def test_module_that_is_there_is_not_replaced(by_path):
    with by_value("by_path"):
        again = cloudpickle.loads(cloudpickle.dumps(by_path.times))
    assert again.__globals__ is not vars(by_path)
    provide_modules(["by_path"])
    assert sys.modules["by_path"] is by_path
