"""Hashing flows to ports: the hash itself, and how often flows meet."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_fabric.network import (
    Ecmp,
    FabricError,
    collision_probability,
    expected_largest_load,
    flow_overload_probability,
    overload_probability,
    simulated_overload,
)
from drivetrain_fabric.network._ecmp import crc32c, five_tuples, source_ports


def loads_of_all(num_flows, num_links):
    """Returns the loads of every way to put flows on links."""
    ways = itertools.product(range(num_links), repeat=num_flows)
    return np.array([np.bincount(w, minlength=num_links) for w in ways])


def test_crc32c_of_known_messages():
    # The examples of RFC 3720, B.4.
    for message, expected in (
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ):
        words = np.frombuffer(message, np.uint8)[None]
        assert crc32c(words)[0] == expected


def test_five_tuple_is_that_of_roce():
    words = five_tuples(np.array([258]), np.array([3]), np.array([0xC001]))
    assert words.tolist() == [[10, 0, 1, 2, 10, 0, 0, 3, 17, 0xC0, 1, 18, 183]]
    assert 18 * 256 + 183 == 4791


def test_queue_pairs_have_ports_of_their_own():
    pair = np.arange(1000)
    ports = source_ports(pair * 0 + 5, pair * 0 + 9, pair, 0)
    assert ports.min() >= 0xC000
    assert ports.max() <= 0xFFFF
    assert len(np.unique(ports)) > 950
    again = source_ports(pair * 0 + 5, pair * 0 + 9, pair, 1)
    assert (ports != again).mean() > 0.99


@settings(deadline=None)
@given(st.integers(0, 6), st.integers(1, 4), st.integers(0, 7))
def test_closed_forms_count_all_ways(num_flows, num_links, carried):
    loads = loads_of_all(num_flows, num_links).reshape(-1, num_links)
    largest = loads.max(axis=1)
    over = overload_probability(num_flows, num_links, carried)
    assert over == pytest.approx((largest > carried).mean(), abs=1e-12)
    two = collision_probability(num_flows, num_links)
    assert two == pytest.approx((largest > 1).mean(), abs=1e-12)
    mean = expected_largest_load(num_flows, num_links)
    assert mean == pytest.approx(largest.mean(), abs=1e-9)
    if num_flows:
        # Flow 0 is on the link that the first digit of a way names.
        ways = np.array(list(itertools.product(range(num_links), repeat=num_flows)))
        mine = loads[np.arange(len(ways)), ways[:, 0]]
        hit = flow_overload_probability(num_flows, num_links, carried)
        assert hit == pytest.approx((mine > carried).mean(), abs=1e-12)


def test_closed_forms_hold_for_many_flows():
    direct = 1 - math.prod(1 - i / 512 for i in range(24))
    assert collision_probability(24, 512) == pytest.approx(direct)
    assert collision_probability(513, 512) == 1
    assert overload_probability(4000, 2, 1999) == 1
    # With two links, no load is above 2100 if the first has 1900 to 2100.
    logs = [
        math.lgamma(4001) - math.lgamma(i + 1) - math.lgamma(4001 - i)
        for i in range(1900, 2101)
    ]
    within = sum(math.exp(each - 4000 * math.log(2)) for each in logs)
    assert overload_probability(4000, 2, 2100) == pytest.approx(1 - within, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["crc", "unseeded", "random"])
@pytest.mark.parametrize(("num_flows", "num_links"), [(8, 32), (4, 64), (12, 48)])
def test_simulated_collisions_are_those_of_the_closed_form(kind, num_flows, num_links):
    expected = collision_probability(num_flows, num_links)
    ecmp = Ecmp(kind=kind, seed=3)
    found = simulated_overload(num_flows, num_links, 1, ecmp=ecmp, num_samples=200_000)
    # Within 1%, and within four standard deviations.
    deviation = math.sqrt(expected * (1 - expected) / 200_000)
    assert abs(found - expected) < max(0.01 * expected, 4 * deviation)


def test_simulated_overload_is_that_of_the_closed_form():
    expected = overload_probability(32, 32, 3)
    found = simulated_overload(32, 32, 3, ecmp=Ecmp(), num_samples=40_000)
    assert found == pytest.approx(expected, rel=0.02)


def test_switches_without_seeds_polarize():
    """What came through one port of a leaf leaves the next switch through few."""
    source = np.arange(4096)
    ports = source_ports(source, source + 5000, source, 0)
    spread = {}
    for kind in ("crc", "unseeded"):
        ecmp = Ecmp(kind=kind)
        digests = ecmp.digests(source, source + 5000, ports)
        first = ecmp.choose(digests, source * 0, 32)
        second = ecmp.choose(digests, source * 0 + 7, 32)
        spread[kind] = len(np.unique(second[first == 3]))
    assert spread["unseeded"] == 1
    assert spread["crc"] == 32


def test_loads_of_the_hash_are_even():
    source = np.arange(1 << 16)
    ecmp = Ecmp()
    digests = ecmp.digests(source, source + 70000, source * 0 + 0xC000)
    loads = np.bincount(ecmp.choose(digests, source * 0, 48), minlength=48)
    # Chi squared with 47 degrees of freedom: above 100 once in 100,000 hashes.
    expected = len(source) / 48
    assert ((loads - expected) ** 2 / expected).sum() < 100


@pytest.mark.parametrize(
    "call",
    [
        lambda: collision_probability(-1, 2),
        lambda: collision_probability(2, 0),
        lambda: overload_probability(2, 2, -1),
        lambda: simulated_overload(2, 2, 1, ecmp=Ecmp(), num_samples=0),
        lambda: Ecmp(kind="md5"),
    ],
    ids=range(5),
)
def test_numbers_that_make_no_sense_are_errors(call):
    with pytest.raises(FabricError, match="got"):
        call()
