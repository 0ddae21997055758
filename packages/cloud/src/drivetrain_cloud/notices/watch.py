"""Watches what a cloud says about this node, and publishes it as notices."""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import TYPE_CHECKING, Self

from drivetrain_cloud.notices.sighting import BadAnswerError
from drivetrain_core.services import CapacityNotice

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_cloud.notices.sighting import Cloud, Sighting

logger = logging.getLogger(__name__)

# Clouds move a deadline by rounding: what differs by less is the same notice.
_SAME_S = 2.0
_LONGEST_WAIT_S = 60.0


def next_notice(
    now_s: float, node: str, last: CapacityNotice | None, sighting: Sighting | None
) -> CapacityNotice | None:
    """Returns the notice that is news; None if nothing is.

    A deadline never moves further away while the cloud goes on to say that it stands,
    since what it says may be seconds old.

    Args:
        now_s: The time, as `time.monotonic()` counts.
        node: The name of this node.
        last: What was published last.
        sighting: What the cloud says now.

    Example:
        >>> from drivetrain_cloud.notices import Sighting
        >>> first = next_notice(100.0, "a", None, Sighting(remaining_s=30.0, reason="r"))
        >>> first.deadline_s
        130.0
        >>> next_notice(105.0, "a", first, Sighting(remaining_s=25.5, reason="r"))
        >>> next_notice(106.0, "a", first, None).withdrawn
        True
    """
    stands = last is not None and not last.withdrawn
    if sighting is None:
        if last is None or not stands:
            return None
        reason = f"no longer so: {last.reason}"
        return CapacityNotice(deadline_s=math.inf, node=node, reason=reason)
    deadline_s = now_s + sighting.remaining_s
    if last is not None and stands and deadline_s > last.deadline_s - _SAME_S:
        return None
    return CapacityNotice(deadline_s=deadline_s, node=node, reason=sighting.reason)


def next_wait(interval_s: float, failures: int) -> float:
    """Returns how long to wait before the next question.

    Args:
        interval_s: Where answers come.
        failures: Questions in a row that had no answer.

    Example:
        >>> [next_wait(5.0, failures) for failures in (0, 1, 2, 9)]
        [5.0, 10.0, 20.0, 60.0]
    """
    longest_s = max(interval_s, _LONGEST_WAIT_S)
    return float(min(interval_s * 2 ** min(failures, 16), longest_s))


class NoticeWatch:
    """A thread that asks a cloud again and again.

    Args:
        cloud: Which one.
        node: The name of this node, as notices have it.
        publish: Takes each notice that is news, in the thread of the watch.
        interval_s: Between two questions.
        heeds_risks: Whether what a cloud thinks likely is a notice, too.

    Example:
        >>> from drivetrain_cloud.notices import FakeCloud, NoticeWatch, cloud_of
        >>> import queue
        >>> heard = queue.Queue()
        >>> with FakeCloud() as fake:
        ...     cloud = cloud_of(f"aws={fake.url}")
        ...     with NoticeWatch(cloud, "a", heard.put, interval_s=0.01):
        ...         fake.reclaim(120)
        ...         print(heard.get(timeout=30).reason[:22])
        AWS will terminate thi
    """

    def __init__(
        self,
        cloud: Cloud,
        node: str,
        publish: Callable[[CapacityNotice], object],
        *,
        interval_s: float = 5.0,
        heeds_risks: bool = False,
    ) -> None:
        """Nothing is asked before `start`."""
        if not interval_s > 0:
            message = f"interval_s must be more than 0, got {interval_s}"
            raise ValueError(message)
        self.name = cloud.name
        self._cloud, self._node, self._publish = cloud, node, publish
        self._interval_s, self._heeds_risks = interval_s, heeds_risks
        self._end = threading.Event()
        self._event = ""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to ask."""
        self._thread = threading.Thread(
            target=self._run, name=f"drivetrain-{self._cloud.name}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; a question that is under way is not waited for."""
        self._end.set()

    def acknowledge(self) -> None:
        """Tells the cloud, if it asks, that this node is no longer needed."""
        if self._event:
            self._cloud.acknowledge(self._event)

    def __enter__(self) -> Self:
        """Begins to ask."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the thread."""
        self.stop()

    def _run(self) -> None:
        last: CapacityNotice | None = None
        failures = 0
        while not self._end.is_set():
            asked_s = time.monotonic()
            try:
                sighting = self._cloud.look()
            # A watch that has ended would hear no notice at all, whatever ended it.
            except Exception as error:  # noqa: BLE001
                failures += 1
                # An endpoint that is silent says nothing about a notice that stands.
                level = logging.WARNING if failures == 1 else logging.DEBUG
                is_known = isinstance(error, OSError | BadAnswerError)
                words = str(error) if is_known else repr(error)
                logger.log(level, "%s says nothing: %s", self._cloud.name, words)
                self._end.wait(next_wait(self._interval_s, failures))
                continue
            failures = 0
            if sighting is not None and not sighting.is_certain:
                logger.info("%s: %s", self._cloud.name, sighting.reason)
                sighting = sighting if self._heeds_risks else None
            self._event = "" if sighting is None else sighting.event
            notice = next_notice(time.monotonic(), self._node, last, sighting)
            if notice is not None and not self._end.is_set():
                last = notice
                self._tell(notice)
            # A cloud that holds a question until something changes has waited already.
            took_s = time.monotonic() - asked_s
            self._end.wait(max(0.0, self._interval_s - took_s))

    def _tell(self, notice: CapacityNotice) -> None:
        try:
            self._publish(notice)
        # The next notice must be heard, whatever became of this one.
        except Exception:
            logger.exception("nobody took note of %r", notice)
