"""Opens what names a journal: a file, or a URL of a Redis server."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_core import ProgramError
from drivetrain_elastic.journal._record import JournalError
from drivetrain_elastic.journal._redis import RedisJournal
from drivetrain_elastic.journal._redis_lease import RedisLease
from drivetrain_elastic.journal._redis_url import is_redis_url
from drivetrain_elastic.journal._sqlite import SqliteJournal

if TYPE_CHECKING:
    from drivetrain_elastic.journal._lease import Lease
    from drivetrain_elastic.journal._record import Journal


def check_journal(place: str) -> None:
    """Refuses a file in a folder that is missing: a name that is mistyped is no new job.

    Args:
        place: A file, or a URL.

    Raises:
        JournalError: There is no such folder.
    """
    folder = Path(place).absolute().parent
    if "://" not in place and not folder.is_dir():
        message = f"the journal {place} has no place: there is no folder {folder}"
        raise JournalError(message)


def lease_of(
    place: str | PathLike[str], *, token: str | None = None
) -> RedisLease | None:
    """Returns the lease that a master of a journal must have, not yet acquired.

    Args:
        place: A file, for which there is none; or a URL.
        token: Of the job, which all masters must have.

    Raises:
        ProgramError: It is a URL of something else.
    """
    if not isinstance(place, str) or "://" not in place:
        return None
    if is_redis_url(place):
        return RedisLease(place, token=token)
    scheme = place.partition("://")[0]
    message = (
        f"a journal is a file, or a URL of redis://, rediss:// or unix://, got one of "
        f"{scheme}://"
    )
    raise ProgramError(message)


def open_journal(
    journal: str | PathLike[str] | Journal,
    lease: Lease | None = None,
    *,
    token: str | None = None,
) -> tuple[Journal, Lease | None]:
    """Opens and claims a journal, once its lease is this process's.

    Args:
        journal: A file, a URL, or a journal that is open.
        lease: Of the journal, if it was acquired already.
        token: Of the job, which all masters must have.

    Returns:
        The journal, and the lease that must be kept, if there is one.

    Raises:
        JournalError: The journal cannot be used.
        ProgramError: It is a URL of something else, or another master has another token.
    """
    if not isinstance(journal, str | PathLike):
        return journal, lease
    own = lease_of(journal, token=token)
    if own is None:
        return SqliteJournal(journal), lease
    if lease is None:
        lease = own
        own.acquire()
    try:
        return RedisJournal(str(journal), lease=lease), lease
    except BaseException:
        lease.release()
        raise
