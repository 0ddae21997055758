"""Names of a stub: imported when they are first used, or unknown."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

import drivetrain_core
from drivetrain_core.lazy import attach_stub

STUB = """
from json import JSONDecoder as JSONDecoder
from json import dumps as dumps
from stat import ST_MODE as ST_MODE
"""


@pytest.fixture
def offers(tmp_path, monkeypatch):
    """Returns a module whose stub offers three names, and what asks it for one."""
    file = tmp_path / "offers.py"
    file.with_suffix(".pyi").write_text(STUB)
    module = types.ModuleType("offers")
    monkeypatch.setitem(sys.modules, "offers", module)
    module.__getattr__, module.__dir__, module.__all__ = attach_stub(
        "offers", str(file)
    )
    return module


def test_names_are_those_of_the_stub_constants_and_classes_first(offers):
    assert offers.__all__ == ["ST_MODE", "JSONDecoder", "dumps"]
    assert dir(offers) == sorted(offers.__all__)


def test_name_is_imported_once_and_kept(offers):
    from json import dumps

    assert "dumps" not in vars(offers)
    assert offers.dumps is dumps
    assert vars(offers)["dumps"] is dumps


def test_unknown_name_is_an_attribute_error_that_can_be_asked_for(offers):
    assert not hasattr(offers, "nothing")
    with pytest.raises(AttributeError, match="'offers' has no attribute 'dump'"):
        _ = offers.dump


def test_core_is_imported_from_a_zip_archive(tmp_path):
    source = Path(drivetrain_core.__file__).parents[1]
    archive = shutil.make_archive(str(tmp_path / "core"), "zip", source)
    code = "import drivetrain_core; print(drivetrain_core.__file__, drivetrain_core.Choice)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": archive},
        capture_output=True,
        text=True,
        check=True,
    )
    assert archive in done.stdout
