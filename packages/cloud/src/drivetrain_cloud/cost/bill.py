"""What a run has cost, node by node, and what it has to show for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_cloud.spot.capacity import Market

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drivetrain_cloud.cost.money import PriceList
    from drivetrain_cloud.spot.cost_observability import NodeUse


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeCost:
    """What one node has cost.

    Args:
        use: When it was there, and on what terms.
        hours: For how long.
        cost: In the list's currency.
        on_demand_cost: What it would have cost on demand.
    """

    use: NodeUse
    hours: float
    cost: float
    on_demand_cost: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Bill:
    """What a run has cost.

    Args:
        nodes: Each of its nodes.
        currency: Of all costs.
        samples: Samples whose steps count.
        reference_cost: What as many samples cost on nodes on demand that nothing
            happens to, at the speed of the reference.
    """

    nodes: tuple[NodeCost, ...]
    currency: str
    samples: float
    reference_cost: float

    @property
    def cost(self) -> float:
        """Returns what all nodes have cost, waiting and lost work included."""
        return sum(node.cost for node in self.nodes)

    @property
    def per_sample(self) -> float:
        """Returns the cost of a sample that counts; infinite without any."""
        return self.cost / self.samples if self.samples > 0 else float("inf")

    @property
    def saving(self) -> float:
        """Returns the share of the reference's cost that was saved; may be negative."""
        if self.reference_cost <= 0:
            return float("nan")
        return 1 - self.cost / self.reference_cost

    def hours(self, market: Market) -> float:
        """Returns how many hours of nodes were bought on some terms."""
        return sum(node.hours for node in self.nodes if node.use.market == market)


def bill_of(
    uses: Iterable[NodeUse],
    prices: PriceList,
    *,
    now: float,
    samples: float,
    reference_speed: float,
    reference_nodes: int,
    offer: str = "",
) -> Bill:
    """Returns what a run has cost.

    The reference is the same job on nodes on demand that nothing happens to: it needs
    `samples / reference_speed` seconds of `reference_nodes`.

    Args:
        uses: When which node was there; times are seconds since 1970.
        prices: What they cost.
        now: Until when nodes cost that are still there, in seconds since 1970.
        samples: Samples whose steps count.
        reference_speed: Samples a second of the reference.
        reference_nodes: Its nodes.
        offer: What nodes are that do not say it.

    Raises:
        UnknownPriceError: A node has no price, or the reference has none.
        ValueError: A speed, or a number of nodes, is not positive.

    Example:
        >>> from datetime import UTC, datetime
        >>> from drivetrain_cloud.cost import shipped_prices
        >>> from drivetrain_cloud.spot import Market
        >>> from drivetrain_cloud.spot.cost_observability import NodeUse
        >>> begin = datetime(2026, 6, 1, tzinfo=UTC).timestamp()
        >>> use = NodeUse(node="a", market=Market.SPOT, begin_s=begin,
        ...               end_s=begin + 3600, offer="example/zone-a/gpu-8")
        >>> bill = bill_of([use], shipped_prices(), now=begin + 9000, samples=3600.0,
        ...                reference_speed=1.0, reference_nodes=1)
        >>> bill.cost, round(bill.saving, 3)
        (9.6, 0.7)
    """
    if not (reference_speed > 0 and reference_nodes > 0):
        message = (
            "the reference needs a positive speed and number of nodes, got "
            f"{reference_speed} and {reference_nodes}"
        )
        raise ValueError(message)
    nodes, begins = [], []
    for use in uses:
        end = now if use.end_s is None else use.end_s
        name = use.offer or offer
        begins.append((use.begin_s, name))
        nodes.append(
            NodeCost(
                use=use,
                hours=(end - use.begin_s) / 3600,
                cost=prices.cost(name, use.market, use.begin_s, end),
                on_demand_cost=prices.cost(name, Market.ON_DEMAND, use.begin_s, end),
            )
        )
    reference_cost = 0.0
    if begins:
        begin, name = min(begins)
        seconds = samples / reference_speed
        one = prices.cost(name, Market.ON_DEMAND, begin, begin + seconds)
        reference_cost = one * reference_nodes
    return Bill(
        nodes=tuple(nodes),
        currency=prices.currency,
        samples=samples,
        reference_cost=reference_cost,
    )
