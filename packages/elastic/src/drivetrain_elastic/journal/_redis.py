"""A journal in a Redis server, for masters on several machines."""

from __future__ import annotations

import json
import logging
import secrets
from typing import TYPE_CHECKING, Any

from drivetrain_elastic.journal._record import JournalError, Record, read_each
from drivetrain_elastic.journal._redis_link import AwayError, RedisLink
from drivetrain_elastic.journal._redis_scripts import CLAIM, READ, WRITE
from drivetrain_elastic.journal._redis_url import read_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_elastic.journal._lease import Lease

logger = logging.getLogger(__name__)

_VERSION = "1"
_LONGEST_REPLY_S = 5.0
_PAGE = 5000


class RedisJournal:
    """Keeps records in a list of a Redis server; each write is one script.

    What `append` returned from is as durable as the server makes it:

    - `appendonly yes` with `appendfsync always`: it is on the server's disk.
    - `appendfsync everysec`: a machine that loses its power may lose the last second. A
      server that is only killed loses nothing.
    - `appendonly no`: it is gone when the server ends.
    - Replicas get it a moment later. With `num_replicas` the journal waits for them; which
      of them is promoted when the server is gone is up to whoever promotes it.

    When the server has lost records that this master had written, the journal notices it
    with the next write, and refuses that and all others. The next master goes on from what
    is left.

    Args:
        url: Of the server, and the job on it: `redis://host:port/number?job=name`, also
            `rediss://` and `unix://`. Other arguments may stand behind the job:
            `&patience_s=20`. The rest of the query is redis-py's.
        job: The name of the job, of letters, digits and `. _ -`.
        lease: The journal is claimed only if this lease, of the same job, stands.
        patience_s: How long a server that is away is tried again; 10 by default. A write
            whose reply was lost is not done twice.
        num_replicas: How many replicas must have a record before `append` returns.

    Attributes:
        incarnation: How often the journal was claimed.
        name: The server and the job, for people.

    Raises:
        JournalError: The server is away, refuses this user, or has no such journal.
        MissingLibraryError: redis-py is not installed.
        ProgramError: The URL or an option is not valid.

    Example:
        >>> journal = RedisJournal("redis://127.0.0.1/0?job=train")  # doctest: +SKIP
        >>> journal.append([Record("begun", {"at": 1})])  # doctest: +SKIP
    """

    def __init__(
        self,
        url: str,
        *,
        job: str | None = None,
        lease: Lease | None = None,
        patience_s: float | None = None,
        num_replicas: int | None = None,
    ) -> None:
        """Connects to the server and claims the journal."""
        place = read_url(url, job=job, patience_s=patience_s, num_replicas=num_replicas)
        self.name = f"{place.name}, job {place.job!r}"
        self._num_replicas = place.num_replicas
        self._link = RedisLink(
            place, reply_s=min(max(place.patience_s, 0.1), _LONGEST_REPLY_S)
        )
        self._end = ""
        self.incarnation = 0
        self._num_calls = self._num_records = 0
        try:
            self._look_at_settings()
            holder = lease.holder if lease else ""
            self.incarnation, self._num_records = self._run(
                CLAIM,
                _VERSION,
                secrets.token_hex(16),
                holder,
                num_replicas=self._num_replicas,
            )
        except BaseException:
            self._link.close()
            raise

    def records(self) -> list[Record]:
        """Returns all records, in the order in which they were appended.

        Raises:
            JournalError: A record is damaged, the server is away, or another master has
                claimed the journal.
        """
        lines: list[bytes] = []
        while True:
            (page,) = self._run(
                READ, self.incarnation, len(lines), len(lines) + _PAGE - 1
            )
            lines += page
            if len(page) < _PAGE:
                break
        return read_each(self.name, lambda line: Record(*json.loads(line)), lines)

    def append(self, records: Sequence[Record]) -> None:
        """Adds records, all or none; they are durable when this returns.

        Raises:
            JournalError: Another master has claimed the journal, or the server has lost
                records; nothing was added. Or the server is away: then it is not known
                whether they were added, and the journal takes no more.
        """
        self._write("append", records)

    def replace(self, records: Sequence[Record]) -> None:
        """Puts fewer records in the place of all, to the same effect; all or none.

        Raises:
            JournalError: As for `append`.
        """
        self._write("replace", records)

    def close(self) -> None:
        """Lets go of the server."""
        self._link.close()

    def _write(self, how: str, records: Sequence[Record]) -> None:
        lines = [json.dumps(record, separators=(",", ":")) for record in records]
        if self._end:
            raise JournalError(self._end)
        self._num_calls += 1
        try:
            (self._num_records,) = self._run(
                WRITE,
                self.incarnation,
                self._num_calls,
                self._num_records,
                how,
                *lines,
                num_replicas=self._num_replicas,
            )
        except AwayError as error:
            self._end = (
                f"{error}; what was written last may be in the journal or not, so that "
                "it must be opened again"
            )
            raise JournalError(self._end) from error

    def _run(self, script: str, *arguments: str | int, num_replicas: int = 0) -> Any:
        """Runs a script, and returns what it says if it has done its work."""
        word, *values = self._link.run(script, *arguments, num_replicas=num_replicas)
        if word == b"done":
            return values
        raise JournalError(self._refusal(word.decode(), values[0]))

    def _refusal(self, word: str, value: Any) -> str:
        if isinstance(value, bytes):
            value = value.decode()
        if word == "claimed" and value == "0":
            return f"the journal {self.name} is gone: the server has lost its data"
        if word == "claimed":
            return (
                f"the journal {self.name} was claimed by master {value}; this is "
                f"master {self.incarnation}"
            )
        if word == "lost":
            return (
                f"the journal {self.name} has {value} records, and this master left "
                f"{self._num_records}: the server has lost some, or another program "
                "wrote there. `appendonly yes` and `appendfsync always` keep them"
            )
        if word == "lease":
            return f"the lease of {self.name} has ended before the journal was claimed"
        return (
            f"the journal {self.name} has version {value}, this version of Drivetrain "
            f"reads {_VERSION}"
        )

    def _look_at_settings(self) -> None:
        """Warns if the server does not keep what it is told."""
        names = ("appendonly", "appendfsync", "maxmemory-policy", "maxmemory")
        found = {name: self._link.setting(name) for name in names}
        level, says = logging.WARNING, ""
        if found["appendonly"] is None:
            says = (
                "does not tell its settings: whether its `appendonly` is on, so that the "
                "journal outlives it, could not be checked"
            )
        elif found["appendonly"] == "no":
            says = "loses the journal when it ends: its `appendonly` is off"
        elif found["appendfsync"] != "always":
            level, policy = logging.INFO, found["appendfsync"]
            says = (
                f"may lose its last words with its power: its `appendfsync` is {policy}"
            )
        if says:
            logger.log(level, "%s %s", self.name, says)
        policy = found["maxmemory-policy"] or ""
        if policy.startswith("allkeys") and found["maxmemory"] != "0":
            says = "may throw the journal away when it is short of memory: its"
            logger.warning("%s %s `maxmemory-policy` is %s", self.name, says, policy)
