"""Max-min fair rates: what makes them fair, and times by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_fabric.network import (
    Clos,
    Ecmp,
    FabricError,
    Flows,
    Phase,
    Tier,
    collective,
    drain,
    max_min,
    route,
    simulate,
)


@st.composite
def networks(draw):
    """Draws links and flows over one to three of them."""
    num = draw(st.integers(1, 8))
    capacity = draw(st.lists(st.integers(1, 50), min_size=num, max_size=num))
    path = st.lists(
        st.integers(0, num - 1), min_size=1, max_size=min(3, num), unique=True
    )
    paths = draw(st.lists(path, min_size=1, max_size=30))
    links = np.array([[*each, *[num] * (3 - len(each))] for each in paths])
    return links, np.array(capacity, float)


def plain_max_min(links, capacity):
    """Fills all flows at the same pace, and stops those on a link that is full."""
    num, rates = len(capacity), np.zeros(len(links))
    going = np.ones(len(links), bool)
    left = capacity.copy()
    while going.any():
        counts = np.bincount(links[going].ravel(), minlength=num + 1)[:num]
        pace = min(left[i] / counts[i] for i in range(num) if counts[i])
        rates[going] += pace
        left -= pace * counts
        full = {i for i in range(num) if counts[i] and left[i] <= 1e-9 * capacity[i]}
        going &= ~np.array([bool(full & set(row.tolist())) for row in links])
    return rates


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(networks())
def test_rates_are_max_min_fair(network):
    links, capacity = network
    rates = max_min(links, capacity)
    num = len(capacity)
    loads = np.bincount(links.ravel(), np.repeat(rates, 3), minlength=num + 1)[:num]
    assert (loads <= capacity * (1 + 1e-9)).all()
    for row, rate in zip(links, rates, strict=True):
        bottlenecks = [
            link
            for link in row
            if link < num
            and loads[link] >= capacity[link] * (1 - 1e-9)
            and rate >= rates[(links == link).any(axis=1)].max() * (1 - 1e-9)
        ]
        assert bottlenecks


@settings(max_examples=100, deadline=None)
@given(networks())
def test_rates_are_those_of_progressive_filling(network):
    links, capacity = network
    expected = plain_max_min(links, capacity)
    assert max_min(links, capacity) == pytest.approx(expected, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(networks(), st.integers(0, 1000))
def test_everything_arrives(network, seed):
    links, capacity = network
    sizes = np.random.default_rng(seed).integers(0, 100, len(links)).astype(float)
    for tolerance in (0.0, 0.05):
        ends = drain(links, capacity, sizes, tolerance=tolerance)
        assert ((ends > 0) == (sizes > 0)).all()
        # No link carries more than it can until its last flow has ended.
        for link, speed in enumerate(capacity):
            on = (links == link).any(axis=1)
            if on.any():
                assert sizes[on].sum() <= speed * ends[on].max() * (1 + 1e-6)


def test_flows_on_one_link_end_as_equal_shares_have_it():
    """With sizes 1, 2 and 4 on a link of 1: at 3, then two share 2 more, then one."""
    links, capacity = np.array([[0], [0], [0]]), np.array([1.0])
    sizes = np.array([4.0, 1.0, 2.0])
    assert drain(links, capacity, sizes).tolist() == pytest.approx([7, 3, 5])
    # Who ends within the tolerance leaves nothing to others until they all have.
    rough = drain(links, capacity, sizes, tolerance=1.0)
    assert rough.tolist() == pytest.approx([8, 3, 6])


def tiny(uplinks, gbps):
    """Four nodes with a card of 100 Gb/s each, two under each of two leaves."""
    leaf = Tier(downlinks=2, uplinks=uplinks, uplink_bits_per_s=gbps * 1e9)
    return Clos(
        num_nodes=4,
        nics_per_node=1,
        nic_bits_per_s=100e9,
        tiers=(leaf, Tier(downlinks=2)),
        latency_s=1e-3,
    )


def ring(order, size_bytes=1e9):
    phase = collective(
        "all-reduce", num_nodes=4, nics_per_node=1, size_bytes=size_bytes
    )
    flows = phase.flows.placed(np.array(order), 1)
    return Phase(name=phase.name, flows=flows)


def test_ring_on_two_leaves_by_hand():
    """Each link of the ring carries 1.5 GB: 0.12 s at 100 Gb/s, and 6 steps of 1 ms."""
    packed = simulate(tiny(1, 100), ring([0, 1, 2, 3]), ecmp=Ecmp())
    assert packed.seconds == pytest.approx(0.126)
    assert packed.slowdown == pytest.approx(1)
    # Across and back each time: two flows go up each leaf through the one port.
    crossed = simulate(tiny(1, 100), ring([0, 2, 1, 3]), ecmp=Ecmp())
    assert crossed.seconds == pytest.approx(0.246)
    assert crossed.slowest_bits_per_s == pytest.approx(50e9)
    split = simulate(tiny(1, 200), ring([0, 2, 1, 3]), ecmp=Ecmp())
    assert split.seconds == pytest.approx(0.126)


@pytest.mark.parametrize("seed", range(8))
def test_two_flows_on_two_ports_meet_or_do_not(seed):
    clos, phase, ecmp = tiny(2, 100), ring([0, 2, 1, 3]), Ecmp(seed=seed)
    links = route(clos, phase.flows, ecmp=ecmp).links
    ups = links[:, 1]
    meet = len(set(ups.tolist())) < len(ups)
    found = simulate(clos, phase, ecmp=ecmp)
    downs = links[:, -2]
    meet = meet or len(set(downs.tolist())) < len(downs)
    assert found.slowdown == pytest.approx(2 if meet else 1, rel=0.1)


def test_more_queue_pairs_spread_what_meets():
    """Averaged over seeds, a connection of many queue pairs loses less."""
    leaf = Tier(downlinks=32, uplinks=32, uplink_bits_per_s=100e9)
    clos = Clos(
        num_nodes=64,
        nics_per_node=1,
        nic_bits_per_s=100e9,
        tiers=(leaf, Tier(downlinks=2)),
    )
    order = np.arange(64).reshape(2, 32).T.ravel()
    phase = collective("all-reduce", num_nodes=64, nics_per_node=1, size_bytes=1e9)
    phase = Phase(name="ring", flows=phase.flows.placed(order, 1))
    mean = {
        num: np.mean(
            [
                simulate(
                    clos, phase, ecmp=Ecmp(seed=seed), num_queue_pairs=num
                ).slowdown
                for seed in range(10)
            ]
        )
        for num in (1, 4, 16)
    }
    assert mean[16] < mean[4] < mean[1]
    assert mean[1] > 2.5


def test_all_to_all_shares_what_others_leave():
    flows = Flows(
        source=np.array([0, 1]),
        target=np.array([2, 3]),
        size_bytes=np.array([1e9, 3e9]),
    )
    phase = Phase(name="both", flows=flows, is_paced=False)
    found = simulate(tiny(1, 100), phase, ecmp=Ecmp())
    # 50 Gb/s each for 0.16 s; then the second alone has 2 GB left.
    assert found.seconds == pytest.approx(0.32, rel=0.02)


def test_phase_without_flows_takes_its_latency():
    empty = np.zeros(0, np.int64)
    flows = Flows(source=empty, target=empty, size_bytes=np.zeros(0), num_steps=3)
    found = simulate(tiny(1, 100), Phase(name="none", flows=flows), ecmp=Ecmp())
    assert found.seconds == pytest.approx(3e-3)
    assert found.slowdown == 1


def test_flows_without_links_and_links_without_capacity_are_errors():
    with pytest.raises(FabricError, match="one link at least"):
        max_min(np.array([[1, 1]]), np.array([1.0]))
    with pytest.raises(FabricError, match="more than nothing, got -1"):
        max_min(np.array([[0]]), np.array([-1.0]))
