"""What is called durable is on storage: through signals, outages, and saves that fail."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from drivetrain_checkpoint import Checkpointer, StorageError, list_checkpoints
from drivetrain_testing import is_alive


def state(value):
    return {"w": torch.full((1000,), float(value)), "n": value}


def steps(folder):
    return [found.step for found in list_checkpoints(folder)]


def until(condition, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextlib.contextmanager
def outage(folder):
    """Storage that refuses everything: a file lies where the folder was."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.touch()
    yield
    folder.unlink()
    aside.rename(folder)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def saver(folder):
    checkpointer = Checkpointer(folder, job="durable", keep=None)
    checkpointer.save(1, state(1)).wait(60)
    return checkpointer


def test_daemon_that_is_terminated_writes_what_it_holds(saver, folder, daemon_of):
    saver.save(7, state(7), persist=False)
    daemon = daemon_of()
    os.kill(daemon, signal.SIGTERM)
    until(lambda: not is_alive(daemon))
    assert steps(folder) == [1, 7]
    # The trainer goes on with another.
    assert saver.save(8, state(8)).wait(60)
    assert daemon_of() != daemon


def test_daemon_that_is_terminated_in_an_outage_tries_again(saver, folder, daemon_of):
    daemon = daemon_of()
    with outage(folder):
        saver.save(7, state(7), persist=False)
        os.kill(daemon, signal.SIGTERM)
        time.sleep(0.5)
        assert is_alive(daemon)
    until(lambda: not is_alive(daemon))
    assert steps(folder) == [1, 7]


def test_daemon_that_is_terminated_twice_ends_at_once(saver, folder, daemon_of):
    daemon = daemon_of()
    with outage(folder):
        saver.save(7, state(7), persist=False)
        os.kill(daemon, signal.SIGTERM)
        time.sleep(0.2)
        os.kill(daemon, signal.SIGTERM)
        until(lambda: not is_alive(daemon), 10.0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_notice_is_durable_only_if_storage_has_it(saver, folder, daemon_of, number):
    """The daemon has died before the notice comes, and a new one holds nothing."""
    with saver.on_preempt([signal.SIGUSR1], then_exit=False) as notice:
        saver.save(7, state(7), persist=False)
        daemon = daemon_of()
        os.kill(daemon, number)
        until(lambda: not is_alive(daemon))
        os.kill(os.getpid(), signal.SIGUSR1)
        until(lambda: notice.is_durable is not None)
        assert notice.is_durable
        assert steps(folder) == [1, 7]
    # The notice has taken nothing from the trainer.
    assert saver.save(8, state(8)).wait(60)


def test_notice_in_an_outage_that_ends_is_durable(saver, folder):
    with saver.on_preempt([signal.SIGUSR1], then_exit=False) as notice:
        with outage(folder):
            handle = saver.save(7, state(7))
            with pytest.raises(StorageError):
                handle.wait(60)
            os.kill(os.getpid(), signal.SIGUSR1)
            until(notice.is_set)
        until(lambda: notice.is_durable is not None)
    assert notice.is_durable
    assert steps(folder) == [1, 7]


def test_notice_in_an_outage_is_not_durable(saver, folder):
    usual = [signal.SIGUSR1]
    with saver.on_preempt(usual, grace_s=2, then_exit=False) as notice:
        with outage(folder):
            saver.save(7, state(7))
            os.kill(os.getpid(), signal.SIGUSR1)
            until(lambda: notice.is_durable is not None)
        assert notice.is_durable is False


def test_exit_status_says_that_not_all_is_durable(folder):
    script = f"""
import os, signal, torch
from drivetrain_checkpoint import Checkpointer
checkpointer = Checkpointer({str(folder)!r}, job="durable")
with checkpointer.on_preempt(grace_s=2):
    checkpointer.save(1, {{"w": torch.ones(10)}}, persist=False)
    open({str(folder)!r}, "w").close()
    os.kill(os.getpid(), signal.SIGTERM)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "not all on storage" in done.stderr


def test_saves_that_storage_refuses_are_told_by_the_next(saver, folder, caplog):
    with outage(folder), caplog.at_level(logging.WARNING):
        for step in (2, 3, 4):
            handle = saver.save(step, state(step))
            with contextlib.suppress(StorageError):
                handle.wait(60)
        saver.save(5, state(5))
    told = [r.getMessage() for r in caplog.records if "is not saved" in r.getMessage()]
    assert saver.counts.failed == len(told) >= 3
    assert told[0].startswith("step 2 is not saved so far: ")


def test_storage_that_comes_back_is_given_what_memory_holds(saver, folder):
    with outage(folder):
        handles = [saver.save(step, state(step)) for step in (2, 3)]
        for handle in handles:
            with pytest.raises(StorageError):
                handle.wait(60)
    # Nobody asks for it.
    until(lambda: all(handle.durable for handle in handles))
    assert saver.flush()
    assert steps(folder) == [1, 2, 3]


def test_flush_writes_what_was_refused_before(saver, folder):
    with outage(folder):
        handle = saver.save(2, state(2))
        with pytest.raises(StorageError):
            handle.wait(60)
    assert saver.flush()
    assert steps(folder) == [1, 2]
