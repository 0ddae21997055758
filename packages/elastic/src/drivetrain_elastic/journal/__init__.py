"""What the master must not forget, kept where a crash does not reach it.

A journal is a list of records to which only the master appends that claimed it last. Where
several masters stand ready, a lease says which of them may claim it.
"""

from __future__ import annotations

from drivetrain_elastic.journal._lease import Lease
from drivetrain_elastic.journal._record import (
    Journal,
    JournalError,
    JournalFullError,
    Record,
)
from drivetrain_elastic.journal._redis import RedisJournal
from drivetrain_elastic.journal._redis_lease import RedisLease
from drivetrain_elastic.journal._sqlite import SqliteJournal

__all__ = [
    "Journal",
    "JournalError",
    "JournalFullError",
    "Lease",
    "Record",
    "RedisJournal",
    "RedisLease",
    "SqliteJournal",
]
