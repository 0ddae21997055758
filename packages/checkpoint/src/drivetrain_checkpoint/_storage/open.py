"""Paths and URLs of storages, and how they are resolved and opened."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._errors import StorageError
from drivetrain_checkpoint._storage.posix import PosixStorage
from drivetrain_checkpoint._storage.protocol import as_storage_error, parse_name
from drivetrain_checkpoint._storage.remote import RemoteStorage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_checkpoint._storage.protocol import Storage

_UNFINISHED = ".unfinished"
_MOST_NAME_BYTES = 255
_MOST_PATH_BYTES = 4095 - 64  # what is left is for the files of a checkpoint


def resolve(place: str | os.PathLike[str]) -> str:
    """Returns a place as it is called from any folder and any process.

    Raises:
        StorageError: It is a path that is longer than Linux takes, or leads nowhere.
        ValueError: It is empty, or an URL of nothing.

    Example:
        >>> resolve("s3://bucket/run/"), resolve("file:///run")
        ('s3://bucket/run', '/run')
    """
    text = os.fspath(place)
    if not text:
        message = "the name of a folder is empty; the current folder is '.'"
        raise ValueError(message)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if "://" in text:
        if not text.partition("://")[2].strip("/"):
            message = f"{text} names no place"
            raise ValueError(message)
        return text.rstrip("/")
    # Python raises RuntimeError for a user that is not known and for links in a circle.
    with as_storage_error("find", text, errors=(OSError, RuntimeError)):
        return _checked(str(Path(text).expanduser().resolve()))


def child_url(url: str, under: str) -> str:
    """Returns the place of a folder in another.

    Args:
        url: The place of the outer folder, as `resolve` gave it.
        under: The name of the inner one; "" is the outer folder itself.

    Raises:
        StorageError: It is longer than Linux takes.
        ValueError: It is no name.

    Example:
        >>> child_url("s3://bucket/run", "best.ckpt"), child_url("/run", "")
        ('s3://bucket/run/best.ckpt', '/run')
    """
    if "/" in under or under in {".", "..", _UNFINISHED} or parse_name(under):
        message = (
            f"under must be the name of one folder, and none of a save's, got {under!r}"
        )
        raise ValueError(message)
    found = f"{url}/{under}" if under else url
    return found if "://" in url else _checked(found)


def open_storage(
    url: str, options: Mapping[str, Any] | None = None, under: str = ""
) -> Storage:
    """Returns the storage behind a path or an URL, as `resolve` gave it.

    Args:
        url: The place.
        options: For URLs, what fsspec is to know.
        under: A folder in it, to be written to; see `child_url`.

    Raises:
        StorageError: What is needed for this kind of URL is not installed.
    """
    place = child_url(url, under)
    if "://" in url:
        return RemoteStorage(place, options)
    return PosixStorage(Path(place), Path(url, _UNFINISHED) if under else None)


def open_parent(
    url: str, options: Mapping[str, Any] | None = None
) -> tuple[Storage, str]:
    """Returns the storage that a checkpoint's folder is in, and its name there."""
    parent, _, name = url.rpartition("/")
    return open_storage(parent or "/", options), name


def _checked(path: str) -> str:
    """Returns a path, if it is not longer than Linux takes."""
    longest = max(path.split("/"), key=lambda name: len(os.fsencode(name)))
    for what, text, most in (
        ("a name in the path", longest, _MOST_NAME_BYTES),
        ("the path", path, _MOST_PATH_BYTES),
    ):
        size = len(os.fsencode(text))
        if size > most:
            message = (
                f"{what} is {size:,} bytes long, and {most:,} are possible; take a "
                f"shorter one than {text[:40]}...{text[-20:]}"
            )
            raise StorageError(message)
    return path
