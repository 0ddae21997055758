"""A journal in a file of SQLite, for the masters of one machine or of a shared disk."""

from __future__ import annotations

import json
import sqlite3
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_elastic.journal._record import (
    JournalError,
    JournalFullError,
    Record,
    read_each,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

_VERSION = 1
# SQLite's own mark of whose file it is: the letters "DtEl".
_APPLICATION = 0x4474456C
_SCHEMA = """
CREATE TABLE records (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, body TEXT NOT NULL)
    STRICT;
CREATE TABLE claims (incarnation INTEGER NOT NULL) STRICT;
INSERT INTO claims VALUES (0);
"""


class SqliteJournal:
    """Keeps records in a database of SQLite, in its write-ahead mode.

    A process that dies in mid-write loses what `append` had not returned from, and
    nothing else; so does a machine that loses its power.

    Args:
        path: The file; its folder is created when it is missing. Only its owner may read
            it.
        patience_s: How long another process may hold the file.

    Attributes:
        incarnation: How often the journal was claimed.
        name: The file, for people.

    Raises:
        JournalError: The file is no journal, is damaged, or of another version.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     first = SqliteJournal(f"{folder}/job.db")
        ...     first.append([Record("begun", {"at": 1})])
        ...     second = SqliteJournal(f"{folder}/job.db")
        ...     print(second.incarnation, second.records())
        ...     first.close(), second.close()
        2 [Record(kind='begun', body={'at': 1})]
        (None, None)
    """

    def __init__(
        self, path: str | os.PathLike[str], *, patience_s: float = 10.0
    ) -> None:
        """Opens the file and claims it."""
        self._path = Path(path)
        self.name = str(path)
        self.incarnation = 0
        with self._errors():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch(mode=0o600)
            self._database = sqlite3.connect(
                self._path,
                timeout=patience_s,
                isolation_level=None,
                check_same_thread=False,
            )
        try:
            with self._errors():
                self._open()
        except BaseException:
            self._database.close()
            raise

    def _open(self) -> None:
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        with self._transaction():
            (application,) = self._row("PRAGMA application_id")
            (version,) = self._row("PRAGMA user_version")
            (num_tables,) = self._row("SELECT count(*) FROM sqlite_schema")
            if num_tables == 0:
                for statement in _SCHEMA.split(";"):
                    self._database.execute(statement)
                self._database.execute(f"PRAGMA application_id = {_APPLICATION}")
                self._database.execute(f"PRAGMA user_version = {_VERSION}")
            elif application != _APPLICATION:
                message = f"{self._path} is a database of something else"
                raise JournalError(message)
            elif version != _VERSION:
                message = (
                    f"the journal {self._path} has version {version}, this version of "
                    f"Drivetrain reads {_VERSION}"
                )
                raise JournalError(message)
            self._database.execute("UPDATE claims SET incarnation = incarnation + 1")
            (self.incarnation,) = self._row("SELECT incarnation FROM claims")

    def records(self) -> list[Record]:
        """Returns all records, in the order in which they were appended.

        Raises:
            JournalError: The file is damaged.
        """
        with self._errors():
            rows = self._database.execute(
                "SELECT kind, body FROM records ORDER BY number"
            ).fetchall()
        return read_each(
            self.name, lambda row: Record(row[0], json.loads(row[1])), rows
        )

    def append(self, records: Sequence[Record]) -> None:
        """Adds records, all or none; they are durable when this returns.

        Raises:
            JournalError: Another master has claimed the journal, or the file cannot be
                written; nothing was added.
            JournalFullError: The disk is full; nothing was added.
        """
        with self._errors(), self._transaction():
            self._check_claim()
            self._insert(records)

    def replace(self, records: Sequence[Record]) -> None:
        """Puts fewer records in the place of all, to the same effect; all or none.

        Raises:
            JournalError: As for `append`; nothing has changed.
        """
        with self._errors(), self._transaction():
            self._check_claim()
            self._database.execute("DELETE FROM records")
            self._insert(records)

    def close(self) -> None:
        """Lets go of the file."""
        self._database.close()

    def _insert(self, records: Sequence[Record]) -> None:
        self._database.executemany(
            "INSERT INTO records (kind, body) VALUES (?, ?)",
            [(kind, json.dumps(body, separators=(",", ":"))) for kind, body in records],
        )

    def _check_claim(self) -> None:
        (incarnation,) = self._row("SELECT incarnation FROM claims")
        if incarnation != self.incarnation:
            message = (
                f"the journal {self._path} was claimed by master {incarnation}; this is "
                f"master {self.incarnation}"
            )
            raise JournalError(message)

    def _row(self, statement: str) -> tuple[int, ...]:
        for row in self._database.execute(statement):
            found: tuple[int, ...] = row
            return found
        message = f"the journal {self._path} is damaged: it has no claims"
        raise JournalError(message)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            # When the disk is full, SQLite may have rolled back by itself, or not.
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            message = f"the journal {self._path}: {error}"
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                message = f"{message}: make room on its disk"
                raise JournalFullError(message) from error
            raise JournalError(message) from error
