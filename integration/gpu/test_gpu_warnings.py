"""What torch warns of on a GPU alone does not fail a test; any other warning does."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = """
import torch

torch.cuda.device_count = lambda: 1
"""
TESTS = """
import warnings
import pytest

TORCH = [
    "Synchronization debug mode is a prototype feature and does not yet detect all",
    "TensorFloat32 tensor cores for float32 matrix multiplication available but not",
]

@pytest.mark.gpu
@pytest.mark.parametrize("text", TORCH)
def test_torch_warns(text):
    warnings.warn(text)

@pytest.mark.gpu
def test_a_module_of_torch_warns():
    warnings.warn_explicit("new", UserWarning, "a.py", 1, module="torch._inductor.a")

@pytest.mark.gpu
def test_another_warns():
    warnings.warn("ours")

@pytest.mark.parametrize("text", TORCH)
def test_without_a_gpu(text):
    warnings.warn(text)
"""


@pytest.mark.slow
def test_warnings_of_torch_are_no_errors_where_a_gpu_is_needed(tmp_path):
    for name in ("pyproject.toml", "conftest.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "one_gpu.py").write_text(PLUGIN)
    (tmp_path / "test_small.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "one_gpu", "test_small.py"]
    done = subprocess.run(
        command, cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert "3 failed, 3 passed" in done.stdout, done.stdout
    assert "test_another_warns" in done.stdout
