"""The shim sees all that a daemon does to its storage, and does what it is told."""

import re
import shutil
import subprocess

import pytest

from faults.disk import Disk
from faults.oplog import Log
from faults.shim import Action
from faults.stage import Stage, await_true

CHANGES = (
    "open,openat,openat2,creat,write,writev,pwrite64,pwritev,pwritev2,ftruncate,"
    "truncate,fallocate,fsync,fdatasync,sync_file_range,syncfs,sync,rename,renameat,"
    "renameat2,mkdir,mkdirat,unlink,unlinkat,rmdir,link,linkat,symlink,symlinkat,"
    "io_uring_setup,io_submit,copy_file_range,sendfile,splice"
)


@pytest.fixture
def stage(tmp_path, library):
    with Stage(tmp_path / "stage", library) as made:
        yield made


def traced(stage, file):
    """Traces the daemon while it saves and deletes; returns what it did in the end."""
    trainers = stage.start(keep=1)
    trainers.ask("save", 1)
    trainers.ask("wait", 1, 30.0)
    before = stage.control["count"]
    options = ["-f", "-qq", "-y", "-e", f"trace={CHANGES}", "-o", str(file)]
    command = ["strace", *options, "-p", str(stage.daemon())]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    await_true(lambda: stage.is_traced() or tracer.poll() is not None)
    if tracer.poll() is not None:
        pytest.skip(f"strace may not trace: {tracer.stderr.read()}")
    for step in (2, 3):
        trainers.ask("save", step)
        trainers.ask("wait", step, 30.0)
    await_true(lambda: len(list(stage.folder.iterdir())) == 1)
    count = stage.control["count"] - before
    stage.kill_daemon()
    tracer.communicate()
    return count


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_shim_misses_no_call_that_changes_storage(stage, tmp_path):
    count = traced(stage, tmp_path / "trace")
    lines = (tmp_path / "trace").read_text().splitlines()
    here = [line for line in lines if str(stage.root) in line and "= -1" not in line]
    changes = [
        line for line in here if "resumed" not in line and not opens_to_read(line)
    ]
    closes = sum("O_CREAT" in line for line in changes)
    assert len(changes) + closes == count, "\n".join(changes)


def opens_to_read(line):
    return re.search(r"\bopen(at)?\(", line) and "O_RDONLY" in line


def test_log_is_what_happened(stage):
    stage.control["record"] = 1
    trainers = stage.start(2)
    for step in range(1, 5):
        trainers.ask("save", step)
        trainers.ask("wait", step, 30.0)
    await_true(lambda: len(list(stage.folder.iterdir())) == 2)
    # A call is in the log when it has returned, a moment after it is seen.
    await_true(lambda: logged(stage) == found(stage))
    stage.kill_daemon()


def logged(stage):
    disk = Disk(str(stage.root))
    for op in Log(stage.control.log).read():
        disk.apply(op)
    return disk.tree()


def found(stage):
    return {
        str(path.relative_to(stage.root)): None if path.is_dir() else path.read_bytes()
        for path in stage.root.rglob("*")
    }


def test_gate_lets_calls_through_one_by_one(stage):
    stage.control.arm(Action.GATE, 0)
    trainers = stage.start()
    trainers.ask("save", 1)
    await_true(lambda: stage.control["count"] == 1)
    assert not list(stage.root.iterdir())
    stage.control["at"] += 1
    await_true(lambda: stage.control["count"] == 2)
    assert list(stage.root.iterdir())
    stage.control.disarm()
    assert trainers.ask("wait", 1, 30.0) == [("durable", 1)]
