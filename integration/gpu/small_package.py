"""Packages and wheels as small as the GPU command and pip take them."""

from __future__ import annotations

import zipfile
from pathlib import Path

__all__ = ["PROJECT", "TESTS", "make_package", "make_wheel"]

PROJECT = """
[project]
name = "drivetrain-{name}"
dependencies = {needs}
[build-system]
build-backend = "{backend}"
requires = []
"""
TESTS = """
import drivetrain_one, pytest

@pytest.mark.gpu
def test_needs_a_gpu():
    assert False

def test_needs_none():
    assert False
"""
BARS = """
import argparse, json, sys
import drivetrain_one
parser = argparse.ArgumentParser()
parser.add_argument("--json", action="store_true")
parser.add_argument("--quick", action="store_true")
parser.parse_args()
rows = [{"name": "speed", "figure": "1.25 x", "bound": ">= 1.1 x", "status": "pass"}]
rows += [{"name": "large", "figure": "-", "bound": "<= 2 GB", "status": "gpu"}]
print(json.dumps({"rows": rows}))
"""


def make_wheel(folder: Path, name: str, *, requires: str = "", body: str = "") -> Path:
    """Writes a wheel of one module, as small as pip takes it."""
    module = name.replace("-", "_")
    info = f"{module}-0.1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n{requires}"
    files = {
        f"{module}/__init__.py": body,
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    folder.mkdir(exist_ok=True)
    path = folder / f"{module}-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
    return path


def make_package(root: Path, name: str, *, needs: str = "[]", bars: str = BARS) -> Path:
    """Writes a pure package with a test for a GPU, benchmarks and its wheel."""
    folder = root / "packages" / name
    source = folder / "src" / f"drivetrain_{name}"
    source.mkdir(parents=True)
    (source / "__init__.py").write_text("")
    text = PROJECT.format(name=name, backend="hatchling.build", needs=needs)
    (folder / "pyproject.toml").write_text(text)
    (folder / "benchmarks").mkdir()
    (folder / "benchmarks" / "bars.py").write_text(bars)
    make_wheel(root / "dist", f"drivetrain-{name}")
    return folder
