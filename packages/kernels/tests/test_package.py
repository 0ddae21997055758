"""What the package offers, and what importing it does."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

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


def test_every_launch_of_a_kernel_says_whether_products_are_fused():
    """Triton's default changes, and numbers with it."""
    folder = Path(drivetrain_kernels.__file__).parent
    launches = [
        node
        for file in folder.rglob("_triton_*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Subscript)
        and "kernel" in ast.unparse(node.func.value)
    ]
    assert len(launches) >= 10
    for launch in launches:
        said = {word.arg for word in launch.keywords}
        assert "enable_fp_fusion" in said, ast.unparse(launch.func)
