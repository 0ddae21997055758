"""Contracts of a journal, and of the lease on it."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

from drivetrain_elastic.journal import JournalError, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drivetrain_elastic.journal import Journal, Lease

# More than any implementation reads or writes at once.
_MANY = 12_345


def check_journal(open_journal: Callable[[], Journal]) -> None:
    """Checks that a journal keeps what it is told, of one master at a time.

    Args:
        open_journal: Opens and claims the same journal, again and again. It is empty and
            was never claimed at first.

    Raises:
        AssertionError: It does not; the message says how.

    Example:
        >>> import tempfile
        >>> from drivetrain_elastic.journal import SqliteJournal
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     check_journal(lambda: SqliteJournal(f"{folder}/job.db"))
    """
    with ExitStack() as stack:

        def opened() -> Journal:
            return stack.enter_context(closing(open_journal()))

        first = opened()
        _require(first.incarnation == 1, "the first claim has number 1")
        _require(first.records() == [], "a new journal is empty")
        first.append(_some(3))
        first.append([])
        first.append(_some(5, start=3))
        _require(first.records() == _some(5), "records come back as they were appended")
        _check_all_or_none(first)

        second = opened()
        _require(second.incarnation == 2, "each claim has the next number")
        _require(second.records() == _some(5), "the next master finds all records")
        for write in (first.append, first.replace):
            for records in (_some(6, start=5), []):
                with _refused("a master that was replaced writes nothing"):
                    write(records)
        _require(second.records() == _some(5), "a refused write has changed nothing")
        second.append(_some(6, start=5))
        _require(second.records() == _some(6), "the master that claimed it last writes")

        second.append(_some(_MANY, start=6))
        _require(second.records() == _some(_MANY), "a journal may be long")
        second.replace(_some(_MANY - 1))
        _require(second.records() == _some(_MANY - 1), "it may be replaced by as many")
        second.replace(_some(2))
        _require(second.records() == _some(2), "it is replaced whole")
        second.append(_some(3, start=2))
        second.close()
        third = opened()
        _require(third.records() == _some(3), "what was replaced stays away")
        third.replace([])
        third.append(_some(1))
        _require(third.records() == _some(1), "it may be replaced by nothing")


def check_lease(make_lease: Callable[[], Lease]) -> None:
    """Checks that a lease is one candidate's at a time, and comes to the next.

    Args:
        make_lease: Makes another candidate for the same lease, which lasts for 5 seconds
            at the most. Nobody has it at first.

    Raises:
        AssertionError: It is not; the message says how.
    """
    with ExitStack() as stack:

        def candidate() -> Lease:
            lease = make_lease()
            stack.callback(lease.release)
            return lease

        first, second, third = candidate(), candidate(), candidate()
        _require(first.holder != second.holder, "each candidate has a word of its own")
        _require(not first.renew(), "what nobody has cannot be renewed")
        _require(first.acquire(0.0), "a lease that nobody has is free")
        _require(first.acquire(0.0), "who has it may acquire it again")
        _require(first.renew("host:1"), "who has it may renew it")
        _require(not second.acquire(0.0), "it is one candidate's only")
        _require(second.served_at == "host:1", "others learn where its holder serves")
        _require(not second.renew("host:2"), "only who has it renews it")
        second.release()
        _require(first.renew("host:1"), "only who has it releases it")
        first.release()
        _require(second.acquire(0.0), "what was released is free at once")
        _require(not first.renew("host:1"), "what was released is not renewed")
        # It is not renewed any more, as if its holder had died.
        began_s = time.monotonic()
        _require(third.acquire(60.0), "what is not renewed ends")
        took_s = time.monotonic() - began_s
        _require(took_s > second.lease_s / 2, "what is not renewed does not end early")
        _require(not second.renew("host:2"), "what another has is lost")
        _require(not second.acquire(0.0), "what was lost is another's")


def _check_all_or_none(journal: Journal) -> None:
    before = journal.records()
    for write in (journal.append, journal.replace):
        try:
            write([*_some(2), Record("bad", object())])
        except TypeError:
            pass
        else:
            _require(False, "what is not JSON is a TypeError")
    _require(journal.records() == before, "all records are added, or none")
    journal.append([])


def _some(num: int, start: int = 0) -> list[Record]:
    return [Record("number", {"n": n, "text": "ü€\n\0"}) for n in range(start, num)]


def _require(condition: object, clause: str) -> None:
    if not condition:
        message = f"broken clause: {clause}"
        raise AssertionError(message)


@contextmanager
def _refused(clause: str) -> Iterator[None]:
    try:
        yield
    except JournalError:
        return
    message = f"broken clause: {clause}"
    raise AssertionError(message)
