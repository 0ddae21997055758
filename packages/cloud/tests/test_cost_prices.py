"""Prices, read from files of several forms, and the bill of a run."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_cloud.cost import (
    PriceChange,
    PriceList,
    PriceListError,
    UnknownPriceError,
    bill_of,
    read_prices,
    shipped_prices,
)
from drivetrain_cloud.spot import Market
from drivetrain_cloud.spot.cost_observability import NodeUse

BEGIN = datetime(2026, 6, 1, tzinfo=UTC)
T0 = BEGIN.timestamp()
HEADER = "offer,market,per_hour,currency,valid_from,source\n"


def change(per_hour, hours=0, market=Market.SPOT, currency="USD", offer="a"):
    return PriceChange(
        offer=offer,
        market=market,
        per_hour=per_hour,
        currency=currency,
        valid_from=BEGIN + timedelta(hours=hours),
        source="a test",
    )


CHANGES = st.lists(
    st.tuples(st.integers(1, 200), st.floats(0, 50)),
    max_size=8,
    unique_by=lambda r: r[0],
).map(lambda rows: [change(3.0), *(change(price, hours) for hours, price in rows)])
TIMES = st.lists(st.floats(0, 900_000), min_size=3, max_size=3).map(sorted)


@given(CHANGES, TIMES)
def test_cost_adds_up_over_time(changes, times):
    prices = PriceList(reversed(changes))
    one, two, three = (T0 + time for time in times)
    parts = prices.cost("a", Market.SPOT, one, two)
    parts += prices.cost("a", Market.SPOT, two, three)
    whole = prices.cost("a", Market.SPOT, one, three)
    assert whole == pytest.approx(parts, rel=1e-9, abs=1e-6)
    assert whole >= 0


@given(CHANGES, TIMES, st.floats(0, 5))
def test_cost_grows_with_the_price(changes, times, more):
    dearer = [replace(c, per_hour=c.per_hour + more) for c in changes]
    span = Market.SPOT, T0 + times[0], T0 + times[2]
    low, high = PriceList(changes).cost("a", *span), PriceList(dearer).cost("a", *span)
    assert high >= low * (1 - 1e-12)


def test_the_last_change_before_the_start_counts():
    prices = PriceList([change(1.0), change(2.0, 10), change(5.0, 20)])
    at = T0 + 12 * 3600
    assert prices.at("a", Market.SPOT, at).per_hour == 2.0
    assert prices.cost("a", Market.SPOT, at, at + 9 * 3600) == 8 * 2.0 + 5.0
    assert prices.cost("a", Market.SPOT, at, at) == 0.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([], "at least one"),
        ([change(1.0), change(2.0)], "two prices"),
        ([change(1.0), change(2.0, 1, currency="EUR")], "EUR, USD"),
    ],
)
def test_prices_that_contradict_each_other_are_refused(changes, words):
    with pytest.raises(PriceListError, match=words):
        PriceList(changes)


@pytest.mark.parametrize("per_hour", [-1.0, float("nan"), float("inf")])
def test_a_price_is_a_number_from_zero(per_hour):
    with pytest.raises(PriceListError, match="must be a number from 0"):
        change(per_hour)


def test_a_time_before_all_prices_and_a_kind_that_is_unknown():
    prices = PriceList([change(1.0)])
    with pytest.raises(UnknownPriceError, match="begin at"):
        prices.cost("a", Market.SPOT, T0 - 1, T0)
    with pytest.raises(UnknownPriceError, match="the list has a"):
        prices.cost("b", Market.SPOT, T0, T0)
    with pytest.raises(UnknownPriceError, match="no on-demand price"):
        prices.cost("a", Market.ON_DEMAND, T0, T0)
    with pytest.raises(ValueError, match="cannot be there"):
        prices.cost("a", Market.SPOT, T0 + 1, T0)


# ---- files ----


def written(tmp_path, text, name="prices.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_file_of_our_own(tmp_path):
    text = f"# mine\n{HEADER}\na, spot, 2.5, EUR, 2026-01-01T00:00:00Z, me\n"
    prices = read_prices(written(tmp_path, text))
    assert (prices.currency, prices.offers) == ("EUR", ("a",))
    assert prices.at("a", Market.SPOT, T0).per_hour == 2.5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "got nothing"),
        ("a,b\n1,2\n", ":1: expected the columns"),
        (HEADER, "at least one"),
        (HEADER + "a,spot,1\n", ":2: expected 6 cells, got 3"),
        (HEADER + "#\na,spot,-1,USD,2026-01-01T00:00:00Z,me\n", ":3: the price of a"),
        (HEADER + "a,spot,x,USD,2026-01-01T00:00:00Z,me\n", ":2: could not convert"),
        (HEADER + "a,free,1,USD,2026-01-01T00:00:00Z,me\n", ":2: 'free'"),
        (HEADER + "a,spot,1,usd,2026-01-01T00:00:00Z,me\n", ":2: expected a currency"),
        (HEADER + "a,spot,1,USD,yesterday,me\n", ":2: expected a time"),
        (HEADER + ",spot,1,USD,2026-01-01T00:00:00Z,me\n", ":2: a price must say"),
        (HEADER + "a,spot,1e300,USD,2026-01-01T00:00:00Z,me\n", "got 1e.300"),
        (HEADER + 'a,"sp\not",1,USD,2026-01-01T00:00:00Z,me\n', ":2: "),
        (HEADER + f"{'a' * 200_000},spot,1,USD,2026-01-01,me\n", ":2: field larger"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path, text, words):
    with pytest.raises(PriceListError, match=words):
        read_prices(written(tmp_path, text))


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(PriceListError, match="expected text"):
        read_prices(path)


WHEN = "2026-01-01T00:00:00Z"
SAID = {
    "aws/us-east-1a/p4d.24xlarge": {
        "SpotPriceHistory": [
            {
                "AvailabilityZone": "us-east-1a",
                "InstanceType": "p4d.24xlarge",
                "ProductDescription": "Linux/UNIX",
                "SpotPrice": "9.5",
                "Timestamp": WHEN,
            }
        ]
    },
    "azure/westeurope/Standard_ND96": {
        "Items": [
            {
                "armRegionName": "westeurope",
                "armSkuName": "Standard_ND96",
                "skuName": "ND96 Spot",
                "retailPrice": 9.5,
                "unitOfMeasure": "1 Hour",
                "currencyCode": "USD",
                "effectiveStartDate": WHEN,
                "type": "Consumption",
            },
            {
                "skuName": "ND96 Low Priority",
                "type": "Consumption",
                "unitOfMeasure": "1 Hour",
            },
        ]
    },
    "gcp/us-central1/A100": {
        "skus": [
            {
                "category": {"usageType": "Preemptible", "resourceGroup": "A100"},
                "serviceRegions": ["us-central1"],
                "pricingInfo": [
                    {
                        "effectiveTime": WHEN,
                        "pricingExpression": {
                            "tieredRates": [
                                {"unitPrice": {"units": "9", "nanos": 500_000_000}}
                            ]
                        },
                    }
                ],
            },
            {"category": {"usageType": "Commit1Yr"}},
        ]
    },
    "alibaba/cn-a/gn7": {
        "SpotPrices": {
            "SpotPriceType": [
                {
                    "ZoneId": "cn-a",
                    "InstanceType": "gn7",
                    "SpotPrice": 9.5,
                    "OriginPrice": 30,
                    "Timestamp": WHEN,
                }
            ]
        }
    },
}


@pytest.mark.parametrize("offer", SAID)
def test_what_clouds_say_of_prices(tmp_path, offer):
    path = written(tmp_path, json.dumps(SAID[offer]), "prices.json")
    prices = read_prices(path)
    assert prices.offers == (offer,)
    assert prices.at(offer, Market.SPOT, T0).per_hour == 9.5


def spot_price(price):
    entry = {"AvailabilityZone": "z", "InstanceType": "i", "Timestamp": "2026-01-01"}
    return {"SpotPriceHistory": [{**entry, "SpotPrice": price}]}


def sku(price):
    rates = {"tieredRates": [{"unitPrice": price}]}
    info = {"pricingExpression": rates, "effectiveTime": "2026-01-01"}
    category = {"usageType": "OnDemand", "resourceGroup": "g"}
    return {
        "skus": [{"category": category, "pricingInfo": [info], "serviceRegions": ["r"]}]
    }


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ([], "SpotPriceHistory"),
        ({"Items": 5}, "SpotPriceHistory"),
        ({"Items": [5]}, "entry 0: expected an object"),
        ({"SpotPriceHistory": [{}]}, "entry 0: something is missing"),
        ({"skus": [{"category": 5}]}, "entry 0: something is missing"),
        (sku({"units": "x"}), "entry 0: something is missing"),
        (sku({"nanos": 10**400}), "entry 0: something is missing"),
        (sku("x"), "entry 0: something is missing"),
        (spot_price(10**400), "entry 0: int too large"),
        (spot_price(True), "entry 0: expected a price, got True"),
    ],
)
def test_an_answer_of_no_cloud(tmp_path, said, words):
    with pytest.raises(PriceListError, match=words):
        read_prices(written(tmp_path, json.dumps(said), "prices.json"))


def test_a_file_that_is_no_json(tmp_path):
    with pytest.raises(PriceListError, match="expected JSON"):
        read_prices(written(tmp_path, "{", "prices.json"))


# ---- the bill ----


def use(begin_h, end_h, market=Market.SPOT, offer="example/zone-a/gpu-8"):
    end_s = None if end_h is None else T0 + 3600 * end_h
    return NodeUse(
        node="n", market=market, offer=offer, begin_s=T0 + 3600 * begin_h, end_s=end_s
    )


def billed(*uses, samples=7200.0, **fields):
    terms = {"reference_speed": 1.0, "reference_nodes": 2, "now": T0 + 3600 * 5}
    return bill_of(uses, shipped_prices(), samples=samples, **{**terms, **fields})


def test_a_bill_counts_nodes_by_what_they_were():
    bill = billed(use(0, 2), use(1, None), use(0, 1, Market.ON_DEMAND))
    assert bill.cost == pytest.approx(2 * 9.6 + 4 * 9.6 + 32.0)
    assert bill.hours(Market.SPOT) == 6.0
    assert bill.reference_cost == pytest.approx(2 * 2 * 32.0)
    assert bill.per_sample == pytest.approx(bill.cost / 7200)
    assert bill.saving == pytest.approx(1 - bill.cost / 128)


def test_waste_is_paid_for():
    useful, wasteful = billed(use(0, 2)), billed(use(0, 2), use(2, 4))
    assert wasteful.per_sample == 2 * useful.per_sample
    assert wasteful.saving < useful.saving


def test_a_run_without_a_sample_has_saved_nothing():
    bill = billed(use(0, 1), samples=0.0)
    assert bill.per_sample == float("inf")
    assert bill.saving != bill.saving


def test_a_reference_that_is_none_is_refused():
    with pytest.raises(ValueError, match="positive speed"):
        billed(use(0, 1), reference_speed=0.0)


def test_nodes_that_do_not_say_what_they_are_are_what_the_run_was():
    assert billed(use(0, 1, offer=""), offer="example/zone-a/gpu-1").cost == 1.2
    with pytest.raises(UnknownPriceError):
        billed(use(0, 1, offer=""))
