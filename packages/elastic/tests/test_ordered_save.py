"""A checkpoint that the job asks a rank for."""

from __future__ import annotations

import math
import threading
import time

import pytest

from drivetrain_core import CheckpointError
from drivetrain_elastic._ordered_save import OrderedSave
from drivetrain_elastic._seat import SaveOrder


class Seats:
    """Has an order, and keeps what is told."""

    def __init__(self, request="one", within_s=60.0):
        end_s = time.monotonic() + within_s
        self.order = SaveOrder(request, end_s, "a node goes")
        self.told = []
        self.heard = threading.Event()

    def save_order(self):
        return self.order

    def report_saved(self, order, step, seconds, failure):
        assert 0 <= seconds < math.inf
        self.told.append((order.request, step, failure))
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


def save(seats, saver):
    ordered = OrderedSave(seats)
    ordered.save(saver, 5, {"weight": 1})
    return ordered


def test_an_order_is_due_until_it_is_taken():
    seats = Seats()
    ordered = OrderedSave(seats)
    assert ordered.is_due()
    handle = Handle(5)
    handle.ended.set()
    ordered.save(Saver(handle), 5, {"weight": 1})
    assert not ordered.is_due()
    assert seats.told == [("one", 5, "")]
    seats.order = seats.order._replace(request="two")
    assert ordered.is_due()
    seats.order = None
    assert not ordered.is_due()


def test_a_save_on_its_way_is_told_when_it_is_durable():
    seats, handle = Seats(), Handle(5)
    save(seats, Saver(handle))
    assert seats.told == []
    handle.ended.set()
    assert seats.heard.wait(30.0)
    assert seats.told == [("one", 5, "")]


@pytest.mark.parametrize("is_sync", [True, False])
def test_a_save_that_fails_is_told_and_training_goes_on(is_sync):
    seats, error = Seats(), CheckpointError("the disk is full")
    handle = Handle(5, error)
    if not is_sync:
        handle.ended.set()
    save(seats, Saver(handle, error if is_sync else None))
    assert seats.heard.wait(30.0)
    assert seats.told == [("one", 5, "the disk is full")]


def test_a_save_that_is_not_durable_in_time_is_told_as_failed():
    seats = Seats(within_s=-1.0)
    save(seats, Saver(Handle(5)))
    assert seats.heard.wait(30.0)
    assert seats.told == [("one", 5, "it was not durable in time")]


def test_a_script_without_a_checkpointer_says_so():
    seats = Seats()
    save(seats, None)
    assert seats.told == [("one", 5, "the script has no checkpointer")]


def test_a_rank_that_has_not_heard_of_the_order_saves_with_the_others():
    seats = Seats()
    seats.order = None
    saver = Saver(Handle(5))
    save(seats, saver)
    assert (saver.steps, seats.told) == ([5], [])
