r"""DCQCN, the rate control of RoCE: its parameters, its senders, its fixed point.

Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015. A switch
marks packets by the length of its queue; a receiver of marked packets sends a congestion
notification (CNP) at most each 50 us; a sender that gets one sets its target rate
:math:`R_T` to its rate :math:`R_C` and then (equation 1)

    R_C <- R_C (1 - alpha / 2),    alpha <- (1 - g) alpha + g

Without a CNP, alpha <- (1 - g) alpha after each 55 us (equation 2). Each turn of a timer
or of a counter of bytes raises the rate by R_C <- (R_T + R_C) / 2: as it is while neither
has turned F = 5 times (fast recovery), else with R_T raised by R_AI before (additive), and
once both have turned more often by R_HAI times what the fewer turns exceed F by (hyper).

The fixed point of `n` senders on a link of capacity C is that of the fluid model of Zhu et
al., "ECN or Delay: Lessons Learnt from Analysis of DCQCN and TIMELY", CoNEXT 2016. In a
small probability p of a mark, with the byte counter B and R_AI in packets, the timer T and
the interval tau of alpha,

    p^3 = R_AI n^2 / (tau C^2) (1 / B + n / (T C))^2
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from drivetrain_fabric.network._errors import FabricError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from drivetrain_fabric.network._clos import FloatArray


@dataclass(frozen=True, kw_only=True, slots=True)
class Marking:
    """How likely a switch marks a packet, by the length of its queue.

    Args:
        min_bytes: Kmin: up to it nothing is marked.
        max_bytes: Kmax: beyond it everything is.
        max_probability: Pmax: the probability at Kmax, to which it rises evenly.

    Raises:
        FabricError: The numbers are out of order.

    Example:
        >>> Marking().probability(np.array([0.0, 102_500.0, 200_001.0]))
        array([0.   , 0.005, 1.   ])
    """

    min_bytes: float = 5e3
    max_bytes: float = 200e3
    max_probability: float = 0.01

    def __post_init__(self) -> None:
        """Checks the order of the numbers."""
        if (
            not 0 <= self.min_bytes < self.max_bytes
            or not 0 < self.max_probability <= 1
        ):
            message = (
                "marking needs 0 <= min_bytes < max_bytes and a probability above 0 "
                f"and up to 1, got {self.min_bytes:g}, {self.max_bytes:g} and "
                f"{self.max_probability:g}"
            )
            raise FabricError(message)

    def probability(self, queue_bytes: FloatArray) -> FloatArray:
        """Returns how likely packets are marked at queues of some lengths.

        Args:
            queue_bytes: The lengths.
        """
        over = (queue_bytes - self.min_bytes) / (self.max_bytes - self.min_bytes)
        rising = np.clip(over, 0, 1) * self.max_probability
        return np.where(over > 1, 1.0, rising)


@dataclass(frozen=True, kw_only=True, slots=True)
class Dcqcn:
    """The parameters of a sender and a receiver; by default those of the paper.

    It names no numbers for R_HAI and for a least rate: those are ours.

    Args:
        gain: g, the weight of a notification in alpha.
        notification_s: How long a receiver waits between notifications of a flow.
        alpha_s: After how long without one alpha falls.
        timer_s: T: after how long the timer raises the rate.
        counter_bytes: B: after how many bytes the counter does.
        num_recoveries: F: how often fast recovery goes before additive increase.
        additive_bits_per_s: R_AI.
        hyper_bits_per_s: R_HAI.
        least_bits_per_s: The rate below which no sender falls.

    Raises:
        FabricError: A number is not positive.
    """

    gain: float = 1 / 256
    notification_s: float = 50e-6
    alpha_s: float = 55e-6
    timer_s: float = 55e-6
    counter_bytes: float = 10e6
    num_recoveries: int = 5
    additive_bits_per_s: float = 40e6
    hyper_bits_per_s: float = 400e6
    least_bits_per_s: float = 10e6

    def __post_init__(self) -> None:
        """Checks the numbers."""
        for name in self.__slots__:
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                message = f"{name} must be above zero, got {value:g}"
                raise FabricError(message)


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedPoint:
    """Where senders that share a link come to rest.

    Args:
        rate_bits_per_s: The rate of each.
        probability: Of a mark.
        queue_bytes: The length of the queue.
    """

    rate_bits_per_s: float
    probability: float
    queue_bytes: float


def fixed_point(
    num_flows: int,
    bits_per_s: float,
    *,
    dcqcn: Dcqcn | None = None,
    marking: Marking | None = None,
    packet_bytes: float = 1000,
) -> FixedPoint:
    """Returns where DCQCN's senders come to rest on one link.

    Args:
        num_flows: The senders.
        bits_per_s: What the link carries.
        dcqcn: The senders' parameters.
        marking: The switch's.
        packet_bytes: The size of a packet.

    Returns:
        The fixed point; its queue is Kmax where marks at Pmax would be too few.

    Raises:
        FabricError: There is no sender, or the link carries nothing.

    Example:
        >>> rest = fixed_point(2, 40e9)
        >>> f"{rest.probability:.2e} {rest.queue_bytes / 1e3:.1f} KB"
        '9.25e-04 23.0 KB'
    """
    if num_flows < 1 or not bits_per_s > 0 or not packet_bytes > 0:
        message = (
            "there must be one sender at least, a link and a packet, got "
            f"{num_flows}, {bits_per_s:g} bit/s and {packet_bytes:g} bytes"
        )
        raise FabricError(message)
    dcqcn, marking = dcqcn or Dcqcn(), marking or Marking()
    bits = packet_bytes * 8
    capacity, additive = bits_per_s / bits, dcqcn.additive_bits_per_s / bits
    events = packet_bytes / dcqcn.counter_bytes + num_flows / (dcqcn.timer_s * capacity)
    cube = additive * num_flows**2 / (dcqcn.alpha_s * capacity**2) * events**2
    probability = min(float(np.cbrt(cube)), marking.max_probability)
    span = marking.max_bytes - marking.min_bytes
    return FixedPoint(
        rate_bits_per_s=bits_per_s / num_flows,
        probability=probability,
        queue_bytes=marking.min_bytes + probability / marking.max_probability * span,
    )


class DcqcnSenders:
    """The state of senders, all of which move on together.

    Args:
        dcqcn: Their parameters.
        line_bytes_per_s: What the card of each sends at most.
        rates: The rates they start with; by default those of their cards.
    """

    def __init__(
        self,
        dcqcn: Dcqcn,
        line_bytes_per_s: FloatArray,
        rates: FloatArray | None = None,
    ) -> None:
        self._dcqcn = dcqcn
        self._line = line_bytes_per_s
        self.rates = (line_bytes_per_s if rates is None else rates).astype(float)
        self.targets = self.rates.copy()
        self.alphas = np.ones(len(self.rates))
        self._alpha_s = np.zeros(len(self.rates))
        # What the timer and the counter have seen since their last turn; their turns.
        self._seen = np.zeros((2, len(self.rates)))
        self._turns = np.zeros((2, len(self.rates)), np.int64)

    def notify(self, who: NDArray[np.bool_]) -> None:
        """Cuts the rates of those that got a notification.

        Args:
            who: Which of them did.
        """
        if not who.any():
            return
        dcqcn = self._dcqcn
        self.targets[who] = self.rates[who]
        cut = self.rates[who] * (1 - self.alphas[who] / 2)
        self.rates[who] = np.maximum(cut, dcqcn.least_bits_per_s / 8)
        self.alphas[who] += dcqcn.gain * (1 - self.alphas[who])
        self._alpha_s[who] = 0
        self._seen[:, who] = 0
        self._turns[:, who] = 0

    def advance(self, seconds: float, sent_bytes: FloatArray) -> None:
        """Lets time go by: alphas fall, and rates rise.

        Args:
            seconds: How much of it; less than any interval of the parameters.
            sent_bytes: What each has sent in it.
        """
        dcqcn = self._dcqcn
        self._alpha_s += seconds
        calm = self._alpha_s >= dcqcn.alpha_s
        self.alphas[calm] *= 1 - dcqcn.gain
        self._alpha_s[calm] -= dcqcn.alpha_s
        self._seen[0] += seconds
        self._seen[1] += sent_bytes
        for i, limit in enumerate((dcqcn.timer_s, dcqcn.counter_bytes)):
            turn = self._seen[i] >= limit
            if turn.any():
                self._seen[i, turn] -= limit
                self._turns[i, turn] += 1
                self._raise(turn)

    def _raise(self, who: NDArray[np.bool_]) -> None:
        dcqcn, turns = self._dcqcn, self._turns[:, who]
        beyond = turns.min(axis=0) - dcqcn.num_recoveries
        additive = turns.max(axis=0) >= dcqcn.num_recoveries
        raised = np.where(additive, dcqcn.additive_bits_per_s, 0.0)
        raised = np.where(beyond > 0, beyond * dcqcn.hyper_bits_per_s, raised)
        self.targets[who] = np.minimum(self.targets[who] + raised / 8, self._line[who])
        self.rates[who] = (self.targets[who] + self.rates[who]) / 2
