"""Reads prices: our own CSV, and the answers of clouds that a user has saved."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_cloud.cost.money import PriceChange, PriceList, PriceListError
from drivetrain_cloud.cost.table_file import read_rows, read_text
from drivetrain_cloud.notices.sighting import BadAnswerError, wall_time
from drivetrain_cloud.spot.capacity import Market

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator
    from datetime import datetime

COLUMNS = ("offer", "market", "per_hour", "currency", "valid_from", "source")
"""The columns of a file of prices."""


def shipped_prices() -> PriceList:
    """Returns the prices that come with the package: an example, to be replaced.

    Example:
        >>> shipped_prices().currency
        'USD'
    """
    text = resources.files(__package__).joinpath("prices/example.csv").read_text()
    return PriceList(_rows(text, "example.csv"))


def read_prices(
    path: str | os.PathLike[str], *more: str | os.PathLike[str]
) -> PriceList:
    """Reads a list of prices.

    Args:
        path: A CSV with `COLUMNS`, in which lines that begin with # are for people; or
            a JSON file with what `aws ec2 describe-spot-price-history`,
            `aliyun ecs DescribeSpotPriceHistory`, Azure's retail prices, or a list of
            Google Cloud's SKUs say.
        more: Further files, as clouds say only what spot nodes cost.

    Raises:
        PriceListError: It is none of these, with the line or entry that is wrong.
        OSError: It cannot be read.
    """
    if more:
        lists = [read_prices(one) for one in (path, *more)]
        return PriceList(change for one in lists for change in one.changes)
    path = Path(path)
    text = read_text(path, PriceListError)
    if path.suffix.lower() != ".json":
        return PriceList(_rows(text, str(path)))
    try:
        said = json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"{path}: expected JSON: {error}"
        raise PriceListError(message) from None
    return PriceList(_of_cloud(said, str(path)))


def _rows(text: str, where: str) -> Iterator[PriceChange]:
    for at, cells in read_rows(text, where, COLUMNS, PriceListError):
        if len(cells) != len(COLUMNS):
            message = f"{at}: expected {len(COLUMNS)} cells, got {len(cells)}"
            raise PriceListError(message)
        offer, market, per_hour, currency, valid_from, source = cells
        yield _change(at, offer, market, per_hour, currency, valid_from, source)


def _change(
    at: str,
    offer: Any,
    market: Any,
    per_hour: Any,
    currency: Any,
    valid_from: Any,
    source: str,
) -> PriceChange:
    try:
        if isinstance(per_hour, bool):
            message = f"expected a price, got {per_hour}"
            raise PriceListError(message)
        return PriceChange(
            offer=str(offer),
            market=Market(market),
            per_hour=float(per_hour),
            currency=str(currency),
            valid_from=_time(valid_from),
            source=source,
        )
    except (ValueError, TypeError, OverflowError, BadAnswerError) as error:
        message = f"{at}: {error}"
        raise PriceListError(message) from None


def _time(text: Any) -> datetime:
    if not isinstance(text, str):
        message = f"expected a time, got {text!r:.80}"
        raise BadAnswerError(message)
    return wall_time(text)


# ---- what clouds say ----


def _of_cloud(said: Any, where: str) -> Iterator[PriceChange]:
    if isinstance(said, dict):
        aliyun = said.get("SpotPrices")
        shapes: tuple[tuple[Any, Callable[[Any, str], PriceChange | None]], ...] = (
            (said.get("SpotPriceHistory"), _aws),
            (said.get("Items"), _azure),
            (said.get("skus"), _google),
            (
                aliyun.get("SpotPriceType") if isinstance(aliyun, dict) else None,
                _alibaba,
            ),
        )
        for entries, read in shapes:
            if isinstance(entries, list):
                yield from _entries(entries, read, where)
                return
    message = (
        f"{where}: expected an object with SpotPriceHistory (AWS), Items (Azure), skus "
        "(Google Cloud) or SpotPrices (Alibaba Cloud)"
    )
    raise PriceListError(message)


def _entries(
    entries: list[Any], read: Callable[[Any, str], PriceChange | None], where: str
) -> Iterator[PriceChange]:
    for number, entry in enumerate(entries):
        at = f"{where}: entry {number}"
        if not isinstance(entry, dict):
            message = f"{at}: expected an object, got {entry!r:.80}"
            raise PriceListError(message)
        try:
            change = read(entry, at)
        except PriceListError:
            raise
        except (
            LookupError,
            TypeError,
            ValueError,
            ArithmeticError,
            AttributeError,
        ) as error:
            message = f"{at}: something is missing or of another form: {error!r}"
            raise PriceListError(message) from None
        if change is not None:
            yield change


def _aws(entry: Any, at: str) -> PriceChange:
    zone, kind = entry["AvailabilityZone"], entry["InstanceType"]
    return _change(
        at,
        f"aws/{zone}/{kind}",
        Market.SPOT,
        entry["SpotPrice"],
        "USD",
        entry["Timestamp"],
        "AWS DescribeSpotPriceHistory",
    )


def _alibaba(entry: Any, at: str) -> PriceChange:
    zone, kind = entry["ZoneId"], entry["InstanceType"]
    return _change(
        at,
        f"alibaba/{zone}/{kind}",
        Market.SPOT,
        entry["SpotPrice"],
        entry.get("Currency", "CNY"),
        entry["Timestamp"],
        "Alibaba Cloud DescribeSpotPriceHistory",
    )


def _azure(entry: Any, at: str) -> PriceChange | None:
    name = entry["skuName"]
    # Neither is a node that anybody can have for an hour.
    if entry.get("type") != "Consumption" or "Low Priority" in name:
        return None
    if entry["unitOfMeasure"] != "1 Hour":
        return None
    return _change(
        at,
        f"azure/{entry['armRegionName']}/{entry['armSkuName']}",
        Market.SPOT if "Spot" in name else Market.ON_DEMAND,
        entry["retailPrice"],
        entry["currencyCode"],
        entry["effectiveStartDate"],
        "Azure retail prices",
    )


def _google(entry: Any, at: str) -> PriceChange | None:
    usage = entry["category"]["usageType"]
    if usage not in {"Preemptible", "OnDemand"}:
        return None
    info = entry["pricingInfo"][-1]
    price = info["pricingExpression"]["tieredRates"][-1]["unitPrice"]
    per_hour = float(price.get("units", 0)) + float(price.get("nanos", 0)) / 1e9
    region = entry["serviceRegions"][0]
    return _change(
        at,
        f"gcp/{region}/{entry['category']['resourceGroup']}",
        Market.SPOT if usage == "Preemptible" else Market.ON_DEMAND,
        per_hour,
        price.get("currencyCode", "USD"),
        info["effectiveTime"],
        "Google Cloud billing catalog",
    )
