"""A lease that a Redis server gives, and ends by its own clock."""

from __future__ import annotations

import hashlib
import logging
import secrets
import time

from drivetrain_core import ProgramError
from drivetrain_elastic.journal._record import JournalError
from drivetrain_elastic.journal._redis_link import AwayError, RedisLink
from drivetrain_elastic.journal._redis_scripts import RELEASE, RENEW, TAKE
from drivetrain_elastic.journal._redis_url import read_url

logger = logging.getLogger(__name__)

# How often those who wait look whether it is free.
_LOOK_S = 0.2
# A connection may have died long ago, which only its next use shows: that is made twice.
_AGAIN_S = 0.05


class RedisLease:
    """The right to serve a job, kept in a Redis server beside the job's journal.

    A master renews it while it serves. When it dies, the server forgets it after `lease_s`,
    and the next candidate has it; when it stops, it releases it.

    Args:
        url: As for `RedisJournal`; `&lease_s=2` may stand behind the job.
        job: The name of the job.
        lease_s: How long it lasts when it is not renewed, which is how long a job may have
            no master after one has died; 5 by default. A server that is away for longer
            ends a master's service.
        patience_s: How long a server that is away is tried again by those who wait.
        token: Of the job: who has another one does not wait for the lease, but raises.

    Attributes:
        holder: A word of this object's own.
        lease_s: How long it lasts.
        served_at: Where the master serves that has the lease, when that is another one.
        is_away: Whether the server did not answer when it was asked last.

    Raises:
        MissingLibraryError: redis-py is not installed.
        ProgramError: The URL or an option is not valid.

    Example:
        >>> lease = RedisLease("redis://127.0.0.1/0?job=train")  # doctest: +SKIP
        >>> lease.acquire(timeout_s=60)  # doctest: +SKIP
        True
    """

    def __init__(
        self,
        url: str,
        *,
        job: str | None = None,
        lease_s: float | None = None,
        patience_s: float | None = None,
        token: str | None = None,
    ) -> None:
        """Connects to nothing yet."""
        place = read_url(url, job=job, lease_s=lease_s, patience_s=patience_s)
        self.holder = secrets.token_hex(16)
        self.lease_s = place.lease_s
        self.served_at = ""
        self._mark = "" if token is None else _mark(token)
        self._name = f"{place.name}, job {place.job!r}"
        self._milliseconds = int(place.lease_s * 1000)
        self._patience_s = place.patience_s
        self._away_s: float | None = None
        # An answer that comes later is of no use.
        self._link = RedisLink(place, reply_s=place.lease_s / 3)

    @property
    def is_away(self) -> bool:
        """Whether the server did not answer when it was asked last."""
        return self._away_s is not None

    def acquire(self, timeout_s: float | None = None) -> bool:
        """Waits for the lease; returns whether it was got in time.

        Raises:
            JournalError: The server refuses this user, or was away for too long.
            ProgramError: The master that has it has another token.
        """
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            pause_s = self._take()
            if pause_s is None:
                self.served_at = ""
                return True
            if end_s is not None:
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    return False
                pause_s = min(pause_s, left_s)
            time.sleep(pause_s)

    def renew(self, address: str = "") -> bool:
        """Has it last for another `lease_s`; returns whether it was still this one's.

        Raises:
            JournalError: The server does not answer now.
        """
        (word,) = self._link.run(
            *(RENEW, self.holder, self._milliseconds, address, self._mark),
            patience_s=_AGAIN_S,
        )
        return bool(word == b"done")

    def release(self) -> None:
        """Lets go of it, so that the next candidate need not wait for its end."""
        try:
            self._link.run(RELEASE, self.holder, patience_s=_AGAIN_S)
        except JournalError as error:
            logger.warning("the lease of %s ends by itself: %s", self._name, error)
        self._link.close()

    def _take(self) -> float | None:
        """Returns None if the lease is this one's, or how long to wait."""
        try:
            word, address, left_ms, mark = self._link.run(
                *(TAKE, self.holder, self._milliseconds, self._mark),
                patience_s=_AGAIN_S,
            )
        except AwayError:
            now_s = time.monotonic()
            if self._away_s is None:
                self._away_s = now_s
            if now_s - self._away_s >= self._patience_s:
                raise
            return _LOOK_S
        self._away_s = None
        if word == b"done":
            return None
        self.served_at = address.decode()
        if self._mark and mark and mark.decode() != self._mark:
            where = f" at {self.served_at}" if self.served_at else ""
            message = (
                f"the master that serves {self._name}{where} has another token than this "
                "one: all masters of a job need the same, so copy its token file here"
            )
            raise ProgramError(message)
        return min(_LOOK_S, max(int(left_ms), 0) / 1000 + 0.001)


def _mark(token: str) -> str:
    """Returns what tells two tokens apart, and no token to whoever reads it."""
    return hashlib.sha256(f"drivetrain-elastic lease {token}".encode()).hexdigest()
