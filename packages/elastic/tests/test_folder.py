"""An agent's socket has a path that the system takes, whatever TMPDIR is."""

import socket
import tempfile
from pathlib import Path

import pytest

from drivetrain_core import ProgramError
from drivetrain_elastic._client import _folder
from drivetrain_elastic._client._folder import make_folder


@pytest.fixture
def long_folder(tmp_path, monkeypatch):
    folder = tmp_path / ("x" * 60) / ("y" * 60)
    folder.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))


def test_folder_is_where_it_is_wanted(tmp_path, monkeypatch):
    usual = tempfile.mkdtemp()
    monkeypatch.setattr(tempfile, "tempdir", usual)
    folder = Path(make_folder("agent"))
    assert str(folder.parent) == usual
    folder.rmdir()
    Path(usual).rmdir()


def test_folder_with_a_long_path_is_a_short_one_elsewhere(long_folder):
    folder = Path(make_folder("agent"))
    assert folder.stat().st_mode & 0o777 == 0o700
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "agent"))
    (folder / "agent").unlink()
    folder.rmdir()


def test_folder_that_cannot_be_made_says_which_variable(long_folder, monkeypatch):
    monkeypatch.setattr(_folder, "_SHORT", "/nowhere")
    with pytest.raises(
        ProgramError, match=r"set TMPDIR to a writable folder .* 7\d bytes"
    ):
        make_folder("agent")
