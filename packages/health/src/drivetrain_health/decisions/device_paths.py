"""Which ways from a node's RDMA devices are slow, held against those that are as far.

What is as far should be as fast: a way to the memory of the near processor is compared
with those of the other devices, and not with one that crosses to another processor.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Of fewer that are as far, one could move what is usual.
_FEWEST_TO_COMPARE = 3
# Ways that are as far differ by some percent where nothing is wrong.
_LEAST_SHARE = 0.75


class DevicePath(NamedTuple):
    """A way from an RDMA device, to memory and back or to another device of the node.

    Attributes:
        device: Its name and port, such as `mlx5_0:1`.
        target: The memory of a NUMA node, `numa0`, or of a GPU, `gpu3`; or a device.
        distance: How far that is: `near`, or one of `PIX PXB PHB NODE SYS`.
    """

    device: str
    target: str
    distance: str

    @property
    def kind(self) -> str:
        """What is compared with each other: ways to the same sort of end, as far."""
        sort = "device" if ":" in self.target else self.target.rstrip("0123456789")
        return f"{sort} {self.distance}"

    def __str__(self) -> str:
        """Returns it for people."""
        return f"{self.device} to {self.target} ({self.distance})"


def rounds_of(paths: Iterable[DevicePath]) -> list[list[DevicePath]]:
    """Returns rounds of ways of one kind that share no end: none slows another down.

    Args:
        paths: The ways.

    Example:
        >>> paths = [DevicePath(f"d{a}:1", f"d{b}:1", "SYS")
        ...          for a in range(4) for b in range(a + 1, 4)]
        >>> [[f"{p.device} {p.target}" for p in one] for one in rounds_of(paths)]
        [['d0:1 d1:1', 'd2:1 d3:1'], ['d0:1 d2:1', 'd1:1 d3:1'], ['d0:1 d3:1', 'd1:1 d2:1']]
    """
    rounds: list[list[DevicePath]] = []
    for path in paths:
        for one in rounds:
            ends = {end for other in one for end in other[:2]}
            if one[0].kind == path.kind and ends.isdisjoint(path[:2]):
                one.append(path)
                break
        else:
            rounds.append([path])
    return rounds


def slow_paths(rates: Mapping[DevicePath, float]) -> dict[DevicePath, float]:
    """Returns the ways that are slow, each with the rate that is usual for its kind.

    Of a kind with fewer than three ways nothing is said.

    Args:
        rates: In Gbit/s; 0 for one that did not answer.

    Example:
        >>> rates = {DevicePath(f"d{i}:1", "numa0", "near"): 190.0 for i in range(4)}
        >>> bad = DevicePath("d9:1", "numa0", "near")
        >>> slow_paths({**rates, bad: 90.0}) == {bad: 190.0}
        True
    """
    of_kind: dict[str, list[float]] = {}
    for path, rate in rates.items():
        of_kind.setdefault(path.kind, []).append(rate)
    usual = {kind: statistics.median(known) for kind, known in of_kind.items()}
    return {
        path: usual[path.kind]
        for path, rate in rates.items()
        if len(of_kind[path.kind]) >= _FEWEST_TO_COMPARE
        and rate < _LEAST_SHARE * usual[path.kind]
    }


def describe_slow(
    rates: Mapping[DevicePath, float], slow: Mapping[DevicePath, float]
) -> str:
    """Returns what is slow: an end if all of its ways are, else the ways; at most four.

    Args:
        rates: Of all ways.
        slow: Those that are slow, as `slow_paths` returns them.

    Example:
        >>> rates = {DevicePath(d, t, "near"): 190.0
        ...          for d in ("a:1", "b:1", "c:1") for t in ("numa0", "numa1")}
        >>> rates |= {path: 60.0 for path in rates if path.device == "b:1"}
        >>> describe_slow(rates, slow_paths(rates))
        'all 2 ways of b:1 are slow, such as b:1 to numa0 (near): 60 Gbit/s, usual are 190'
    """
    ends = dict.fromkeys(end for path in rates for end in path[:2])
    said, covered = [], set[DevicePath]()
    for end in ends:
        its = [path for path in rates if end in path[:2]]
        if len(its) > 1 and slow.keys() >= set(its) and not covered.issuperset(its):
            covered.update(its)
            example = _rate_of(its[0], rates, slow)
            said.append(f"all {len(its)} ways of {end} are slow, such as {example}")
    said += [_rate_of(path, rates, slow) for path in slow if path not in covered]
    return "; ".join(said[:4])


def _rate_of(
    path: DevicePath,
    rates: Mapping[DevicePath, float],
    slow: Mapping[DevicePath, float],
) -> str:
    return f"{path}: {rates[path]:.3g} Gbit/s, usual are {slow[path]:.3g}"
