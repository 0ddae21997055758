"""Interrupts and signal handlers: in the midst of a save, and of a question to the daemon."""

import os
import signal
import subprocess
import sys

import pytest
import torch

from drivetrain_checkpoint import Checkpointer
from drivetrain_checkpoint._peers.connection import Connection
from drivetrain_core import CheckpointError


@pytest.fixture
def saver(tmp_path):
    """A checkpointer that has saved, so that memory and daemon are there."""
    checkpointer = Checkpointer(tmp_path, job="interrupts")
    checkpointer.save(1, state(1)).wait()
    return checkpointer


def state(value):
    return {"w": torch.full((1000,), float(value)), "n": value}


def assert_works(checkpointer, step):
    """The next save is durable, and what is restored is what it saved."""
    assert checkpointer.save(step, state(step)).wait(60)
    found = state(0)
    assert checkpointer.restore(found) == step
    assert found["n"] == step
    assert bool((found["w"] == step).all())


@pytest.mark.parametrize("which", ["send", "receive"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
def test_interrupt_at_any_message_leaves_the_next_save_whole(
    tmp_path, monkeypatch, which, when, overlap
):
    """Ctrl-C comes at the first message of a save, then at the second, and so on."""
    checkpointer = Checkpointer(tmp_path, job="interrupts", overlap=overlap)
    checkpointer.save(1, state(1)).wait()
    own, countdown = getattr(Connection, which), [-1]

    def interrupted(self, *args):
        countdown[0] -= 1
        if countdown[0] == 0 and when == "before":
            raise KeyboardInterrupt
        found = own(self, *args)
        if countdown[0] == 0:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(Connection, which, interrupted)
    count = 0
    for number in range(1, 20):
        countdown[0], step = number, 10 * number
        try:
            handle = checkpointer.save(step, state(step))
            handle.wait(until="staged")
        except KeyboardInterrupt:
            count += 1
        is_over, countdown[0] = countdown[0] > 0, -1
        assert_works(checkpointer, step + 1)
        if is_over:
            break
    assert is_over
    assert count >= 2


def test_handler_that_saves_in_the_midst_of_a_save_is_told_what_to_do(
    saver, monkeypatch
):
    told, pack = [], saver._saver.packer.pack

    def handler(*_):
        for call in (
            lambda: saver.save(9, state(9)),
            lambda: saver.restore(state(0)),
            lambda: saver.prewarm(state(0)),
            saver.stop_daemon,
        ):
            with pytest.raises(CheckpointError, match=r"on_preempt\(\)") as caught:
                call()
            told.append(str(caught.value))

    def packed(value):
        os.kill(os.getpid(), signal.SIGUSR1)
        return pack(value)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(saver._saver.packer, "pack", packed)
            assert saver.save(2, state(2)).wait(60)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(told) == 4
    assert "save() was called in the midst of save()" in told[0]
    assert_works(saver, 3)


def test_handler_asks_in_the_midst_of_a_question(saver, monkeypatch):
    handle = saver.save(2, state(2))
    assert handle.wait(60)
    handle._durable = False
    own, found = Connection.receive, []

    def receive(self):
        monkeypatch.setattr(Connection, "receive", own)
        found.append((handle.durable, saver.flush(), saver.latest()))
        return own(self)

    monkeypatch.setattr(Connection, "receive", receive)
    assert saver.save(3, state(3)).wait(60)
    assert found[0][:2] == (True, True)
    assert_works(saver, 4)


def test_files_of_the_current_folder_are_no_modules_of_the_daemon(tmp_path):
    for name in ("secrets", "struct", "threading"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w').close()")
    script = """
import torch
from drivetrain_checkpoint import Checkpointer
checkpointer = Checkpointer("saved", job="shadow")
assert checkpointer.save(1, {"w": torch.ones(3)}).wait()
checkpointer.stop_daemon()
"""
    subprocess.run([sys.executable, "-P", "-c", script], cwd=tmp_path, check=True)
    assert not (tmp_path / "ran").exists()
