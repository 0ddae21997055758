"""Token of a job: a process that has it may take part."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from drivetrain_core import ProgramError
from drivetrain_core.commands import reason_of

_LEAST = 16


def make_token() -> str:
    """Returns a new token, which nobody guesses."""
    return secrets.token_urlsafe(32)


def write_token(path: str | os.PathLike[str], token: str) -> None:
    """Writes a token to a file that only its owner may read."""
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token)


def check_token(token: str, origin: str) -> str:
    """Returns a token that a call can carry.

    Args:
        token: The token.
        origin: Where it comes from, for people.

    Raises:
        ProgramError: It has characters that are not printable ASCII.
    """
    if not token.isascii() or not token.isprintable():
        message = (
            f"the token of the job in {origin} is no plain text: it must be of printable "
            "ASCII characters"
        )
        raise ProgramError(message)
    return token


def read_token(path: str | os.PathLike[str]) -> str:
    """Returns the token in a file.

    Raises:
        ProgramError: The file is not there, others may read it, or it holds no token.
    """
    place = Path(path)
    try:
        # Whatever is no text has characters that are no token's.
        mode, token = place.stat().st_mode, place.read_text("latin-1").strip()
    except OSError as error:
        message = f"the token of the job cannot be read: {place}: {reason_of(error)}"
        raise ProgramError(message) from error
    if mode & 0o077:
        message = f"{place} must be readable by its owner only: chmod 600 {place}"
        raise ProgramError(message)
    if len(token) < _LEAST:
        message = f"{place} must hold a token of at least {_LEAST} characters"
        raise ProgramError(message)
    return check_token(token, str(place))
