"""What the package offers, and what importing it does."""

import importlib
import subprocess
import sys

import pytest

import drivetrain_kernels


def test_package_offers_every_name_of_its_list():
    assert set(drivetrain_kernels.__all__) <= set(dir(drivetrain_kernels))
    for name in drivetrain_kernels.__all__:
        assert getattr(drivetrain_kernels, name) is not None


def test_package_offers_the_ops_by_their_usual_names():
    assert {
        "add_rms_norm",
        "attention",
        "clip_grad_norm_",
        "cross_entropy",
        "dropout_add_rms_norm",
        "explain",
        "geglu",
        "layer_norm",
        "linear_cross_entropy",
        "moe",
        "parallel_block",
        "replace",
        "rms_norm",
        "rope",
        "select",
        "swiglu",
    } <= set(drivetrain_kernels.__all__)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'rmsnorm'"):
        importlib.import_module("drivetrain_kernels").rmsnorm  # noqa: B018


def test_import_does_not_import_torch():
    code = "import sys, drivetrain_kernels; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_kernels_are_loaded_when_they_are_chosen():
    code = (
        "import sys, drivetrain_kernels as dk\n"
        "dk.rms_norm, dk.moe, dk.attention, dk.cross_entropy\n"
        "ours = [n for n in sys.modules if n.startswith('drivetrain_kernels')]\n"
        "sys.exit(any('triton' in name for name in ours))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
