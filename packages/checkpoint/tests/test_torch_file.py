"""Files of torch.save that are whole and durable, or not there."""

import errno
import os

import pytest
import torch

from drivetrain_checkpoint import (
    CorruptCheckpointError,
    ForeignCheckpointError,
    StorageError,
    torch_load,
    torch_save,
)
from drivetrain_checkpoint._formats import torch_file as module


class Thing:
    """An object of a class that nobody allowed."""


@pytest.mark.parametrize("size", [0, 1, 1000, 300_000, 800_000])
def test_file_is_read_by_torch_too(tmp_path, size):
    file = tmp_path / "a.pt"
    state = {"a": torch.rand(size), "b": [1, "two", None]}
    torch_save(state, file)
    for found in (
        torch_load(file),
        torch.load(file),
        torch.load(file, mmap=True),
        torch_load(file, mmap=True, map_location="cpu"),
    ):
        assert torch.equal(found["a"], state["a"])
        assert found["b"] == state["b"]
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


def test_many_blocks_share_a_sum(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MOST_SUMS", 2)
    file = tmp_path / "a.pt"
    torch_save(torch.rand(1_500_000), file)
    assert torch_load(file).shape == (1_500_000,)
    content = bytearray(file.read_bytes())
    content[5_000_000] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match="between bytes 3,145,728 and 6,"):
        torch_load(file)


@pytest.mark.slow
def test_any_flipped_bit_and_any_cut_is_found(tmp_path):
    file = tmp_path / "a.pt"
    torch_save({"a": torch.arange(50.0)}, file)
    content = file.read_bytes()
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 1 << (at % 8)
        file.write_bytes(damaged)
        with pytest.raises(CorruptCheckpointError, match=r"a\.pt is (damaged|cut)"):
            torch_load(file)
    for size in range(len(content)):
        file.write_bytes(content[:size])
        with pytest.raises((CorruptCheckpointError, ForeignCheckpointError)):
            torch_load(file)
    file.write_bytes(content + b"x")
    with pytest.raises(CorruptCheckpointError):
        torch_load(file)


def test_files_of_torch_are_read(tmp_path):
    file = tmp_path / "a.pt"
    torch.save({"a": torch.ones(3)}, file)
    assert torch_load(file)["a"].sum() == 3
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(CorruptCheckpointError, match="lost its end"):
        torch_load(file)
    torch.save({"a": torch.ones(3)}, file, _use_new_zipfile_serialization=False)
    assert torch_load(file)["a"].sum() == 3
    with pytest.raises(FileNotFoundError):
        torch_load(tmp_path / "none")


def test_objects_need_leave(tmp_path):
    file = tmp_path / "a.pt"
    torch_save(Thing(), file)
    with pytest.raises(ForeignCheckpointError, match="add_safe_globals"):
        torch_load(file)
    assert isinstance(torch_load(file, weights_only=False), Thing)


def test_failure_leaves_what_was_there(tmp_path, monkeypatch):
    file = tmp_path / "a.pt"
    torch_save({"a": 1}, file)
    with pytest.raises((AttributeError, TypeError)):
        torch_save(lambda: 1, file)

    def full(fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        torch_save({"a": 2}, file)
    monkeypatch.undo()
    assert torch_load(file) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]
    link = tmp_path / "link.pt"
    link.symlink_to(file)
    torch_save({"a": 3}, link)
    assert link.is_symlink()
    assert torch_load(file) == {"a": 3}


def test_nothing_has_its_name_before_it_is_synced(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: events.append("sync") or fsync(fd))
    monkeypatch.setattr(
        "pathlib.Path.replace",
        lambda self, to: events.append("rename") or replace(self, to),
    )
    torch_save({"a": 1}, tmp_path / "a.pt")
    assert events == ["sync", "rename", "sync"]


def test_file_of_something_else_is_no_file_of_torch(tmp_path):
    (tmp_path / "a.pt").write_text("e: a text")
    with pytest.raises(ForeignCheckpointError, match=r"a.pt is no file of torch"):
        torch_load(tmp_path / "a.pt")
