"""The daemon's way to storage, with a storage that does as the test says."""

import dataclasses
import json
import threading

import pytest

from drivetrain_checkpoint._arena import Arena
from drivetrain_checkpoint._daemon.commit_decision import decide
from drivetrain_checkpoint._daemon.pending_save import PERSIST
from drivetrain_checkpoint._daemon.persister import Persister
from drivetrain_checkpoint._daemon.save_queue import SaveQueue
from drivetrain_checkpoint._daemon.service import Daemon
from drivetrain_checkpoint._errors import StorageError
from drivetrain_checkpoint._layout.manifest import ROOT_FILE, RankFile, RootManifest
from drivetrain_checkpoint._peers.peer_client import PeerClient
from drivetrain_checkpoint._storage.catalog import Keep, look_again, retired, scan
from drivetrain_checkpoint._storage.posix import PosixStorage

INFINITE = float("inf")


class GatedStorage(PosixStorage):
    """A folder whose writes wait until they are let through."""

    def __init__(self, root):
        super().__init__(root)
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.left = threading.Event()

    def write(self, *arguments):
        self.entered.set()
        assert self.gate.wait(60)
        try:
            return super().write(*arguments)
        finally:
            self.left.set()


@pytest.fixture
def storage(tmp_path):
    return GatedStorage(tmp_path / "run")


@pytest.fixture
def queue():
    queue = SaveQueue()
    yield queue
    # A daemon serves to the end of its process: its threads do nothing after the test.
    queue.begin = lambda *_: threading.Event().wait()


@pytest.fixture
def persister(queue, storage):
    found = Persister(queue, PeerClient(), storage)
    found.limit_s = 2.0  # more than a loaded machine takes for a write
    return found


def publish(queue, arena, index, step, *, rank=0, world_size=1, began_ns=0, under=""):
    save_id = f"{step:016x}"
    manifest = {
        "job": "test",
        "step": step,
        "save_id": save_id,
        "rank": rank,
        "world_size": world_size,
        "size_bytes": 5000,
        "header_bytes": 4096,
        "block_bytes": 1 << 20,
        "crc32c": [],
    }
    record = {
        "save_id": save_id,
        "step": step,
        "saved_at_ns": step,
        "began_ns": began_ns,
        "writer": "here",
        "under": under,
        "run": "r",
        "tasks": [PERSIST],
        "manifest": manifest,
    }
    body = '\n"entries":{},"layout":{"meshes":[],"tensors":[]}' if rank == 0 else "\n"
    text = (json.dumps(record) + body).encode()
    arena.begin(index)
    arena.publish(index, step, text, 8192, 5000)
    queue.published(rank)
    return save_id


@pytest.fixture
def arena(queue, persister):
    found = Arena.create(8192, 8192)
    queue.set_arena(0, found)
    persister.serve(0)
    return found


def steps(storage):
    return [saved.root.step for saved in scan(storage)[0]]


@pytest.mark.slow
def test_storage_that_hangs_fails_the_save_and_not_the_next(queue, storage, arena):
    storage.gate.clear()
    first = publish(queue, arena, 0, 1)
    answer = queue.wait(first, 20)
    assert answer["error"] == "the storage made no progress for 2 s"
    assert steps(storage) == []
    storage.gate.set()
    # The write that hung ends, and is not committed.
    assert storage.left.wait(60)
    second = publish(queue, arena, 1, 2)
    assert queue.wait(second, 20)["state"] == "committed"
    assert steps(storage) == [2]
    assert ROOT_FILE not in storage.files("step-0000000001-0000000000000001")


def test_save_that_is_dropped_while_it_is_written_is_not_committed(
    queue, storage, arena
):
    storage.gate.clear()
    first = publish(queue, arena, 0, 1)
    assert storage.entered.wait(60)
    queue.drop(first)
    storage.gate.set()
    assert queue.wait(first, 20)["error"] == "dropped for a newer save"
    with queue.changed:
        assert queue.changed.wait_for(queue.is_idle, 20)
    assert steps(storage) == []


@pytest.mark.slow
def test_rank_that_never_writes_is_named(queue, storage, arena):
    save_id = publish(queue, arena, 0, 1, world_size=3)
    queue.report(save_id, 2, {"file": "rank-00002.json", "size_bytes": 1, "crc32c": 0})
    answer = queue.wait(save_id, 20)
    assert answer["error"] == "ranks 1, 2 have written nothing for 2 s"


def test_what_a_failed_save_has_left_is_deleted(queue, storage, arena):
    save_id = publish(queue, arena, 0, 1, world_size=2)
    assert storage.left.wait(60)
    queue.failed(save_id, "rank 1: disk full")
    with queue.changed:
        assert queue.changed.wait_for(queue.is_idle, 20)
    assert storage.names() == []


def test_part_that_is_written_is_not_written_again(queue, storage, arena):
    save_id = publish(queue, arena, 0, 1)
    assert queue.wait(save_id, 20)["state"] == "committed"
    name = storage.names()[0]
    (storage.root / name / ROOT_FILE).unlink()  # as if the daemon had died before it
    files = [f.stat().st_mtime_ns for f in sorted((storage.root / name).iterdir())]
    storage.entered.clear()
    other = SaveQueue()
    other.set_arena(0, arena)
    Persister(other, PeerClient(), storage).serve(0)
    assert other.wait(save_id, 20)["state"] in {"committed", "unknown"}
    with other.changed:
        assert other.changed.wait_for(lambda: storage.exists(name, ROOT_FILE), 20)
    assert not storage.entered.is_set()
    after = sorted(f for f in (storage.root / name).iterdir() if f.name != ROOT_FILE)
    assert [f.stat().st_mtime_ns for f in after] == files


def test_failure_of_another_rank_is_that_of_all(queue, arena):
    save_id = publish(queue, arena, 0, 1, world_size=2)
    queue.failed(save_id, "rank 1: disk full")
    assert queue.wait(save_id, 20)["error"] == "rank 1: disk full"


def root(step, *, job="a", at=None):
    return RootManifest(
        job=job,
        step=step,
        save_id=f"{step:016x}",
        saved_at_ns=step if at is None else at,
        world_size=1,
        entries={},
        layout={},
        ranks=(RankFile.of(0, b""),),
    )


class Saved:
    def __init__(self, found):
        self.root, self.name = found, found.save_id


def test_retention_keeps_the_last_and_every_so_often():
    saved = [Saved(root(step)) for step in range(1, 11)]
    gone = retired(saved, saved[-1].root, Keep(last=2, every=4))
    assert [s.root.step for s in gone] == [1, 2, 3, 5, 6, 7]
    assert retired(saved, saved[-1].root, Keep(last=None)) == []


def test_retention_leaves_other_jobs_alone():
    saved = [Saved(root(step, job="b")) for step in range(5)] + [Saved(root(9))]
    assert retired(saved, saved[-1].root, Keep(last=1)) == []


def decided(**about):
    base = {
        "reported": [0, 1],
        "absent": [],
        "on_storage": [],
        "world_size": 2,
        "error": "",
        "quiet_s": 0.0,
        "unseen_s": 0.0,
        "limit_s": 600.0,
    }
    return decide(**{**base, **about})


@pytest.mark.parametrize(
    ("about", "action"),
    [
        ({"error": "disk full"}, "fail"),
        ({"absent": [1]}, "fail"),
        ({"on_storage": [0, 1]}, "commit"),
        ({"unseen_s": INFINITE}, "look"),
        ({}, "wait"),
        ({"unseen_s": 0.6, "quiet_s": 1.0}, "look"),
        ({"unseen_s": 0.6, "quiet_s": 31.0}, "fail"),
        ({"reported": [0]}, "wait"),
        ({"reported": [0], "unseen_s": 0.1, "quiet_s": 0.1}, "look"),
        ({"reported": [0], "unseen_s": 1.0, "quiet_s": 601.0}, "fail"),
    ],
)
def test_commit_is_decided_from_what_is_known(about, action):
    assert decided(**about).action == action


def test_nodes_that_see_different_storages_are_told_so():
    found = decided(on_storage=[0], unseen_s=0.6, quiet_s=31.0)
    assert "what rank 1 wrote is not there: all nodes must see" in found.because


def test_save_reads_no_manifest_of_those_before(queue, storage, arena, monkeypatch):
    for step in range(1, 4):
        assert queue.wait(publish(queue, arena, step % 2, step), 20)["state"]
    with queue.changed:
        assert queue.changed.wait_for(queue.is_idle, 20)
    read, own = [], storage.read
    monkeypatch.setattr(
        storage,
        "read",
        lambda name, file: (read.append((name, file)), own(name, file))[1],
    )
    save_id = publish(queue, arena, 0, 4)
    assert queue.wait(save_id, 20)["state"] == "committed"
    with queue.changed:
        assert queue.changed.wait_for(queue.is_idle, 20)
    assert read
    assert all(save_id in name for name, _ in read)
    # What another process has deleted meanwhile is not there any more.
    storage.remove(f"step-0000000003-{3:016x}", ROOT_FILE)
    known = {}
    look_again(storage, known)
    assert [one.root.step for one in known.values()] == steps(storage)
    assert all(one.root.entries == one.root.layout == {} for one in known.values())


def test_older_of_two_runs_commits_no_more(queue, storage, arena):
    def commit(step, writer, began_ns):
        theirs = dataclasses.replace(root(step), job="test", writer=writer)
        theirs = dataclasses.replace(theirs, began_ns=began_ns)
        name = f"step-{step:010d}-{step:016x}"
        storage.commit(name, ROOT_FILE, theirs.to_bytes())

    def outcome(index, step):
        return queue.wait(publish(queue, arena, index, step, began_ns=50), 20)

    commit(1, "an earlier run", 40)
    commit(2, "", 60)  # what a command has written is no run's
    commit(3, "here", 70)  # and this is what this daemon does itself
    assert outcome(0, 4)["state"] == "committed"
    commit(5, "elsewhere", 60)
    found = outcome(1, 6)
    assert found["state"] == "failed"
    assert "another run of job 'test'" in found["error"]
    assert "elsewhere" in found["error"]
    with queue.changed:
        assert queue.changed.wait_for(queue.is_idle, 20)
    # What the later run keeps is left alone.
    assert steps(storage) == [2, 3, 4, 5]


def test_who_may_not_list_the_storage_saves_all_the_same(
    queue, storage, arena, monkeypatch, caplog
):
    def refuse():
        message = "cannot list: permission denied"
        raise StorageError(message)

    monkeypatch.setattr(storage, "names", refuse)
    save_id = publish(queue, arena, 0, 1)
    assert queue.wait(save_id, 20)["state"] == "committed"
    assert "whether another run saves here is not known" in caplog.text


def test_what_storage_has_refused_is_tried_anew_when_asked(
    queue, storage, arena, monkeypatch
):
    own, refusing, deleting = storage.commit, [True], threading.Event()
    own_remove = storage.remove

    def commit(name, file, content):
        if refusing:
            message = "cannot commit: no space left"
            raise StorageError(message)
        own(name, file, content)

    def remove(name, last):
        deleting.set()
        threading.Event().wait(0.3)  # the one that failed is being deleted
        own_remove(name, last)

    monkeypatch.setattr(storage, "commit", commit)
    monkeypatch.setattr(storage, "remove", remove)
    save_id = publish(queue, arena, 0, 1)
    assert queue.wait(save_id, 20)["state"] == "failed"
    assert deleting.wait(20)
    refusing.clear()
    assert queue.add_task(PERSIST) == [save_id]
    assert queue.wait(save_id, 20)["state"] == "committed"
    assert steps(storage) == [1]


def test_older_of_two_runs_commits_no_more_in_a_folder_of_the_job(
    queue, persister, storage, arena, tmp_path
):
    inner = PosixStorage(tmp_path / "run" / "last.ckpt")
    persister._open_under = lambda under: inner

    def commit(step, began_ns):
        theirs = dataclasses.replace(root(step), job="test", writer="elsewhere")
        theirs = dataclasses.replace(theirs, began_ns=began_ns)
        inner.commit(f"step-{step:010d}-{step:016x}", ROOT_FILE, theirs.to_bytes())

    def outcome(index, step):
        save_id = publish(queue, arena, index, step, began_ns=50, under="last.ckpt")
        return queue.wait(save_id, 20)["state"]

    commit(1, 60)  # an earlier run's, whose clock was ahead
    assert outcome(0, 2) == "committed"
    commit(3, 40)
    assert outcome(1, 4) == "committed"
    commit(5, 60)
    assert outcome(0, 6) == "failed"


def test_commit_does_not_wait_for_what_is_deleted(
    queue, persister, storage, arena, monkeypatch
):
    persister.keep = Keep(last=1)
    own, deleting, gate = storage.remove, threading.Event(), threading.Event()

    def remove(name, last):
        deleting.set()
        assert gate.wait(60)
        own(name, last)

    monkeypatch.setattr(storage, "remove", remove)
    for step in (1, 2):
        assert queue.wait(publish(queue, arena, step % 2, step), 20)["state"]
    assert deleting.wait(20)
    save_id = publish(queue, arena, 1, 3)
    assert queue.wait(save_id, 20)["state"] == "committed"
    gate.set()
    with queue.changed:
        assert queue.changed.wait_for(queue.is_idle, 20)
    assert steps(storage) == [3]


def test_machine_without_a_thread_left_costs_one_save(queue, arena, monkeypatch):
    real = threading.Thread.start

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    publish(queue, arena, 0, 1)
    answer = queue.wait(f"{1:016x}", 60)
    assert (answer["state"], answer["error"]) == ("failed", "can't start new thread")
    monkeypatch.setattr(threading.Thread, "start", real)
    publish(queue, arena, 1, 2)
    assert queue.wait(f"{2:016x}", 60)["state"] == "committed"


def test_memory_that_is_filled_anew_while_it_is_written_is_not_committed(
    queue, storage, arena
):
    storage.gate.clear()
    first = publish(queue, arena, 0, 1)
    assert storage.entered.wait(20)
    arena.begin(0)  # by a trainer that a daemon before this one had given leave to
    storage.gate.set()
    assert queue.wait(first, 20)["error"] == "it was given up"
    assert steps(storage) == []


def test_save_of_which_the_first_rank_has_nothing_left_is_not_waited_for(storage):
    daemon = Daemon(None)  # one that has taken the place of another
    queue, memory = daemon._queue, [Arena.create(8192, 8192) for _ in range(2)]
    daemon._persister = Persister(queue, daemon._peers, storage)
    queue.set_arena(1, memory[1])
    lost = publish(queue, memory[1], 0, 1, rank=1, world_size=2)
    part = queue.begin(1, PERSIST, 0.0)
    queue.report(lost, 1, {"rank": 1})
    queue.end(part, PERSIST)
    about = {"step": 1, "save_id": lost, "under": "", "timeout_s": 0.01}
    assert daemon._wait(**about)["state"] == "written"  # the first rank may be late
    queue.set_arena(0, memory[0])
    for index in (0, 1):
        publish(queue, memory[0], index, 2 + index, world_size=2)
    assert daemon._wait(**about)["state"] == "unknown"
    assert daemon._wait(**about | {"timeout_s": 0.0})["state"] == "written"
