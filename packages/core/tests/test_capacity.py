"""Notices and memberships, and the signal that becomes a notice."""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from drivetrain_core.services import CapacityNotice, LocalNotices, Membership
from drivetrain_testing import (
    RecordingListener,
    check_membership_listener,
    check_notice_source,
)

NOTICE = CapacityNotice(deadline_s=1e12, node="a", reason="drained")
WORLD = Membership(epoch=1, rank=0, world_size=1, nodes=("a",))


def make_local():
    notices = LocalNotices()
    return notices, notices.publish


def test_local_notices_keep_the_contract(caplog):
    caplog.set_level(logging.CRITICAL)
    check_notice_source(make_local)


def test_recording_listener_keeps_the_contract():
    check_membership_listener(RecordingListener)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [({"deadline_s": math.nan}, "nan"), ({"node": ""}, "name the node")],
)
def test_notice_is_checked(fields, problem):
    with pytest.raises(ValueError, match=problem):
        CapacityNotice(**{"deadline_s": 1.0, "node": "a", "reason": "", **fields})


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"epoch": -1}, "epoch"),
        ({"rank": 2}, "no rank 2"),
        ({"rank": -1}, "no rank -1"),
        ({"nodes": ("a",)}, "node of each"),
    ],
)
def test_membership_is_checked(fields, problem):
    good = {"epoch": 0, "rank": 0, "world_size": 2, "nodes": ("a", "b")}
    with pytest.raises(ValueError, match=problem):
        Membership(**{**good, **fields})


def test_remaining_time_never_goes_below_zero():
    notice = CapacityNotice(deadline_s=10.0, node="a", reason="")
    assert notice.remaining_s(now_s=4.0) == 6.0
    assert notice.remaining_s(now_s=11.0) == 0.0
    assert not notice.withdrawn
    assert CapacityNotice(deadline_s=math.inf, node="a", reason="").withdrawn


def test_failing_listener_is_logged_and_others_hear(caplog):
    class Failing(RecordingListener):
        def on_notice(self, notice):
            raise RuntimeError("listener is broken")

    notices, listener = LocalNotices(), RecordingListener()
    notices.subscribe(Failing())
    notices.subscribe(listener)
    notices.publish(NOTICE)
    assert listener.events == [NOTICE]
    assert "listener is broken" in caplog.text


def test_membership_without_a_node_drops_its_notice():
    notices = LocalNotices()
    notices.publish(NOTICE)
    notices.publish(Membership(epoch=2, rank=0, world_size=1, nodes=("b",)))
    listener = RecordingListener()
    notices.subscribe(listener)
    assert [type(event) for event in listener.events] == [Membership]


def test_listener_may_publish_and_unsubscribe_from_inside():
    notices, other = LocalNotices(), RecordingListener()

    class Chatty(RecordingListener):
        def on_notice(self, notice):
            super().on_notice(notice)
            end()
            notices.publish(WORLD)

    chatty = Chatty()
    end = notices.subscribe(chatty)
    notices.subscribe(other)
    notices.publish(NOTICE)
    assert chatty.events == [NOTICE]
    assert other.events == [NOTICE, WORLD]


def test_unsubscribing_twice_is_fine():
    end = LocalNotices().subscribe(RecordingListener())
    end()
    end()


def test_interrupt_in_a_listener_does_not_block_the_next_event():
    class Interrupted(RecordingListener):
        def on_notice(self, notice):
            raise KeyboardInterrupt

    notices, listener = LocalNotices(), RecordingListener()
    end = notices.subscribe(Interrupted())
    with pytest.raises(KeyboardInterrupt):
        notices.publish(NOTICE)
    end()
    notices.subscribe(listener)
    notices.publish(WORLD)
    assert WORLD in listener.events


@pytest.fixture
def previous_handler():
    """Counts the calls of the handler that stood before."""
    calls = []
    before = signal.signal(signal.SIGUSR1, lambda signum, frame: calls.append(signum))
    yield calls
    signal.signal(signal.SIGUSR1, before)


def test_signal_becomes_a_notice_and_reaches_the_earlier_handler(previous_handler):
    notices, listener = LocalNotices(), RecordingListener()
    notices.subscribe(listener)
    stop = notices.listen_to_signal(signal.SIGUSR1, grace_s=30, node="here")
    before = time.monotonic()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert listener.wait_for(1)
    first = listener.events[0]
    assert (first.node, first.reason) == ("here", "this process got SIGUSR1")
    assert before + 30 <= first.deadline_s <= time.monotonic() + 30
    assert previous_handler == [signal.SIGUSR1]
    os.kill(os.getpid(), signal.SIGUSR1)
    assert listener.wait_for(2)
    assert listener.events[1].deadline_s == first.deadline_s
    stop()
    stop()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert len(previous_handler) == 3
    assert len(listener.events) == 2


def test_stopped_listening_passes_on_when_another_handler_chains_it(previous_handler):
    notices, listener = LocalNotices(), RecordingListener()
    notices.subscribe(listener)
    stop = notices.listen_to_signal(signal.SIGUSR1, node="here")
    ours = signal.getsignal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda signum, frame: ours(signum, frame))
    stop()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert previous_handler == [signal.SIGUSR1]
    assert listener.events == []


def test_listening_off_the_main_thread_is_an_error():
    caught = []

    def listen():
        try:
            LocalNotices().listen_to_signal(signal.SIGUSR1)
        except ValueError as error:
            caught.append(str(error))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert "main thread" in caught[0]


def test_forked_child_still_ends_on_the_signal():
    code = """
import os, signal, time
from drivetrain_core.services import LocalNotices
LocalNotices().listen_to_signal(signal.SIGTERM, node="here")
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.write(writing, b"x")
    while True:  # not one long wait, which a signal just before it would not end
        time.sleep(0.01)
os.read(reading, 1)
os.kill(child, signal.SIGTERM)
_, status = os.waitpid(child, 0)
assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM, status
os.kill(os.getpid(), signal.SIGTERM)  # and the parent goes on
print("alive")
"""
    env = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
