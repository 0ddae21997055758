"""Folders of searches: made, kept while they live, and removed after a kill."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from drivetrain_search.process import orphan_cleanup
from drivetrain_search.process.orphan_cleanup import remove_orphans, search_folder


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Makes temporary folders in the test's own."""
    monkeypatch.setattr(orphan_cleanup.tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_folder_is_gone_afterwards(place):
    with search_folder() as folder:
        (folder / "program.pt").write_text("x")
        assert folder.parent == place
    assert not list(place.iterdir())


def test_folder_is_gone_after_an_error(place):
    with pytest.raises(RuntimeError), search_folder():
        raise RuntimeError
    assert not list(place.iterdir())


def test_living_search_keeps_its_folder():
    with search_folder() as folder:
        assert remove_orphans() == []
        assert folder.is_dir()


def test_folder_of_a_killed_search_is_removed_by_the_next(place):
    code = f"""
import tempfile
tempfile.tempdir = {str(place)!r}
from drivetrain_search.process.orphan_cleanup import search_folder
with search_folder() as folder:
    print(folder, flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        left = child.stdout.readline().strip()
        assert remove_orphans() == []
        child.send_signal(signal.SIGTERM)
    assert [str(folder) for folder in remove_orphans()] == [left]
    assert not list(place.iterdir())


def test_folders_of_others_stay(place):
    (place / "drivetrain-notes").mkdir()
    (place / "other-1").mkdir()
    (place / "other-1" / "search.lock").touch()
    assert remove_orphans() == []
    assert len(list(place.iterdir())) == 2
