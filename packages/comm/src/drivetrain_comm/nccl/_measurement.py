"""What a benchmark measured, and the files that it comes in."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_comm.nccl._errors import NcclTableError
from drivetrain_comm.nccl._rule import (
    ALGORITHMS,
    COLLECTIVES,
    MOST_BYTES,
    PROTOCOLS,
    channels_refusal,
    wanted_name,
)
from drivetrain_core.commands import reason_of
from drivetrain_core.strict_json import unique_keys

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

_DEFAULT = "default"
_NUMBERS = ("ranks", "nodes", "size_bytes")
_MOST_SHOWN = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """How long a collective of one size took with one choice.

    Args:
        collective: One of `COLLECTIVES`.
        ranks: How many took part.
        nodes: On how many nodes they were.
        size_bytes: Of the whole: what an all-gather returns, a reduce-scatter takes.
        algorithm: One of `ALGORITHMS`; None where NCCL chose.
        protocol: One of `PROTOCOLS`; None where NCCL chose.
        channels: How many were asked for; None where NCCL chose.
        time_us: The time, in microseconds.
        where: The file and the line that say so, for messages; empty if none does.

    Raises:
        NcclTableError: A value is out of range.

    Example:
        >>> Measurement(collective="all_reduce", ranks=8, nodes=1, size_bytes=1024,
        ...     algorithm="ring", protocol="ll", time_us=12.5).choice
        ('ring', 'll', None)
    """

    collective: str
    ranks: int
    nodes: int
    size_bytes: int
    algorithm: str | None = None
    protocol: str | None = None
    channels: int | None = None
    time_us: float
    where: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        """Checks the values."""
        _check_name("collective", self.collective, COLLECTIVES)
        if (self.algorithm is None) != (self.protocol is None):
            message = (
                "the algorithm and the protocol must both be named, or both be "
                f"{_DEFAULT}, got {self.algorithm} and {self.protocol}"
            )
            raise NcclTableError(message)
        if self.algorithm is not None and self.protocol is not None:
            _check_name("algorithm", self.algorithm, ALGORITHMS)
            _check_name("protocol", self.protocol, PROTOCOLS)
        for name, most in (
            ("ranks", 2**31 - 1),
            ("nodes", self.ranks),
            ("size_bytes", MOST_BYTES - 1),
        ):
            if not 1 <= getattr(self, name) <= most:
                message = f"{name} must be 1 to {most}, got {getattr(self, name)}"
                raise NcclTableError(message)
        if self.channels is not None and not 1 <= self.channels <= 64:
            message = f"channels must be 1 to 64, got {self.channels}"
            raise NcclTableError(message)
        wrong = channels_refusal(self.algorithm or "", self.nodes)
        if self.channels is not None and wrong is not None:
            raise NcclTableError(wrong)
        # A whole number may be larger than any float.
        if not 0 < self.time_us <= sys.float_info.max:
            message = f"time_us must be more than 0 and finite, got {self.time_us}"
            raise NcclTableError(message)

    @property
    def choice(self) -> tuple[str, str, int | None] | None:
        """Algorithm, protocol and channels, or None where NCCL chose all of them."""
        if self.algorithm is None or self.protocol is None:
            return None
        return self.algorithm, self.protocol, self.channels


_COLUMNS = tuple(one.name for one in fields(Measurement) if one.name != "where")


def load_measurements(path: str | os.PathLike[str]) -> list[Measurement]:
    """Returns what a file holds; see `parse_measurements`.

    Args:
        path: The file.

    Raises:
        NcclTableError: It cannot be read or understood; the message says where.
    """
    try:
        # Spreadsheets begin their CSV with a byte order mark.
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        message = f"{path}: it cannot be read: {reason_of(error)}"
        raise NcclTableError(message) from error
    return parse_measurements(text, str(path))


def parse_measurements(text: str, source: str = "results") -> list[Measurement]:
    """Returns the measurements in a text: CSV, JSON, or the output of nccl-tests.

    CSV has the fields of `Measurement` as its columns, and JSON is a list of objects with
    them; `default` in `algorithm` and `protocol`, or nothing in `channels`, stands for
    NCCL's own choice. The output of nccl-tests needs a line in front of it that says
    what it is of, such as `# drivetrain collective=all_reduce ranks=8 nodes=1
    algorithm=ring protocol=ll`; the times are those out of place, in the first column
    that its header calls `time`.

    Args:
        text: The text of a file.
        source: What to call it in errors.

    Raises:
        NcclTableError: It is none of these; the message says where.

    Example:
        >>> rows = '''collective,ranks,nodes,size_bytes,algorithm,protocol,channels,time_us
        ... all_reduce,8,1,1024,default,default,,20
        ... all_reduce,8,1,1024,ring,ll,4,12.5'''
        >>> [(one.choice, one.time_us) for one in parse_measurements(rows)]
        [(None, 20.0), (('ring', 'll', 4), 12.5)]
    """
    text = text.removeprefix("\ufeff")
    start = text.lstrip()[:1]
    if start in {"[", "{"}:
        rows = _json_rows(text, source)
    elif start == "#":
        rows = _nccl_tests_rows(text, source)
    else:
        rows = _csv_rows(text, source)
    found = [_measurement(row, where) for where, row in rows]
    if not found:
        message = f"{source}: it holds no measurement"
        raise NcclTableError(message)
    return found


def _csv_rows(text: str, source: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    rows = _csv_lines(text, source)
    _, columns = next(rows, ("", []))
    if sorted(columns) != sorted(_COLUMNS):
        message = (
            f"{source}:1: the columns must be {','.join(_COLUMNS)}, got "
            f"{_cut(','.join(columns)) or 'nothing'}"
        )
        raise NcclTableError(message)
    for where, values in rows:
        if not values:
            continue
        if len(values) != len(columns):
            message = f"{where}: a row has {len(columns)} values, got {len(values)}"
            raise NcclTableError(message)
        yield where, dict(zip(columns, values, strict=True))


def _csv_lines(text: str, source: str) -> Iterator[tuple[str, Sequence[str]]]:
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        for values in reader:
            yield f"{source}:{reader.line_num}", values
    except csv.Error as error:
        message = f"{source}:{reader.line_num}: it is no CSV: {error}"
        raise NcclTableError(message) from error


def _json_rows(text: str, source: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        rows = json.loads(text, object_pairs_hook=unique_keys)
    # A number of very many digits is a ValueError too.
    except (ValueError, RecursionError) as error:
        message = f"{source}: it is no JSON: {error}"
        raise NcclTableError(message) from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        message = f"{source}: it must be a list of objects"
        raise NcclTableError(message)
    for at, row in enumerate(rows):
        where = f"{source}: row {at}"
        unknown, missing = (
            sorted(row.keys() - set(_COLUMNS)),
            set(_COLUMNS) - row.keys(),
        )
        if unknown or missing - {"algorithm", "protocol", "channels"}:
            message = (
                f"{where}: its keys must be {', '.join(_COLUMNS)}, got "
                f"{_cut(', '.join(row)) or 'none'}"
            )
            raise NcclTableError(message)
        yield where, row


def _nccl_tests_rows(text: str, source: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    about: dict[str, str] = {}
    columns: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{source}:{number}"
        words = line.split()
        if words[:2] == ["#", "drivetrain"]:
            about = dict(word.split("=", 1) for word in words[2:] if "=" in word)
            wrong = sorted(about.keys() ^ (set(_COLUMNS) - {"size_bytes", "time_us"}))
            if set(wrong) - {"algorithm", "protocol", "channels"}:
                message = (
                    f"{where}: it must say collective=, ranks= and nodes=, and may say "
                    f"algorithm=, protocol= and channels=, got {_shown(line)}"
                )
                raise NcclTableError(message)
        columns = _nccl_tests_columns(line, where) or columns
        if not words or words[0].startswith("#"):
            continue
        if not about:
            message = (
                f"{where}: a line '# drivetrain collective=... ranks=... nodes=...' must "
                "come before the times of nccl-tests"
            )
            raise NcclTableError(message)
        if not re.fullmatch(r"[0-9]+", words[0]):
            message = f"{where}: it is no line of nccl-tests, got {_shown(line)}"
            raise NcclTableError(message)
        if not columns:
            message = (
                f"{where}: the header of nccl-tests, '# size count type ... time algbw "
                "busbw', must come before the times"
            )
            raise NcclTableError(message)
        if len(words) < len(columns):
            message = (
                f"{where}: the header of nccl-tests has {len(columns)} columns, got "
                f"{len(words)} values in {_shown(line)}"
            )
            raise NcclTableError(message)
        if words[0] != "0":
            time_us = words[columns.index("time")]
            yield where, {**about, "size_bytes": words[0], "time_us": time_us}


def _nccl_tests_columns(line: str, where: str) -> list[str]:
    """Returns the columns that a line names; none if it is no header of nccl-tests.

    Versions differ: `redop` and `root` are not there in all. The times out of place come
    before those in place.
    """
    if not line.lstrip().startswith("#"):
        return []
    names = [name for name in line.lstrip()[1:].split() if name[0] != "("]
    if names[:2] != ["size", "count"]:
        return []
    if "time" not in names:
        message = (
            f"{where}: the header of nccl-tests must name a column 'time', got "
            f"{_shown(' '.join(names))}"
        )
        raise NcclTableError(message)
    return names


def _measurement(row: Mapping[str, Any], where: str) -> Measurement:
    found: dict[str, Any] = {"collective": row["collective"]}
    for name in ("algorithm", "protocol"):
        value = row.get(name)
        found[name] = None if value in (None, "", _DEFAULT) else value
    for name in (*_NUMBERS, "channels"):
        value = row.get(name)
        if name == "channels" and value in (None, "", _DEFAULT):
            continue
        is_scalar = isinstance(value, (int, str)) and not isinstance(value, bool)
        if not is_scalar or not re.fullmatch(r"[0-9]{1,19}", str(value)):
            message = f"{where}: {name} must be a whole number, got {_shown(value)}"
            raise NcclTableError(message)
        found[name] = int(str(value))
    found["time_us"] = _time(row["time_us"], where)
    try:
        return Measurement(**found, where=where)
    except NcclTableError as error:
        message = f"{where}: {error}"
        raise NcclTableError(message) from None


def _time(value: Any, where: str) -> float:
    try:
        # float() takes true for 1, and 1_0 for 10.
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            return float(value.replace("_", "?") if isinstance(value, str) else value)
    except (ValueError, OverflowError):
        pass
    message = f"{where}: time_us must be a number, got {_shown(value)}"
    raise NcclTableError(message)


def _check_name(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        message = f"{wanted_name(name, known)}, got {_shown(value)}"
        raise NcclTableError(message)


def _shown(value: Any) -> str:
    """Returns a value as messages show it, whatever a file holds in its place."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, str):
        return repr(_cut(value))
    return _cut(repr(value))


def _cut(text: str) -> str:
    return f"{text[:_MOST_SHOWN]}..." if len(text) > _MOST_SHOWN else text
