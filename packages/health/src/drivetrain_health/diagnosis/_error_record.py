"""The exception that ends a worker, in a file that outlives it.

The file is JSON and is written at once, or not at all. What is read may come from anybody:
it is limited in size, and what is not a record is none.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from drivetrain_health.diagnosis._read_output import read_end
from drivetrain_health.failures import ErrorRecord

if TYPE_CHECKING:
    from types import TracebackType

_FORMAT = "drivetrain-error"
_MOST_BYTES = 1 << 20
_MOST_TYPE, _MOST_MESSAGE, _MOST_TRACEBACK = 300, 8_000, 64_000


def install_error_record(path: str | Path) -> None:
    """Lets this process write the exception that ends it to a file, and go on as before.

    Args:
        path: The file; its folder has to exist.
    """
    before = sys.excepthook

    def hook(
        kind: type[BaseException],
        error: BaseException,
        where: TracebackType | None,
    ) -> None:
        # A disk that is full must not hide the error that is to be shown.
        with contextlib.suppress(Exception):
            write_error_record(path, error)
        before(kind, error, where)

    sys.excepthook = hook


def write_error_record(path: str | Path, error: BaseException) -> None:
    """Writes an exception to a file, whole or not at all.

    Args:
        path: The file, which is replaced.
        error: The exception.

    Raises:
        OSError: It cannot be written.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_error_record(f"{folder}/error.json", ValueError("no rate"))
        ...     read_error_record(f"{folder}/error.json").message
        'no rate'
    """
    path = Path(path)
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    try:
        message = str(error)
    except Exception as unprintable:  # noqa: BLE001
        # It is the user's own method.
        message = f"<it cannot be printed: {type(unprintable).__name__}>"
    record = {
        "format": _FORMAT,
        "type": name[:_MOST_TYPE],
        "message": _ends_of(message, _MOST_MESSAGE),
        "traceback": _ends_of(
            "".join(traceback.format_exception(error)), _MOST_TRACEBACK
        ),
    }
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        # Lone surrogates, of file names, are escaped.
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            json.dump(record, file)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def read_error_record(path: str | Path | IO[bytes]) -> ErrorRecord | None:
    """Returns the exception that a file tells of; None if it tells of none.

    Besides what `write_error_record` writes, files of torchelastic are understood, which
    a function under its `record` decorator leaves behind.

    Args:
        path: The file. One that is open may be a pipe, and is waited for.
    """
    if isinstance(path, (str, os.PathLike)):
        data, start = read_end(path, _MOST_BYTES)
    else:
        data, start = path.read(_MOST_BYTES), len(path.read(1))
    if start:
        return None  # it is too large
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    if found.get("format") == _FORMAT:
        return _checked(found.get("type"), found.get("message"), found.get("traceback"))
    return _of_torchelastic(found.get("message"))


def _of_torchelastic(said: object) -> ErrorRecord | None:
    """Returns what torchelastic writes: the type and the message are one text."""
    where: object = ""
    if isinstance(said, dict):
        more = said.get("extraInfo")
        where = more.get("py_callstack", "") if isinstance(more, dict) else ""
        said = said.get("message")
    if not isinstance(said, str):
        return None
    name, colon, message = said.partition(":")
    if not colon or not name.replace(".", "").isidentifier():
        name, message = "RuntimeError", said
    return _checked(name, message.strip(), where)


def _checked(name: Any, message: Any, where: Any) -> ErrorRecord | None:
    if not (isinstance(name, str) and isinstance(message, str) and name):
        return None
    return ErrorRecord(
        name[:_MOST_TYPE],
        _ends_of(message, _MOST_MESSAGE),
        _ends_of(where, _MOST_TRACEBACK) if isinstance(where, str) else "",
    )


def _ends_of(text: str, most: int) -> str:
    """Returns a text, of which the middle is left out if it is long."""
    if len(text) <= most:
        return text
    head = most // 4
    return f"{text[:head]}\n  ...\n{text[head - most :]}"
