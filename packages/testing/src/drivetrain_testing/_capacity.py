"""The contracts of those who tell of notices, and of those who listen."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from drivetrain_core.services.capacity import (
    CapacityNotice,
    Membership,
    MembershipListener,
    NoticeSource,
)
from drivetrain_testing._clauses import require

if TYPE_CHECKING:
    from collections.abc import Callable

    Event = CapacityNotice | Membership

_NOTICE = CapacityNotice(deadline_s=1e12, node="a", reason="drained")
_WITHDRAWN = CapacityNotice(deadline_s=float("inf"), node="a", reason="kept")
_FIRST = Membership(epoch=1, rank=0, world_size=2, nodes=("a", "b"))
_SECOND = Membership(epoch=2, rank=0, world_size=1, nodes=("b",))


class RecordingListener:
    """A listener that keeps what it hears, for tests.

    Attributes:
        events: What it has heard, in order.

    Example:
        >>> from drivetrain_core.services import LocalNotices
        >>> notices, listener = LocalNotices(), RecordingListener()
        >>> _ = notices.subscribe(listener)
        >>> notices.publish(CapacityNotice.within(30, node="a", reason="drained"))
        >>> [event.node for event in listener.events]
        ['a']
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._heard = threading.Condition()

    def on_notice(self, notice: CapacityNotice) -> None:
        """Keeps a notice."""
        self._keep(notice)

    def on_membership(self, membership: Membership) -> None:
        """Keeps a membership."""
        self._keep(membership)

    def wait_for(self, count: int, timeout_s: float = 10.0) -> bool:
        """Waits until it has heard a number of events; returns whether it has."""
        with self._heard:
            return self._heard.wait_for(lambda: len(self.events) >= count, timeout_s)

    def _keep(self, event: Event) -> None:
        with self._heard:
            self.events.append(event)
            self._heard.notify_all()


def check_membership_listener(
    factory: Callable[[], MembershipListener], *, quick_s: float = 1.0
) -> None:
    """Checks that a listener takes every event that a source may send.

    Args:
        factory: Makes a listener.
        quick_s: How long a call may take, in seconds.

    Raises:
        AssertionError: A clause of the contract is broken.

    Example:
        >>> check_membership_listener(RecordingListener)
    """
    listener = factory()
    require(
        isinstance(listener, MembershipListener),
        "a listener has on_notice and on_membership",
    )
    ahead = CapacityNotice(deadline_s=0.0, node="other", reason="gone already")
    for event in (_FIRST, _NOTICE, _NOTICE, _WITHDRAWN, ahead, _SECOND, _NOTICE):
        _check_call(listener, event, quick_s)


def _check_call(listener: MembershipListener, event: Event, quick_s: float) -> None:
    raised: list[BaseException] = []

    def call() -> None:
        try:
            if isinstance(event, Membership):
                listener.on_membership(event)
            else:
                listener.on_notice(event)
        # Handed to the thread that checks.
        except BaseException as error:  # noqa: BLE001
            raised.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(quick_s)
    require(
        not thread.is_alive(),
        f"a listener returns at once: {event} took more than {quick_s} s",
    )
    require(not raised, f"a listener raises nothing: {event} raised {raised}")


def check_notice_source(
    factory: Callable[[], tuple[NoticeSource, Callable[[Event], None]]],
    *,
    timeout_s: float = 10.0,
) -> None:
    """Checks that a source tells its listeners what it must, in order.

    Args:
        factory: Makes a source, and the function that feeds an event into it.
        timeout_s: How long an event may take to be heard, in seconds.

    Raises:
        AssertionError: A clause of the contract is broken.

    Example:
        >>> from drivetrain_core.services import LocalNotices
        >>> def make():
        ...     notices = LocalNotices()
        ...     return notices, notices.publish
        >>> check_notice_source(make)
    """
    source, publish = factory()
    require(isinstance(source, NoticeSource), "a source has subscribe")
    first, second = RecordingListener(), RecordingListener()
    end_failing = source.subscribe(_Failing())
    end = source.subscribe(first)
    source.subscribe(second)
    for event in (_FIRST, _NOTICE):
        publish(event)
    for listener in (first, second):
        require(
            listener.wait_for(2, timeout_s) and listener.events == [_FIRST, _NOTICE],
            "each listener hears every event in order, even beside one that raises",
        )
    end_failing()
    late = RecordingListener()
    source.subscribe(late)
    require(
        late.wait_for(2, timeout_s) and late.events == [_FIRST, _NOTICE],
        "a new listener hears the membership and the notices that stand",
    )
    end()
    publish(_WITHDRAWN)
    publish(_FIRST)
    publish(_SECOND)
    require(second.wait_for(4, timeout_s), "a later event is heard")
    require(
        second.events[2:] == [_WITHDRAWN, _SECOND],
        "a membership that is not newer is left out",
    )
    require(len(first.events) == 2, "who has unsubscribed hears no more")
    latest = RecordingListener()
    source.subscribe(latest)
    latest.wait_for(1, timeout_s)
    require(latest.events == [_SECOND], "a notice that was withdrawn no longer stands")
    _check_threads(source, publish, timeout_s)


def _check_threads(
    source: NoticeSource, publish: Callable[[Event], None], timeout_s: float
) -> None:
    one, other = RecordingListener(), RecordingListener()
    source.subscribe(one)
    source.subscribe(other)
    notices = [
        CapacityNotice(deadline_s=time.monotonic() + i, node=f"n{i}", reason="")
        for i in range(40)
    ]
    quarters = [notices[i::4] for i in range(4)]

    def publish_all(part: list[CapacityNotice]) -> None:
        for notice in part:
            publish(notice)

    threads = [threading.Thread(target=publish_all, args=(q,)) for q in quarters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    enough = len(notices) + 1  # and the membership that stands
    require(
        one.wait_for(enough, timeout_s) and other.wait_for(enough, timeout_s),
        "no event is lost when several threads publish",
    )
    require(
        one.events == other.events,
        "all listeners hear the same order when several threads publish",
    )


class _Failing:
    def on_notice(self, notice: CapacityNotice) -> None:
        raise RuntimeError(notice.reason)

    def on_membership(self, membership: Membership) -> None:
        raise RuntimeError(membership.epoch)
