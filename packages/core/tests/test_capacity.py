"""Notices and memberships, and the signal that becomes a notice."""

from __future__ import annotations

import logging
import math

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
