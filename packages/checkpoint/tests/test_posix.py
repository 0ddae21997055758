"""What is written to a folder is durable before it is promised."""

import errno
import mmap

import pytest
import torch

from drivetrain_checkpoint import (
    Checkpointer,
    StorageError,
    detect,
    list_checkpoints,
    verify,
)
from drivetrain_checkpoint._native import Progress
from drivetrain_checkpoint._storage import posix
from drivetrain_checkpoint._storage.open import open_storage
from drivetrain_checkpoint._storage.posix import PosixStorage

NAME = "step-0000000007-0123456789abcdef"
OTHER = "step-0000000008-0123456789abcdef"


@pytest.fixture
def synced(monkeypatch):
    """The folders that are synced, in order."""
    found = []
    monkeypatch.setattr(posix, "sync_folder", found.append)
    return found


def test_folders_that_are_made_are_synced_in_their_parents(tmp_path, synced):
    base = tmp_path / "runs" / "one"
    storage = PosixStorage(base)
    storage.write_small(NAME, "a", b"content")
    assert synced == [tmp_path, tmp_path / "runs", base]
    synced.clear()
    storage.write_small(OTHER, "a", b"content")
    assert synced == [base]


def test_folder_that_another_process_made_is_synced_once(tmp_path, synced):
    PosixStorage(tmp_path / "run").write_small(NAME, "a", b"content")
    synced.clear()
    storage = PosixStorage(tmp_path / "run")
    storage.write_small(NAME, "b", b"content")
    assert synced == [tmp_path]
    storage.commit(NAME, "manifest.json", b"root")
    folder = tmp_path / "run" / NAME
    assert synced == [tmp_path, folder, folder, tmp_path / "run"]


def test_commit_that_is_not_synced_is_taken_back(tmp_path, monkeypatch):
    storage = PosixStorage(tmp_path)
    storage.write_small(NAME, "a", b"content")
    calls = []

    def fail_second(path):
        calls.append(path)
        if len(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(posix, "sync_folder", fail_second)
        with pytest.raises(StorageError, match="cannot commit") as caught:
            storage.commit(NAME, "manifest.json", b"root")
    assert caught.value.errno == errno.EIO
    assert not storage.exists(NAME, "manifest.json")
    storage.commit(NAME, "manifest.json", b"root")
    assert storage.read(NAME, "manifest.json") == b"root"


def test_small_file_appears_whole(tmp_path, monkeypatch):
    storage = PosixStorage(tmp_path)
    write, seen = posix._write_synced, []

    def look(file, content):
        write(file, content)
        seen.append(storage.exists(NAME, "rank-00000.json"))

    monkeypatch.setattr(posix, "_write_synced", look)
    storage.write_small(NAME, "rank-00000.json", b"content")
    assert seen == [False]
    assert storage.read(NAME, "rank-00000.json") == b"content"


def test_commit_of_another_daemon_is_synced_before_it_is_believed(tmp_path, synced):
    storage = PosixStorage(tmp_path)
    assert not storage.ensure_durable(NAME, "manifest.json")
    assert synced == []
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "manifest.json").touch()
    assert storage.ensure_durable(NAME, "manifest.json")
    # The folder itself may have appeared with it.
    assert synced == [tmp_path / NAME, tmp_path, tmp_path.parent]


def test_folder_above_that_nobody_may_read_does_not_matter(tmp_path, monkeypatch):
    def sync(folder):
        if folder == tmp_path.parent:
            raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(posix, "sync_folder", sync)
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "manifest.json").touch()
    assert PosixStorage(tmp_path).ensure_durable(NAME, "manifest.json")


def test_file_system_without_direct_writes_gets_others(tmp_path, monkeypatch):
    opened = posix.os.open

    def refuse(file, flags, *mode):
        if flags & posix.os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return opened(file, flags, *mode)

    monkeypatch.setattr(posix.os, "open", refuse)
    memory = mmap.mmap(-1, 8192)
    memory[:5000] = b"x" * 5000
    storage = PosixStorage(tmp_path)
    storage.write(NAME, "a", memoryview(memory)[:5000], 1, Progress())
    assert storage.read(NAME, "a") == b"x" * 5000


@pytest.mark.parametrize("name", ["a" * 256, "ä" * 128, "/".join(["b" * 200] * 21)])
def test_path_that_is_too_long_is_refused_at_once(tmp_path, name):
    place = tmp_path / name
    for use in (Checkpointer, detect, verify, list_checkpoints):
        with pytest.raises(StorageError, match=r"bytes long, and [\d,]+ are possible"):
            use(place)


def test_folder_whose_name_is_too_long_is_refused_before_anything_is_copied(tmp_path):
    checkpointer = Checkpointer(tmp_path, job="posix")
    state = {"x": torch.ones(2)}
    assert checkpointer.save(1, state).wait(60)
    with pytest.raises(StorageError, match="256 bytes long, and 255 are possible"):
        checkpointer.save(2, state, under="a" * 256)
    assert checkpointer.restore(state) == 1
    assert checkpointer.save(2, state, under="a" * 255).wait(60)
    checkpointer.stop_daemon()


def test_folder_in_that_of_a_job_appears_with_its_first_checkpoint(tmp_path):
    job = tmp_path / "job"
    storage = open_storage(str(job), under="last.ckpt")
    reader = open_storage(str(job / "last.ckpt"))
    for number, name in enumerate((NAME, OTHER), 1):
        storage.write_small(name, "part", b"content")
        assert (job / "last.ckpt").exists() == (number > 1)
        assert storage.read(name, "part") == b"content"
        assert storage.files(name) == {"part": 7}
        assert storage.changed_s(name) > 0
        assert not storage.exists(name, "whole")
        assert name in storage.names()
        assert reader.names() == [NAME][: number - 1]
        storage.commit(name, "whole", b"")
        assert storage.exists(name, "whole")
        assert storage.ensure_durable(name, "whole")
        assert reader.read(name, "part") == b"content"
    assert sorted(reader.names()) == sorted(storage.names()) == [NAME, OTHER]
    storage.remove(NAME, "whole")
    assert storage.names() == [OTHER]
    assert list((job / ".unfinished").iterdir()) == []


def test_folder_that_is_there_and_empty_takes_a_checkpoint(tmp_path):
    (tmp_path / "last.ckpt").mkdir()
    storage = open_storage(str(tmp_path), under="last.ckpt")
    storage.write_small(NAME, "part", b"content")
    storage.commit(NAME, "whole", b"")
    assert storage.exists(NAME, "whole")


def test_save_that_lies_aside_is_deleted_there(tmp_path):
    storage = open_storage(str(tmp_path), under="last.ckpt")
    storage.write_small(NAME, "part", b"content")
    storage.remove(NAME, "whole")
    assert storage.names() == []
    assert [path.name for path in tmp_path.iterdir()] == [".unfinished"]
    assert list((tmp_path / ".unfinished").iterdir()) == []


def test_commit_aside_that_cannot_move_in_leaves_no_checkpoint(tmp_path):
    (tmp_path / "last.ckpt").write_text("a file")
    storage = open_storage(str(tmp_path), under="last.ckpt")
    storage.write_small(NAME, "part", b"content")
    with pytest.raises(StorageError, match="cannot commit"):
        storage.commit(NAME, "whole", b"")
    assert storage.files(NAME) == {"part": 7}
    (tmp_path / "last.ckpt").unlink()
    storage.commit(NAME, "whole", b"")
    assert storage.exists(NAME, "whole")
