"""Exit records: how workers have ended, for this master and for the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_elastic.decisions.ending import Results
from drivetrain_elastic.journal import Record

if TYPE_CHECKING:
    from collections.abc import Iterable


class ExitRecords:
    """Keeps what `judge_ending` must know; used from one event loop.

    Places that were given up are not written: agents say so again to each master, and a
    place of a node that is gone is nobody's any more.

    Args:
        records: Takes what is to be written.

    Attributes:
        results: What was found so far.
    """

    def __init__(self, records: list[Record]) -> None:
        self._records = records
        self.results = Results()

    def replay(self, record: Record) -> bool:
        """Takes a record of the journal; returns whether it was one of these."""
        if record.kind == "finished":
            self.results.finished.add(record.body)
        elif record.kind == "failed":
            self.results.failed.append(record.body)
        else:
            return False
        return True

    def dump(self) -> list[Record]:
        """Returns records that take the place of all that were written."""
        return [
            *(Record("finished", name) for name in sorted(self.results.finished)),
            *(Record("failed", what) for what in self.results.failed),
        ]

    def finish(self, name: str) -> bool:
        """Notes a worker that has made all steps; returns whether that is news."""
        if name in self.results.finished:
            return False
        self.results.finished.add(name)
        self._records.append(Record("finished", name))
        return True

    def fail(self, name: str, reason: str) -> None:
        """Notes a worker that has failed; one before any has finished is replaced."""
        what = f"{name} {reason}"
        if self.results.finished and what not in self.results.failed:
            self.results.failed.append(what)
            self._records.append(Record("failed", what))

    def miss(self, names: Iterable[str], why: str) -> None:
        """Notes workers of the world that are gone without a word.

        Once some have finished, nobody takes their place: what they were still to do, such
        as a last checkpoint, is not known to be done.
        """
        for name in names:
            if name not in self.results.finished:
                self.fail(name, why)

    def give_up(self, name: str, reason: str) -> bool:
        """Notes a place that stays empty; returns whether that is news."""
        what = f"{name} {reason}"
        if what in self.results.given_up:
            return False
        self.results.given_up.append(what)
        return True
