"""The stubs of extension modules say what the modules have."""

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
from extension_stubs import old_stubs


@pytest.mark.skipif(
    importlib.util.find_spec("pybind11_stubgen") is None,
    reason="pybind11-stubgen is not installed",
)
def test_stubs_are_those_of_the_modules():
    assert old_stubs() == [], "python integration/rules/extension_stubs.py --write"
