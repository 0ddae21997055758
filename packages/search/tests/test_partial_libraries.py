"""Libraries that a killed compiler left half-written: found and removed."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from drivetrain_search.process.partial_libraries import (
    inductor_folder,
    is_whole,
    remove_partial_libraries,
)
from drivetrain_search.process.spawn import Processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="of ELF files")

WHOLE = next(Path(np.__file__).parent.rglob("*.so")).read_bytes()
LONG_AGO_S = 3600.0


def broken_files():
    return {
        "empty": b"",
        "magic": WHOLE[:4],
        "header": WHOLE[:64],
        "half": WHOLE[: len(WHOLE) // 2],
        "last": WHOLE[:-1],
        "zeros": bytes(len(WHOLE)),
        "text": b"not a library, and longer than the header of one" * 4,
    }


@pytest.fixture
def library(tmp_path):
    """Writes a library two folders down, and returns its path."""

    def write(content, name="library.so"):
        path = tmp_path / "inductor" / "ab" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    return write


@pytest.mark.parametrize("kind", broken_files())
def test_what_is_not_whole_is_removed(library, tmp_path, kind):
    since = time.time()
    path, whole = library(broken_files()[kind]), library(WHOLE, "whole.so")
    assert not is_whole(path)
    assert is_whole(whole)
    assert remove_partial_libraries(tmp_path, since) == [path]
    assert not path.exists()
    assert whole.read_bytes() == WHOLE


def test_what_is_older_stays(library, tmp_path):
    path, since = library(b""), time.time()
    os.utime(path, (since, since - LONG_AGO_S))
    assert remove_partial_libraries(tmp_path, since) == []
    assert path.exists()


def test_what_another_process_writes_stays_until_it_is_done(library, tmp_path):
    path = library(WHOLE[:64], "abc.main.so")
    folder = tmp_path / "inductor"
    lock = folder / "locks" / "abc.lock"
    lock.parent.mkdir()
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert remove_partial_libraries(folder, 0.0) == []
        assert path.exists()
    # Its writer has died: the system let go of the lock.
    assert remove_partial_libraries(folder, 0.0) == [path]


def test_what_is_no_library_stays(library, tmp_path):
    path = library(b"", "library.cpp")
    assert remove_partial_libraries(tmp_path, 0.0) == []
    assert path.exists()


def test_missing_folders_and_files_are_no_error(tmp_path):
    assert remove_partial_libraries(tmp_path / "none", 0.0) == []
    (tmp_path / "gone.so").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder.so").mkdir()
    assert remove_partial_libraries(tmp_path, 0.0) == []


def test_folder_is_the_one_that_inductor_uses(monkeypatch, tmp_path):
    utils = pytest.importorskip("torch._inductor.runtime.cache_dir_utils")
    assert inductor_folder({}) == Path(utils.default_cache_dir())
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert inductor_folder(os.environ) == Path(utils.cache_dir())


@pytest.mark.slow
@pytest.mark.parametrize("forked", [True, False])
def test_trial_that_is_killed_leaves_no_unfinished_library(
    library, tmp_path, monkeypatch, forked
):
    written, old = library(b""), library(b"", "old.so")
    module = tmp_path / "stuck_compiler.py"
    module.write_text(
        "import pathlib, socket, sys, time\n"
        "def main(argv):\n"
        f"    pathlib.Path({str(written)!r}).write_bytes(b'half')\n"
        '    socket.socket(fileno=int(argv[2])).sendall(b\'{"event": "x"}\\n\')\n'
        "    time.sleep(60)\n"
        "if __name__ == '__main__':\n"
        "    main(sys.argv[1:])\n"
    )
    for path in (written, old):
        os.utime(path, (0.0, time.time() - LONG_AGO_S))
    monkeypatch.syspath_prepend(str(tmp_path))
    env = {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "PYTHONPATH": str(tmp_path),
    }
    with Processes(
        module.stem, tmp_path / "spec", 1, tmp_path, env, forked=forked
    ) as processes:
        processes.receive(time.monotonic() + 60.0)
        assert written.read_bytes() == b"half"
    assert not written.exists()
    assert old.exists()


def test_trial_that_ended_by_itself_is_not_cleaned_up_after(library, tmp_path):
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    processes = Processes("this", tmp_path / "spec", 1, tmp_path, env, forked=False)
    processes._children[0].wait(60.0)
    path = library(b"")
    processes.kill()
    assert path.exists()
