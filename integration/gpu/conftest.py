"""A repository of one package, for tests of the GPU command on a machine without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# The command's modules are found beside it, as when it runs as a script.
sys.path.append(str(HERE))


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch) -> Path:
    """Makes a repository of one pure package, its wheel, and what that needs."""
    import run
    from small_package import TESTS, make_package, make_wheel

    folder = make_package(tmp_path, "one", needs='["not-there-a>=0.1", "pytest"]')
    (folder / "tests").mkdir()
    (folder / "tests" / "test_one.py").write_text(TESTS)
    (folder / "tests" / "test_other.py").write_text("raise ImportError")
    conftest = HERE.parents[1] / "conftest.py"
    (tmp_path / "conftest.py").write_text(conftest.read_text())
    settings = '[tool.pytest]\nmarkers = ["gpu", "multigpu"]\n'
    (tmp_path / "pyproject.toml").write_text(settings)
    dist = tmp_path / "dist"
    make_wheel(dist, "not-there-a", requires="Requires-Dist: not-there-b\n")
    make_wheel(dist, "not-there-b")
    monkeypatch.setattr(run, "ROOT", tmp_path)
    return tmp_path
