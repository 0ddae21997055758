"""The token of a job: whoever knows it may take part."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from drivetrain_core import ProgramError

__all__ = ["make_token", "read_token", "write_token"]

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


def read_token(path: str | os.PathLike[str]) -> str:
    """Returns the token in a file.

    Raises:
        ProgramError: The file is not there, others may read it, or it holds no token.
    """
    place = Path(path)
    try:
        mode, token = place.stat().st_mode, place.read_text().strip()
    except OSError as error:
        message = f"the token of the job cannot be read: {error}"
        raise ProgramError(message) from error
    if mode & 0o077:
        message = f"{place} must be readable by its owner only: chmod 600 {place}"
        raise ProgramError(message)
    if len(token) < _LEAST:
        message = f"{place} must hold a token of at least {_LEAST} characters"
        raise ProgramError(message)
    return token
