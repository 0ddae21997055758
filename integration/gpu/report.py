"""The report: a file that is whole after every row, and a table to look at."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Report", "line", "table"]

VERSION = 2
# A row of these statuses was measured, and need not be again.
MEASURED = frozenset({"pass", "miss", "skip"})
# A row is printed when it has ended, before the others' widths are known.
_WIDTHS = (24, 32, 50, 26)


class Report:
    """The rows of a run, on disk as soon as they are known.

    Args:
        path: The file.
        head: What the rows depend on: hardware, versions, commit, date.
        wanted: The names of all rows, in order.
    """

    def __init__(
        self, path: Path, head: Mapping[str, Any], wanted: Sequence[str]
    ) -> None:
        self._path, self._head, self._wanted = path, dict(head), list(wanted)
        self._rows: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def resume(self) -> set[str]:
        """Takes over what a report of the same commit and hardware has measured.

        Returns:
            The names of the rows that need not be run again.

        Raises:
            ValueError: The file is of another commit, of other hardware, or no report.
        """
        if not self._path.exists():
            return set()
        try:
            found = json.loads(self._path.read_text())
            rows = {row["name"]: row for row in found["rows"]}
        except (ValueError, KeyError, TypeError) as error:
            message = f"{self._path} is no report that can be resumed: {error!r}"
            raise ValueError(message) from None
        for key, of in (("commit", found), ("gpus", found.get("hardware", {}))):
            mine = self._head if key == "commit" else self._head["hardware"]
            if of.get(key) != mine[key]:
                message = f"{self._path} is of other {key}; give another --out"
                raise ValueError(message)
        kept = {n: r for n, r in rows.items() if r["status"] in MEASURED}
        self._rows.update(kept)
        return set(kept)

    def put(self, row: Mapping[str, Any]) -> None:
        """Adds a row, and replaces the file."""
        with self._lock:
            self._rows[row["name"]] = dict(row)
            self._write()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows, in the order in which they were asked for, after what was not."""
        first = [n for n in self._rows if n not in self._wanted]
        names = first + [n for n in self._wanted if n in self._rows]
        return [self._rows[name] for name in names]

    @property
    def ok(self) -> bool:
        """Whether all that was asked for was run, and nothing was missed."""
        found = [self._rows.get(name, {}).get("status") for name in self._wanted]
        return all(status in {"pass", "skip"} for status in found)

    def _write(self) -> None:
        missing = [
            name
            for name in self._wanted
            if self._rows.get(name, {}).get("status") not in MEASURED
        ]
        content = {"drivetrain_gpu": VERSION, **self._head, "ok": self.ok}
        content |= {"missing": missing, "rows": self.rows}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_name(f"{self._path.name}.part")
        part.write_text(json.dumps(content, indent=2) + "\n")
        os.replace(part, self._path)  # noqa: PTH105


def lines(row: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Returns a row as cells, with a line for each bar and each failed test of it."""
    seconds = f"{row.get('seconds', 0):.0f} s"
    found = [(row["name"], "", str(row["figure"]), seconds, row["status"])]
    keys = ("name", "figure", "bound", "status")
    for bar in row.get("bars", []):
        found.append(("", *(str(bar.get(key) or "-") for key in keys)))
    for failure in row.get("tests", {}).get("failures", []):
        first = failure["message"].split("\n", 1)[0][:100]
        found.append(("", failure["test"].rsplit("::", 1)[-1], first, "", "miss"))
    return found


def line(row: Mapping[str, Any]) -> str:
    """Returns one row as text, to be printed when it has ended."""
    return table([row], head=False)


def table(rows: Iterable[Mapping[str, Any]], *, head: bool = True) -> str:
    """Returns rows as aligned text, with a verdict on each line."""
    cells = [("row", "what", "figure", "bound or time", "status")] if head else []
    cells += [one for row in rows for one in lines(row)]
    padded = [
        [cell.ljust(width) for cell, width in zip(one, (*_WIDTHS, 0), strict=True)]
        for one in cells
    ]
    return "\n".join("  ".join(one).rstrip() for one in padded)
