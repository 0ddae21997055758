"""Max-min fair rates of flows, and how long what they carry takes.

Rates are max-min fair when none can grow but at the cost of one that is not larger: each
flow has a link that is full, and no flow on that link is faster. Long flows under a fair
congestion control come near to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from drivetrain_fabric.network._errors import FabricError
from drivetrain_fabric.network._routes import route

if TYPE_CHECKING:
    from drivetrain_fabric.network._clos import Clos, FloatArray, IntArray
    from drivetrain_fabric.network._ecmp import Ecmp
    from drivetrain_fabric.network._job import Phase

# Shares that differ by less are the same but for rounding.
_SAME = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """How long flows take.

    Args:
        seconds: From the start to the end, the latency of all steps included.
        ideal_s: The same, on a fabric in which only the network cards are slow.
        slowest_bits_per_s: The rate of the slowest flow, all queue pairs of a
            connection together at the pace of the slowest of them; infinite where
            there is no flow.
    """

    seconds: float
    ideal_s: float
    slowest_bits_per_s: float

    @property
    def slowdown(self) -> float:
        """Returns how many times as long as the ideal it takes."""
        return self.seconds / self.ideal_s if self.ideal_s else 1.0


def max_min(links: IntArray, capacity: FloatArray) -> FloatArray:
    """Returns the max-min fair rates of flows.

    Args:
        links: The links of each flow, of shape (flows, hops); a number that is the
            number of links stands for none.
        capacity: What each link carries.

    Raises:
        FabricError: A flow has no link, or a link carries nothing or less.

    Example:
        >>> links = np.array([[0, 2], [0, 1], [1, 2]])
        >>> max_min(links, np.array([10.0, 4.0]))
        array([8., 2., 2.])
    """
    num = len(capacity)
    if (links >= num).all(axis=1).any():
        message = "each flow must go over one link at least"
        raise FabricError(message)
    if num and capacity.min() <= 0:
        message = f"links carry more than nothing, got {capacity.min():g}"
        raise FabricError(message)
    rates = np.zeros(len(links))
    left = np.append(capacity, np.inf)
    rows = np.arange(len(links))
    while len(rows):
        counts = np.bincount(links.ravel(), minlength=num + 1)
        shares = np.full(num + 1, np.inf)
        np.divide(left, counts, out=shares, where=counts > 0)
        shares[num] = np.inf
        per_hop = shares[links]
        best = per_hop.min(axis=1)
        # A link is a bottleneck once none of its flows has a scarcer one elsewhere: its
        # share is final then. All such links are filled in one round, wherever they are.
        elsewhere = links[per_hop > best[:, None] * (1 + _SAME)]
        is_full = (counts > 0) & (np.bincount(elsewhere, minlength=num + 1) == 0)
        is_full[num] = False
        done = is_full[links].any(axis=1)
        rates[rows[done]] = best[done]
        taken = np.repeat(best[done], links.shape[1])
        left -= np.bincount(links[done].ravel(), taken, minlength=num + 1)
        left[num] = np.inf
        np.maximum(left, 0, out=left)
        rows, links = rows[~done], links[~done]
    return rates


def drain(
    links: IntArray,
    capacity: FloatArray,
    sizes: FloatArray,
    *,
    tolerance: float = 0.0,
) -> FloatArray:
    """Returns when each flow ends, where those that are left share what others leave.

    Args:
        links: The links of each flow, as `max_min` takes them.
        capacity: What each link carries in a second.
        sizes: What each flow carries.
        tolerance: Ends that are closer together than this part of the time so far are
            one for the rates of those that are left; with 0, rates change at each end.

    Raises:
        FabricError: As of `max_min`.

    Example:
        >>> links = np.array([[0], [0]])
        >>> drain(links, np.array([10.0]), np.array([10.0, 20.0]))
        array([2., 3.])
    """
    ends = np.zeros(len(links))
    rows = np.flatnonzero(sizes > 0)
    left, now = sizes[rows].astype(float), 0.0
    while len(rows):
        rates = max_min(links[rows], capacity)
        needed = left / rates
        first = needed.min()
        step = first * (1 + _SAME) + tolerance * (now + first)
        done = needed <= step
        step = needed[done].max()
        ends[rows[done]] = now + needed[done]
        now += step
        left = (left - rates * step)[~done]
        rows = rows[~done]
    return ends


def simulate(
    clos: Clos, phase: Phase, *, ecmp: Ecmp, num_queue_pairs: int = 1
) -> Transfer:
    """Returns how long a phase takes on a fabric, its flows placed already.

    Where the slowest sets the pace, no flow is faster for what others have left over:
    a step of a ring waits for its slowest link, and a message for its slowest queue
    pair.

    Args:
        clos: The fabric.
        phase: What is sent.
        ecmp: How switches hash.
        num_queue_pairs: The queue pairs of a connection.

    Raises:
        FabricError: The flows do not fit the fabric.
    """
    flows = phase.flows
    latency = flows.num_steps * clos.latency_s
    if not len(flows) or not flows.size_bytes.any():
        return Transfer(seconds=latency, ideal_s=latency, slowest_bits_per_s=math.inf)
    routes = route(clos, flows, ecmp=ecmp, num_queue_pairs=num_queue_pairs)
    capacity, bits = clos.capacity_bits_per_s, routes.size_bytes * 8
    rates = max_min(routes.links, capacity)
    if phase.is_paced:
        seconds = float((bits / rates).max())
    else:
        seconds = float(drain(routes.links, capacity, bits, tolerance=0.01).max())
    most = max(
        np.bincount(nics, flows.size_bytes).max()
        for nics in (flows.source, flows.target)
    )
    return Transfer(
        seconds=seconds + latency,
        ideal_s=float(most) * 8 / clos.nic_bits_per_s + latency,
        slowest_bits_per_s=float(rates.min()) * num_queue_pairs,
    )
