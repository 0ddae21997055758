"""Writes a file whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_whole(path: str | os.PathLike[str], text: str) -> Path:
    """Writes a file so that whoever reads meanwhile sees the old one or the new one.

    Args:
        path: Where to; missing folders are made.
        text: What it holds afterwards, as UTF-8.

    Returns:
        The path.

    Raises:
        OSError: It cannot be written there; what was there is left as it was.

    Example:
        >>> folder = tempfile.TemporaryDirectory()
        >>> write_whole(f"{folder.name}/notes/a.txt", "text").read_text()
        'text'
        >>> folder.cleanup()
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    part = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        part.chmod(0o644)
        part.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    return target
