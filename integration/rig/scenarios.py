"""The scenarios: a literal table of hosts, links, models and how long they compute."""

from __future__ import annotations

from dataclasses import dataclass

from rig import bounds
from rig.model_shapes import SHAPES
from rig.shape import Link

_ORDERS = {"contiguous": bounds.contiguous, "round-robin": bounds.round_robin}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """A job on a network.

    Args:
        num_hosts: How many hosts there are.
        ranks_per_host: How many ranks are on each.
        link: The link of each host.
        model: The name of the model's shape.
        compute_s: How long a step computes, forward and backward.
        order: How ranks are dealt to hosts: `contiguous` or `round-robin`.
    """

    num_hosts: int
    ranks_per_host: int
    link: Link
    model: str
    compute_s: float
    order: str = "contiguous"

    @property
    def hosts(self):
        """The host of each rank."""
        return _ORDERS[self.order](self.num_hosts, self.ranks_per_host)

    @property
    def shape(self):
        """The model's shape."""
        return SHAPES[self.model]

    @property
    def name(self):
        """What the scenario is called in tables and on the command line."""
        link = self.link
        parts = [
            f"{self.num_hosts}x{self.ranks_per_host}",
            f"{link.rate_mbit_per_s:g}mbit",
            f"rtt{link.rtt_ms:g}" if link.rtt_ms else "",
            f"cap{link.flow_cap_mbit_per_s:g}" if link.flow_cap_mbit_per_s else "",
            "shuffled" if self.order != "contiguous" else "",
            self.model,
        ]
        return "-".join(filter(None, parts))

    @property
    def ring_per_compute(self):
        """Seconds of a flat ring over all gradients for each second of computing."""
        cap = self.link.flow_cap_mbit_per_s
        ring = bounds.flat_ring(
            self.shape.size_bytes,
            self.hosts,
            self.link.bytes_per_s,
            flow_bytes_per_s=cap * 125e3 if cap else float("inf"),
            delay_s=self.link.rtt_ms / 2e3,
        )
        return ring / self.compute_s

    def step_bound_s(self, bytes_per_s, rtt_s):
        """What no step is faster than, at a goodput and round trip that are given."""
        return bounds.step(
            self.shape.gradients(self.compute_s),
            self.compute_s,
            self.num_hosts,
            bytes_per_s,
            delay_s=rtt_s / 2,
        )


def _scenario(num_hosts, num_ranks, rate, model, compute_s, rtt=0, cap=None, **options):
    link = Link(rate_mbit_per_s=rate, rtt_ms=rtt, flow_cap_mbit_per_s=cap)
    return Scenario(
        num_hosts=num_hosts,
        ranks_per_host=num_ranks,
        link=link,
        model=model,
        compute_s=compute_s,
        **options,
    )


_ALL = [
    _scenario(2, 4, 1000, "even", 0.6),
    _scenario(2, 4, 400, "even", 1.2),
    _scenario(2, 4, 200, "many", 1.2),
    _scenario(2, 4, 1000, "many", 0.6, order="round-robin"),
    _scenario(2, 4, 800, "many", 0.8, cap=200),
    _scenario(2, 4, 400, "embedding", 0.9, rtt=10),
    _scenario(4, 2, 400, "many", 0.6),
    _scenario(4, 2, 800, "embedding", 0.5),
    _scenario(4, 2, 1000, "even", 0.6, rtt=5),
    _scenario(4, 2, 600, "many", 0.5, rtt=20),
    _scenario(8, 1, 1000, "even", 0.6),
    _scenario(8, 1, 400, "many", 0.6, rtt=5),
    _scenario(8, 1, 1000, "many", 0.4, rtt=10),
    _scenario(8, 1, 800, "embedding", 1.2, rtt=5, cap=200),
]
SCENARIOS = {scenario.name: scenario for scenario in _ALL}
