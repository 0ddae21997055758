"""A job's communication by placement, queue pairs and speed of ports up, compared."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from drivetrain_fabric.network._clos import without_split
from drivetrain_fabric.network._collisions import (
    flow_overload_probability,
    overload_probability,
)
from drivetrain_fabric.network._ecmp import Ecmp
from drivetrain_fabric.network._errors import FabricError
from drivetrain_fabric.network._placement import crossing, place
from drivetrain_fabric.network._rates import simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_fabric.network._clos import Clos, IntArray
    from drivetrain_fabric.network._job import Phase
    from drivetrain_fabric.network._placement import Crossing


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """What one setting gives.

    Args:
        placement: How nodes were placed.
        num_queue_pairs: The queue pairs of a connection.
        uplink_ratio: How many cards at full speed a port up carries: 2 where ports are
            split, 1 where they are not.
        seconds: How long all phases take together, one after the other; the mean over
            all seeds.
        ideal_s: The same with no limit but the network cards'.
        phase_s: How long each phase takes, by its name.
        crossing: How far up bytes go.
        some_port_overloaded: How likely it is at one leaf that some port up gets more
            than it carries, in closed form and in the phase where it is most likely.
        flow_overloaded: How likely that is for the port of a flow. Both take it that a
            card has one connection up at a time.
    """

    placement: str
    num_queue_pairs: int
    uplink_ratio: float
    seconds: float
    ideal_s: float
    phase_s: dict[str, float]
    crossing: Crossing
    some_port_overloaded: float
    flow_overloaded: float

    @property
    def slowdown(self) -> float:
        """Returns how many times as long as the ideal it takes."""
        return self.seconds / self.ideal_s if self.ideal_s else 1.0


def compare(
    clos: Clos,
    phases: Sequence[Phase],
    *,
    nodes: Sequence[int],
    placements: Sequence[str] = ("random", "packed", "advised"),
    queue_pairs: Sequence[int] = (1, 2, 4, 8),
    ecmp: Ecmp | None = None,
    num_seeds: int = 1,
) -> tuple[Measure, ...]:
    """Returns what each placement gives, with each number of queue pairs.

    Each is tried with ports up as they are and, where those carry several network
    cards, with as many slower ones instead.

    Args:
        clos: The fabric.
        phases: What the job sends.
        nodes: The nodes that the job has got.
        placements: The placements.
        queue_pairs: The numbers of queue pairs.
        ecmp: How switches hash; its seed is the first.
        num_seeds: How many seeds, one after the other, times are averaged over.

    Raises:
        FabricError: Something is not known, or does not fit the fabric.

    Example:
        >>> from drivetrain_fabric.network import Clos, Tier, collective
        >>> clos = Clos(num_nodes=8, nics_per_node=2, nic_bits_per_s=200e9, tiers=(
        ...     Tier(downlinks=4, uplinks=2, uplink_bits_per_s=400e9),
        ...     Tier(downlinks=4)))
        >>> phase = collective("all-reduce", num_nodes=8, nics_per_node=2, size_bytes=1e9)
        >>> [(m.uplink_ratio, m.slowdown) for m in compare(
        ...     clos, [phase], nodes=range(8), placements=["packed"], queue_pairs=[1])]
        [(2.0, 1.0), (1.0, 1.0)]
    """
    if num_seeds < 1 or not phases:
        message = (
            f"there must be one seed and one phase at least, got {num_seeds} seeds"
        )
        raise FabricError(message)
    first = ecmp or Ecmp()
    hashes = [replace(first, seed=first.seed + i) for i in range(num_seeds)]
    fabrics = [clos]
    if clos.uplink_ratio > 1 and clos.uplink_ratio.is_integer():
        fabrics.append(without_split(clos))
    found = []
    for kind in placements:
        order = place(kind, clos, phases, nodes=nodes, seed=first.seed)
        found += [
            _measure(fabric, phases, order, kind, num, hashes)
            for fabric in fabrics
            for num in queue_pairs
        ]
    return tuple(found)


def _measure(
    clos: Clos,
    phases: Sequence[Phase],
    order: IntArray,
    kind: str,
    num_queue_pairs: int,
    hashes: Sequence[Ecmp],
) -> Measure:
    phase_s, ideal_s = {}, 0.0
    for phase in phases:
        flows = phase.flows.placed(order, clos.nics_per_node)
        times = [
            simulate(
                clos,
                replace(phase, flows=flows),
                ecmp=ecmp,
                num_queue_pairs=num_queue_pairs,
            )
            for ecmp in hashes
        ]
        phase_s[phase.name] = statistics.fmean(each.seconds for each in times)
        ideal_s += times[0].ideal_s
    chances = [_overload(clos, phase, order, num_queue_pairs) for phase in phases]
    return Measure(
        placement=kind,
        num_queue_pairs=num_queue_pairs,
        uplink_ratio=clos.uplink_ratio,
        seconds=sum(phase_s.values()),
        ideal_s=ideal_s,
        phase_s=phase_s,
        crossing=crossing(clos, phases, order),
        some_port_overloaded=max(some for some, _ in chances),
        flow_overloaded=max(own for _, own in chances),
    )


def _overload(
    clos: Clos, phase: Phase, order: IntArray, num_queue_pairs: int
) -> tuple[float, float]:
    """Returns how likely some port up of a leaf gets too much, and a flow's own does."""
    leaf = clos.tiers[0]
    share = crossing(clos, [phase], order).share_between_racks
    # As many cards of a leaf send up at a time as bytes do.
    cards = min(leaf.downlinks, len(order) * clos.nics_per_node // clos.leaves_per_rack)
    num = round(cards * share) * num_queue_pairs
    carried = int(clos.uplink_ratio * num_queue_pairs)
    if not num:
        return 0.0, 0.0
    return (
        overload_probability(num, leaf.uplinks, carried),
        flow_overload_probability(num, leaf.uplinks, carried),
    )
