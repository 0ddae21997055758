"""What the packages offer by name, and what importing them costs."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import drivetrain_core

LAZY = ["drivetrain_core", "drivetrain_testing"]
PACKAGES = [*LAZY, "drivetrain_core.services"]


@pytest.mark.parametrize("name", PACKAGES)
def test_all_is_unique_and_every_name_is_there(name):
    module = importlib.import_module(name)
    assert len(module.__all__) == len(set(module.__all__))
    assert all(hasattr(module, public) for public in module.__all__)


def test_core_all_is_sorted():
    # ASCII order: classes first, then `__version__` and functions.
    assert drivetrain_core.__all__ == sorted(drivetrain_core.__all__)


@pytest.mark.parametrize("name", LAZY)
def test_dir_holds_the_public_names(name):
    module = importlib.import_module(name)
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.parametrize("name", LAZY)
def test_unknown_name_is_an_attribute_error(name):
    module = importlib.import_module(name)
    with pytest.raises(AttributeError, match=f"{name}.*no_such_name"):
        _ = module.no_such_name


def test_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert drivetrain_core.__version__ == version("drivetrain-core")


def run(code):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    "name", [*PACKAGES, "drivetrain_core.cli", "drivetrain_core.lazy"]
)
def test_import_loads_no_torch_and_prints_nothing(name):
    loaded = run(f"import sys, {name}; print(*sys.modules)")
    assert name in loaded
    assert {"torch", "numpy", "rich", "yaml"}.isdisjoint(loaded)


@pytest.mark.slow
def test_first_use_of_a_name_loads_what_it_needs():
    code = """
import sys
from drivetrain_core import Code, Slot, Plan
print("torch" in sys.modules)
from drivetrain_core import accelerate
print("torch" in sys.modules)
"""
    assert run(code) == ["False", "True"]
