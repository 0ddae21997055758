"""What the package offers, and what importing it does."""

import importlib
import subprocess
import sys

import pytest

import drivetrain_optim


def test_package_offers_exactly_its_public_names():
    assert drivetrain_optim.__all__ == [
        "AGD",
        "DELTA_PRESETS",
        "LAMB",
        "WSAM",
        "Explanation",
        "GraphCaptureError",
        "HyperparameterError",
        "NonFiniteGradientError",
        "PathUse",
        "StateDictError",
        "StepOrderError",
        "UnsupportedTensorError",
        "__version__",
        "explain",
    ]
    assert set(drivetrain_optim.__all__) <= set(dir(drivetrain_optim))
    for name in drivetrain_optim.__all__:
        assert getattr(drivetrain_optim, name) is not None


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'ADG'"):
        importlib.import_module("drivetrain_optim").ADG  # noqa: B018


def test_import_does_not_import_torch():
    code = "import sys, drivetrain_optim; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
