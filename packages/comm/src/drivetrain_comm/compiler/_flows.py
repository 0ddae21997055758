"""How fast transfers go that share wires: max-min fairness.

Rates grow alike until a wire is full; what passes it stays as it is, and the others go
on (Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def fair_rates(
    ways: Sequence[Sequence[int]], bytes_per_s: Mapping[int, float] | Sequence[float]
) -> list[float]:
    """Returns the rate of each flow.

    Args:
        ways: The wires that each flow passes, by number; one at least.
        bytes_per_s: What each wire carries.

    Example:
        >>> fair_rates([[0], [0, 1], [1]], [2.0, 10.0])
        [1.0, 1.0, 9.0]
    """
    on_wire: dict[int, list[int]] = {}
    for flow, way in enumerate(ways):
        for wire in way:
            on_wire.setdefault(wire, []).append(flow)
    left = {wire: bytes_per_s[wire] for wire in on_wire}
    num = {wire: len(flows) for wire, flows in on_wire.items()}
    rates = [0.0] * len(ways)
    open_flows = [True] * len(ways)
    while num:
        fullest = min(num, key=lambda wire: left[wire] / num[wire])
        share = max(0.0, left[fullest] / num[fullest])
        for flow in on_wire[fullest]:
            if not open_flows[flow]:
                continue
            open_flows[flow] = False
            rates[flow] = share
            for wire in ways[flow]:
                left[wire] -= share
                num[wire] -= 1
        num = {wire: count for wire, count in num.items() if count}
    return rates
