"""The text form of a table, one rule a line.

    drivetrain-nccl-table 1
    # collective  sizes          ranks  nodes  algorithm  protocol  options
    all_reduce    64KiB..4MiB    16     2      tree       ll128     channels=8
    all_gather    1MiB..         *      *      ring       simple    reg_buff=1

The plug-in reads the same (`csrc/nccl_tuner/parse.cpp`), with the same messages.
"""

from __future__ import annotations

import codecs
import errno
import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from drivetrain_comm.nccl._errors import NcclTableError
from drivetrain_comm.nccl._overlap import find_overlap
from drivetrain_comm.nccl._rule import (
    ALGORITHMS,
    COLLECTIVES,
    LIMITS,
    MOST_BYTES,
    PROTOCOLS,
    Rule,
    channels_refusal,
    wanted_name,
    wanted_number,
)
from drivetrain_comm.nccl._table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEADER = "drivetrain-nccl-table 1"
_COLUMNS = ("# collective", "sizes", "ranks", "nodes", "algorithm", "protocol")
_UNITS = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
_SWITCHES = {"0": False, "1": True}
_MOST_TABLE_BYTES = 16 << 20
_MOST_SHOWN = 60
_UNPRINTABLE = re.compile(rb"[^\t\r\x20-\x7e]")


def parse_table(text: str | bytes, source: str = "table") -> Table:
    r"""Returns the table that a text describes.

    Args:
        text: The text of a file.
        source: What to call it in errors.

    Raises:
        NcclTableError: It is not a valid table; the message says in which line.

    Example:
        >>> header = "drivetrain-nccl-table 1\n"
        >>> parse_table(header + "reduce 0B.. * * ring ll").rules[0].protocol
        'll'
        >>> parse_table(header + "reduce 0..4K * * ring ll")
        Traceback (most recent call last):
        ...
        drivetrain_comm.nccl._errors.NcclTableError: table:2: a size must be a whole
        number with the unit B, KiB, MiB, GiB or TiB, and below 8 EiB, got '0'
    """
    data = _bytes(text) if isinstance(text, str) else text
    if data.startswith(codecs.BOM_UTF8):
        _Line(source, 1).refuse(
            "only comments may hold other than printable ASCII, got 0xef: it begins "
            "with a byte order mark"
        )
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    has_header = False
    rules: list[Rule] = []
    numbers: list[int] = []
    for number, line in enumerate(lines, 1):
        at = _Line(source, number)
        words = at.split(line)
        if not words:
            continue
        if has_header:
            rules.append(at.rule(words))
            numbers.append(number)
        else:
            at.check_header(_quote(" ".join(words)))
        has_header = True
    if not has_header:
        _Line(source, max(len(lines), 1)).check_header("nothing")
    places = find_overlap(rules)
    if places is not None:
        earlier, later = (numbers[place] for place in places)
        _Line(source, later).refuse(f"it overlaps the rule of line {earlier}")
    return Table(rules=tuple(rules))


def load_table(path: str | os.PathLike[str]) -> Table:
    """Returns the table in a file.

    Args:
        path: A regular file of 16 MiB at most.

    Raises:
        NcclTableError: It cannot be read, or is not a valid table.
    """
    source = os.fsdecode(path)
    try:
        data = _read(source)
    except OSError as error:
        reason = os.strerror(error.errno or errno.EIO)
        message = f"{source}: it cannot be read: {reason}"
        raise NcclTableError(message) from error
    except ValueError as error:
        # A NUL byte, or half of a surrogate pair.
        message = f"{source!r}: it cannot be read: no file can have this name"
        raise NcclTableError(message) from error
    if data is None:
        message = f"{source}: it must be a regular file"
        raise NcclTableError(message)
    if len(data) > _MOST_TABLE_BYTES:
        message = f"{source}: it must be at most {_MOST_TABLE_BYTES} bytes"
        raise NcclTableError(message)
    return parse_table(data, source)


def _bytes(text: str) -> bytes:
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        # It did not come from bytes; what is no ASCII is refused by line.
        return text.encode(errors="surrogatepass")


def _read(path: str) -> bytes | None:
    # Without O_NONBLOCK a pipe would stop the job here.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read(_MOST_TABLE_BYTES + 1)
    finally:
        os.close(fd)


def format_table(table: Table) -> str:
    """Returns the text of a file that holds a table, in columns.

    Args:
        table: The table.

    Example:
        >>> rule = Rule(collective="reduce", algorithm="ring", protocol="ll",
        ...     begin_bytes=1024, end_bytes=1536, channels=4)
        >>> print(format_table(Table(rules=(rule,))))
        drivetrain-nccl-table 1
        # collective  sizes         ranks  nodes  algorithm  protocol
        reduce        1KiB..1536B   *      *      ring       ll        channels=4
        <BLANKLINE>
    """
    rows = [_COLUMNS, *map(_words, table.rules)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_COLUMNS))]
    lines = [_HEADER]
    for row in rows:
        fixed = [word.ljust(width) for word, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*fixed, *row[len(_COLUMNS) :]]).rstrip())
    return "".join(f"{line}\n" for line in lines)


def size_text(size_bytes: int) -> str:
    """Returns a size as tables have it, in the largest unit that is exact.

    Example:
        >>> size_text(65536), size_text(1000), size_text(0)
        ('64KiB', '1000B', '0B')
    """
    for unit, shift in reversed(_UNITS.items()):
        if size_bytes >= 1 << shift and size_bytes % (1 << shift) == 0:
            return f"{size_bytes >> shift}{unit}"
    return f"{size_bytes}B"


def _words(rule: Rule) -> tuple[str, ...]:
    end = "" if rule.end_bytes is None else size_text(rule.end_bytes)
    options = {
        "channels": rule.channels,
        "num_pipe_ops": rule.num_pipe_ops,
        "reg_buff": rule.reg_buff,
    }
    return (
        rule.collective,
        f"{size_text(rule.begin_bytes)}..{end}",
        "*" if rule.ranks is None else str(rule.ranks),
        "*" if rule.nodes is None else str(rule.nodes),
        rule.algorithm,
        rule.protocol,
        *(f"{k}={int(v)}" for k, v in options.items() if v is not None),
    )


@dataclass(frozen=True, slots=True)
class _Line:
    """Reads one line, and says where it is if it is wrong."""

    source: str
    number: int

    def refuse(self, why: str) -> NoReturn:
        message = f"{self.source}:{self.number}: {why}"
        raise NcclTableError(message)

    def split(self, line: bytes) -> list[str]:
        outside = line.partition(b"#")[0]
        wrong = _UNPRINTABLE.search(outside)
        if wrong:
            self.refuse(
                "only comments may hold other than printable ASCII, got "
                f"0x{wrong[0][0]:02x}"
            )
        return outside.decode("ascii").split()

    def check_header(self, got: str) -> None:
        wanted = _quote(_HEADER)
        if got != wanted:
            self.refuse(f"the first line must be {wanted}, got {got}")

    def rule(self, words: Sequence[str]) -> Rule:
        if len(words) < len(_COLUMNS):
            self.refuse(
                "a rule is COLLECTIVE SIZES RANKS NODES ALGORITHM PROTOCOL "
                f"[OPTION=VALUE ...], got {len(words)} words"
            )
        collective = self._name("collective", words[0], COLLECTIVES)
        begin, end = self._sizes(words[1])
        ranks = None if words[2] == "*" else self._number("ranks", words[2])
        nodes = None if words[3] == "*" else self._number("nodes", words[3])
        if ranks and nodes and nodes > ranks:
            self.refuse(f"{ranks} ranks cannot be on {nodes} nodes")
        algorithm = self._name("algorithm", words[4], ALGORITHMS)
        protocol = self._name("protocol", words[5], PROTOCOLS)
        options = self._options(words[len(_COLUMNS) :])
        wrong = channels_refusal(algorithm, nodes)
        if "channels" in options and wrong is not None:
            self.refuse(wrong)
        return Rule(
            collective=collective,
            begin_bytes=begin,
            end_bytes=end,
            ranks=ranks,
            nodes=nodes,
            algorithm=algorithm,
            protocol=protocol,
            **options,
        )

    def _name(self, name: str, word: str, known: tuple[str, ...]) -> str:
        if word not in known:
            self.refuse(f"{wanted_name(name, known)}, got {_quote(word)}")
        return word

    def _number(self, name: str, word: str) -> int:
        value = _whole(word)
        if value is None or not 1 <= value <= LIMITS[name]:
            self.refuse(f"{wanted_number(name)}, got {_quote(word)}")
        return value

    def _size(self, word: str) -> int:
        digits = len(word) - len(word.lstrip("0123456789"))
        value, shift = _whole(word[:digits]), _UNITS.get(word[digits:])
        if value is None or shift is None or value > MOST_BYTES >> shift:
            self.refuse(
                "a size must be a whole number with the unit B, KiB, MiB, GiB or TiB, "
                f"and below 8 EiB, got {_quote(word)}"
            )
        return value << shift

    def _sizes(self, word: str) -> tuple[int, int | None]:
        begin, dots, end = word.partition("..")
        if not dots:
            self.refuse(
                "sizes must be BEGIN..END, or BEGIN.. without an end, got "
                f"{_quote(word)}"
            )
        begin_bytes = self._size(begin)
        if not end:
            return begin_bytes, None
        end_bytes = self._size(end)
        if end_bytes <= begin_bytes:
            self.refuse(f"sizes must end after they begin, got {_quote(word)}")
        return begin_bytes, end_bytes

    def _options(self, words: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not equals:
                self.refuse(f"an option must be NAME=VALUE, got {_quote(word)}")
            if name not in {"channels", "num_pipe_ops", "reg_buff"}:
                self.refuse(
                    "an option must be one of channels, num_pipe_ops, reg_buff, got "
                    f"{_quote(name)}"
                )
            if name in found:
                self.refuse(f"{name} is given twice")
            if name != "reg_buff":
                found[name] = self._number(name, value)
            elif value in _SWITCHES:
                found[name] = _SWITCHES[value]
            else:
                self.refuse(f"reg_buff must be 0 or 1, got {_quote(value)}")
        return found


def _whole(word: str) -> int | None:
    # More digits than any limit has: int() is slow with very many, or refuses them.
    stripped = word.lstrip("0")
    if not word.isdecimal() or len(stripped) > 20:
        return None
    return int(stripped or "0")


def _quote(word: str) -> str:
    return f"'{word[:_MOST_SHOWN]}{'...' if len(word) > _MOST_SHOWN else ''}'"
