"""What training costs: prices, the bill of a run, traces of capacity, and strategies."""

from __future__ import annotations

from drivetrain_elastic.cost.bill import Bill, NodeCost, bill_of
from drivetrain_elastic.cost.money import (
    PriceChange,
    PriceList,
    PriceListError,
    UnknownPriceError,
)
from drivetrain_elastic.cost.price_files import read_prices, shipped_prices

__all__ = [
    "Bill",
    "NodeCost",
    "PriceChange",
    "PriceList",
    "PriceListError",
    "UnknownPriceError",
    "bill_of",
    "read_prices",
    "shipped_prices",
]
