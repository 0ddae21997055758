"""What a node costs over time: prices that hold from one change to the next."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from drivetrain_cloud.spot.capacity import Market
from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Iterable

# A node costs less in every currency; what is more is of another unit, or a mistake.
_MOST_PER_HOUR = 1e9


class PriceListError(ProgramError):
    """Prices contradict each other, or are none."""


class UnknownPriceError(ProgramError):
    """A list has no price for a node at some time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceChange:
    """A price, from a moment on.

    Args:
        offer: What is sold: provider, zone and instance, as in
            `aws/us-east-1a/p4d.24xlarge`.
        market: On what terms.
        per_hour: Of one node, billed by the second.
        currency: Its code of three letters.
        valid_from: Since when, with a time zone.
        source: Who says so.

    Raises:
        PriceListError: It is not a price, or has no time zone.
    """

    offer: str
    market: Market
    per_hour: float
    currency: str
    valid_from: datetime
    source: str

    def __post_init__(self) -> None:
        """Checks the fields."""
        if not 0 <= self.per_hour <= _MOST_PER_HOUR:
            message = (
                f"the price of {self.offer} must be a number from 0 to "
                f"{_MOST_PER_HOUR:g} an hour, got {self.per_hour:g}"
            )
            raise PriceListError(message)
        code = self.currency
        if len(code) != 3 or not code.isascii() or not code.isupper():
            message = f"expected a currency such as USD, got {code!r}"
            raise PriceListError(message)
        if self.valid_from.tzinfo is None:
            message = f"the time {self.valid_from} of a price must have a time zone"
            raise PriceListError(message)
        if not self.offer:
            message = "a price must say of what it is"
            raise PriceListError(message)


class PriceList:
    """Prices of several offers, all in one currency.

    Args:
        changes: In any order; of one offer and market, none at the same time.

    Raises:
        PriceListError: There are none, they are of several currencies, or two of them
            begin at once.

    Example:
        >>> from datetime import UTC, datetime
        >>> from drivetrain_cloud.spot import Market
        >>> def change(per_hour, hour):
        ...     return PriceChange(offer="a", market=Market.SPOT, per_hour=per_hour,
        ...         currency="USD", source="an example",
        ...         valid_from=datetime(2026, 1, 5, hour, tzinfo=UTC))
        >>> prices = PriceList([change(2.0, 0), change(4.0, 6)])
        >>> begin = datetime(2026, 1, 5, 5, tzinfo=UTC).timestamp()
        >>> prices.cost("a", Market.SPOT, begin, begin + 2 * 3600)
        6.0
    """

    def __init__(self, changes: Iterable[PriceChange]) -> None:
        """Sorts and checks them."""
        found: dict[tuple[str, Market], list[PriceChange]] = defaultdict(list)
        for change in changes:
            found[change.offer, change.market].append(change)
        if not found:
            message = "a list of prices needs at least one"
            raise PriceListError(message)
        currencies = {c.currency for rows in found.values() for c in rows}
        if len(currencies) > 1:
            message = (
                "all prices of a list must be of one currency, got "
                f"{', '.join(sorted(currencies))}"
            )
            raise PriceListError(message)
        self.currency = currencies.pop()
        self._changes = dict(found)
        self._begins: dict[tuple[str, Market], list[float]] = {}
        for key, rows in found.items():
            rows.sort(key=lambda change: change.valid_from)
            begins = [change.valid_from.timestamp() for change in rows]
            for one, other, row in zip(begins, begins[1:], rows, strict=False):
                if one == other:
                    message = (
                        f"{key[0]} ({key[1]}) has two prices from {row.valid_from} on"
                    )
                    raise PriceListError(message)
            self._begins[key] = begins

    @property
    def offers(self) -> tuple[str, ...]:
        """Returns what is sold, sorted."""
        return tuple(sorted({offer for offer, _ in self._changes}))

    @property
    def changes(self) -> tuple[PriceChange, ...]:
        """Returns all changes, those of one offer and market in order."""
        return tuple(change for rows in self._changes.values() for change in rows)

    def begin(self, offer: str) -> float:
        """Returns since when an offer has prices on all terms, in seconds since 1970.

        Args:
            offer: Of what.

        Raises:
            UnknownPriceError: It has none on some terms.
        """
        for market in Market:
            self.at(offer, market, math.inf)
        return max(self._begins[offer, market][0] for market in Market)

    def scaled(self, market: Market, factor: float) -> PriceList:
        """Returns a list in which some prices are other ones.

        Args:
            market: Prices on these terms.
            factor: By what they are multiplied.

        Raises:
            PriceListError: The factor is not a number from 0.
        """
        return PriceList(
            replace(
                change,
                per_hour=change.per_hour * factor,
                source=f"{change.source}, times {factor:g}",
            )
            if change.market == market
            else change
            for change in self.changes
        )

    def at(self, offer: str, market: Market, time: float) -> PriceChange:
        """Returns the price that holds at a moment.

        Args:
            offer: Of what.
            market: On what terms.
            time: Seconds since 1970.

        Raises:
            UnknownPriceError: There is none as yet, or no such offer.
        """
        key = offer, market
        if key not in self._changes:
            message = (
                f"there is no {market} price of {offer!r}; the list has "
                f"{', '.join(self.offers)}"
            )
            raise UnknownPriceError(message)
        index = bisect.bisect_right(self._begins[key], time) - 1
        if index < 0:
            first = self._changes[key][0].valid_from
            message = (
                f"the prices of {offer!r} ({market}) begin at {first}, after "
                f"{datetime.fromtimestamp(time, UTC)}"
            )
            raise UnknownPriceError(message)
        return self._changes[key][index]

    def cost(self, offer: str, market: Market, begin: float, end: float) -> float:
        """Returns what a node costs from one moment to another, by the second.

        Args:
            offer: Of what.
            market: On what terms.
            begin: Seconds since 1970.
            end: The same, not before.

        Raises:
            UnknownPriceError: There is no price for some of the time.
            ValueError: It ends before it begins.
        """
        if not begin <= end:
            message = f"a node cannot be there from {begin} to {end}"
            raise ValueError(message)
        self.at(offer, market, begin)
        begins = self._begins[offer, market]
        rows = self._changes[offer, market]
        first = bisect.bisect_right(begins, begin) - 1
        last = max(first, bisect.bisect_left(begins, end) - 1)
        total = 0.0
        for index in range(first, last + 1):
            left = max(begin, begins[index])
            right = end if index == last else begins[index + 1]
            total += rows[index].per_hour * (right - left) / 3600
        return total
