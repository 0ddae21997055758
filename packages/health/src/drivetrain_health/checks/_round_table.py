"""Where nodes that are checked together meet, and agree on what each of them has said.

In each phase, nodes leave what they have to say in a store. Whoever comes last, or whose
patience ends first, closes the phase: one record of all that was said until then, which is
written once. All read that record and nothing else, so that all decide the same, also about
somebody who came too late.
"""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.distributed.distributed_c10d import Store


class RoundTable:
    """The phases of one check, in a store that has seen no other one.

    Args:
        store: Where the nodes meet.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def enter(self, place: str) -> int:
        """Counts who comes to a place; returns the number of this one, from 1.

        Raises:
            DistributedError: The store is gone.
        """
        try:
            return self._store.add(f"{place}/entered", 1)
        except RuntimeError as error:
            raise _gone(place, error) from error

    def end(self) -> None:
        """Says that this check is over, to whoever finds the store afterwards."""
        self.say("over", "", "")

    def is_over(self) -> bool:
        """Returns whether an earlier check has ended here.

        Raises:
            DistributedError: The store is gone.
        """
        phase = "over"
        try:
            return self._store.check([f"{phase}/said/"])
        except RuntimeError as error:
            raise _gone(phase, error) from error

    def say(self, phase: str, name: str, text: str) -> None:
        """Leaves a text under a name.

        Args:
            phase: Which phase.
            name: Unlike all others of the phase.
            text: What is said.

        Raises:
            DistributedError: The store is gone.
        """
        try:
            self._store.set(f"{phase}/said/{name}", text)
        except RuntimeError as error:
            raise _gone(phase, error) from error

    def close(
        self, phase: str, names: Iterable[str], *, until_s: float, has_said: bool
    ) -> dict[str, str]:
        """Waits until all have spoken, or the phase is closed; returns what was said.

        Args:
            phase: Which phase.
            names: Who is to speak.
            until_s: How long to wait at most, on the monotonic clock.
            has_said: Whether this node has spoken.

        Raises:
            DistributedError: The store is gone.
        """
        wanted = list(names)
        record = f"{phase}/record"
        try:
            # The last to speak closes at once, and wakes all others.
            is_last = has_said and self.enter(phase) >= len(wanted)
            if not is_last or not self._store.check(
                [f"{phase}/said/{n}" for n in wanted]
            ):
                self._wait(record, until_s)
            if not self._store.check([record]):
                self._store.compare_set(
                    record, "", json.dumps(self._said(phase, wanted))
                )
            said: dict[str, str] = json.loads(self._store.get(record))
        except RuntimeError as error:
            raise _gone(phase, error) from error
        return said

    def _wait(self, key: str, until_s: float) -> None:
        left_s = max(0.001, until_s - time.monotonic())
        try:
            self._store.wait([key], timedelta(seconds=left_s))
        except RuntimeError:
            # Stores raise errors of different kinds when the time is up. It was not closed: somebody is missing, or the store is gone, as the next
            # call will tell.
            return

    def _said(self, phase: str, names: list[str]) -> dict[str, str]:
        found = {}
        for name in names:
            key = f"{phase}/said/{name}"
            if self._store.check([key]):
                found[name] = self._store.get(key).decode(errors="replace")
        return found


def _gone(phase: str, error: Exception) -> DistributedError:
    message = f"the store where nodes meet has failed in the phase {phase}: {error}"
    return DistributedError(message)
