"""Reads a file of a table: a CSV with a header, in which people may write notes."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from drivetrain_core import ProgramError


def read_text(path: Path, error: type[ProgramError]) -> str:
    """Returns the text of a file, without the mark that spreadsheets put before it.

    Args:
        path: Where it lies.
        error: Raised where it is no text.

    Raises:
        OSError: It cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        message = f"{path}: expected text, got something else"
        raise error(message) from None


def read_rows(
    text: str, where: str, columns: Sequence[str], error: type[ProgramError]
) -> list[tuple[str, list[str]]]:
    r"""Returns the cells of each row below the header, and where the row stands.

    Args:
        text: What is in the file; lines that begin with # are for people.
        where: The file, as messages name it.
        columns: What the header must say.
        error: Raised where it does not, or where a line is no row.

    Example:
        >>> read_rows("# mine\na, b\n1, 2\n", "file", ["a", "b"], ValueError)
        [('file:3', ['1', '2'])]
    """
    rows = [
        (f"{where}:{number}", _cells(line, f"{where}:{number}", error))
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    at, header = rows[0] if rows else (where, ["nothing"])
    if header != list(columns):
        message = (
            f"{at}: expected the columns {', '.join(columns)}, got {', '.join(header)}"
        )
        raise error(message)
    return rows[1:]


def _cells(line: str, at: str, kind: type[ProgramError]) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], strict=True))]
    except csv.Error as error:
        message = f"{at}: {error}"
        raise kind(message) from None
