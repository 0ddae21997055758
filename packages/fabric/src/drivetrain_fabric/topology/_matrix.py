"""What the links between ranks were measured to do: the delay and speed of each pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_fabric.topology._errors import TopologyError

if TYPE_CHECKING:
    from collections.abc import Iterator

_Rows = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkMatrix:
    """The links between some ranks.

    Args:
        delay_s: How long a short message takes from the rank of a row to the rank of a
            column, one way, in seconds; 0 on the diagonal.
        bytes_per_s: What long messages carry from row to column; 0 on the diagonal.
        ranks: The rank of each row; by default 0, 1, 2 and so on.

    Raises:
        TopologyError: It is not square, or a number is not positive.

    Example:
        >>> links = LinkMatrix(delay_s=((0.0, 1e-3), (1e-3, 0.0)),
        ...                    bytes_per_s=((0.0, 1e9), (1e9, 0.0)))
        >>> links.seconds(0, 1, 1_000_000)
        0.002
    """

    delay_s: _Rows
    bytes_per_s: _Rows
    ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Checks the shape and each number."""
        size = len(self.delay_s)
        for name in ("delay_s", "bytes_per_s"):
            _check_rows(name, getattr(self, name), size)
        for a, b in self.pairs():
            if self.bytes_per_s[a][b] == 0:
                message = f"bytes_per_s[{a}][{b}] must be more than 0"
                raise TopologyError(message)
        if not self.ranks:
            object.__setattr__(self, "ranks", tuple(range(size)))
        if len(self.ranks) != size or len(set(self.ranks)) != size:
            message = f"ranks must be {size} different ones, got {list(self.ranks)}"
            raise TopologyError(message)

    def __len__(self) -> int:
        """The number of ranks."""
        return len(self.delay_s)

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Returns the rows and columns of all links, both directions."""
        size = len(self.delay_s)
        return ((a, b) for a in range(size) for b in range(size) if a != b)

    def seconds(self, a: int, b: int, size_bytes: float) -> float:
        """Returns how long a message takes.

        Args:
            a: The row of the rank that sends.
            b: The column of the rank that receives.
            size_bytes: How long it is.
        """
        return self.delay_s[a][b] + size_bytes / self.bytes_per_s[a][b]


def _check_rows(name: str, rows: _Rows, size: int) -> None:
    if size == 0:
        message = f"{name} must have one row at least"
        raise TopologyError(message)
    if len(rows) != size:
        message = f"{name} must have {size} rows, got {len(rows)}"
        raise TopologyError(message)
    for a, row in enumerate(rows):
        if len(row) != size:
            message = f"{name}[{a}] must have {size} numbers, got {len(row)}"
            raise TopologyError(message)
        for b, value in enumerate(row):
            if not 0 <= value < float("inf"):
                message = f"{name}[{a}][{b}] must be 0 or more, got {value}"
                raise TopologyError(message)
