"""A checkpoint that the job asks a rank for."""

from __future__ import annotations

import math
import threading
import time

import pytest

from drivetrain_core import CheckpointError
from drivetrain_elastic._membership._rank_assignment import CheckpointRequest
from drivetrain_elastic._training._requested_checkpoint import RequestedCheckpoint


class Membership:
    """Has a request, and keeps what is told."""

    def __init__(self, request="one", within_s=60.0):
        end_s = time.monotonic() + within_s
        self.request = CheckpointRequest(request, end_s, "a node goes")
        self.told = []
        self.heard = threading.Event()

    def checkpoint_request(self):
        return self.request

    def report_saved(self, request, step, seconds, failure):
        assert 0 <= seconds < math.inf
        self.told.append((request.id, step, failure))
        self.heard.set()


class Handle:
    """A save that ends when a test says so."""

    def __init__(self, step, error=None):
        self.step, self.error = step, error
        self.ended = threading.Event()

    @property
    def done(self):
        return self.ended.is_set()

    def wait(self, timeout_s=None):
        is_done = self.ended.wait(timeout_s)
        if self.error is not None and is_done:
            raise self.error
        return is_done


class Saver:
    """Gives out a handle, or fails."""

    def __init__(self, handle=None, error=None):
        self.handle, self.error, self.steps = handle, error, []

    def save(self, step, state):
        assert state == {"weight": 1}
        self.steps.append(step)
        if self.error is not None:
            raise self.error
        return self.handle


def save(membership, saver):
    ordered = RequestedCheckpoint(membership)
    ordered.save(saver, 5, {"weight": 1})
    return ordered


def test_an_order_is_due_until_it_is_taken():
    membership = Membership()
    ordered = RequestedCheckpoint(membership)
    assert ordered.is_due()
    handle = Handle(5)
    handle.ended.set()
    ordered.save(Saver(handle), 5, {"weight": 1})
    assert not ordered.is_due()
    assert membership.told == [("one", 5, "")]
    membership.request = membership.request._replace(id="two")
    assert ordered.is_due()
    membership.request = None
    assert not ordered.is_due()


def test_a_save_on_its_way_is_told_when_it_is_durable():
    membership, handle = Membership(), Handle(5)
    save(membership, Saver(handle))
    assert membership.told == []
    handle.ended.set()
    assert membership.heard.wait(60.0)
    assert membership.told == [("one", 5, "")]


@pytest.mark.parametrize("is_sync", [True, False])
def test_a_save_that_fails_is_told_and_training_goes_on(is_sync):
    membership, error = Membership(), CheckpointError("the disk is full")
    handle = Handle(5, error)
    if not is_sync:
        handle.ended.set()
    save(membership, Saver(handle, error if is_sync else None))
    assert membership.heard.wait(60.0)
    assert membership.told == [("one", 5, "the disk is full")]


def test_a_save_that_is_not_durable_in_time_is_told_as_failed():
    membership = Membership(within_s=-1.0)
    save(membership, Saver(Handle(5)))
    assert membership.heard.wait(60.0)
    assert membership.told == [("one", 5, "it was not durable in time")]


def test_a_script_without_a_checkpointer_says_so():
    membership = Membership()
    save(membership, None)
    assert membership.told == [("one", 5, "the script has no checkpointer")]


def test_a_rank_that_has_not_heard_of_the_order_saves_with_the_others():
    membership = Membership()
    membership.request = None
    saver = Saver(Handle(5))
    save(membership, saver)
    assert (saver.steps, membership.told) == ([5], [])
