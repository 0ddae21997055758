"""Fabrics: their shape, what does not connect, and the ways through them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_core.services import ClusterSpec
from drivetrain_fabric.network import (
    Clos,
    Ecmp,
    FabricError,
    FailedLink,
    Flows,
    Tier,
    clos_of,
    route,
    without_split,
)

SPEC = """\
drivetrain_cluster: 1
name: megascale
nodes:
  - name: gpu
    count: 1536
    devices: {kind: A100, count: 8, memory: 80GiB}
    nics: {count: 8, bandwidth: 200Gb/s, latency: 5us, rails: true}
    switch: tor
switches:
  - {name: tor, uplink: spine, downlinks: 64, uplinks: 32, uplink_bandwidth: 400Gb/s}
  - {name: spine, uplink: core, downlinks: 32, uplinks: 32, uplink_bandwidth: 400Gb/s}
  - {name: core, downlinks: 64}
"""


def two_tiers(num_nodes=4, *, nics=1, rails=True, down=2, up=2, gbps=100, spine=8):
    leaf = Tier(downlinks=down, uplinks=up, uplink_bits_per_s=gbps * 1e9)
    return Clos(
        num_nodes=num_nodes,
        nics_per_node=nics,
        nic_bits_per_s=100e9,
        rails=rails,
        tiers=(leaf, Tier(downlinks=spine)),
    )


def three_tiers(num_nodes=16, **options):
    leaf = Tier(downlinks=2, uplinks=2, uplink_bits_per_s=200e9)
    spine = Tier(downlinks=2, uplinks=2, uplink_bits_per_s=200e9)
    return Clos(
        num_nodes=num_nodes,
        nics_per_node=1,
        nic_bits_per_s=100e9,
        tiers=(leaf, spine, Tier(downlinks=8)),
        **options,
    )


def flows(*pairs):
    source, target = np.array(pairs).T
    return Flows(source=source, target=target, size_bytes=np.ones(len(pairs)))


def test_shape_of_megascale():
    clos = clos_of(ClusterSpec.from_yaml(SPEC))
    assert (clos.num_nics, clos.num_leaves, clos.num_racks) == (12288, 192, 24)
    assert (clos.num_pods, clos.racks_per_pod, clos.num_spines) == (6, 4, 192)
    assert (clos.oversubscription, clos.uplink_ratio) == (1.0, 2.0)
    assert clos.num_links == 2 * (12288 + 192 * 32 + 192 * 32)
    assert clos.latency_s == 5e-6


def test_rails_hang_on_leaves_of_their_own():
    rails = two_tiers(4, nics=2, down=2)
    assert rails.leaf_of(np.arange(8)).tolist() == [0, 1, 0, 1, 2, 3, 2, 3]
    together = two_tiers(4, nics=2, down=4, rails=False)
    assert together.leaf_of(np.arange(8)).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_links_of_a_tiny_fabric_by_hand():
    clos = two_tiers(4)
    # Cards up are links 0 to 3, cards down 4 to 7, leaves up 8 to 11, down 12 to 15.
    near, far = route(clos, flows((0, 1), (0, 3)), ecmp=Ecmp()).links
    assert near.tolist() == [0, 16, 16, 5]
    port = far[1] - 8
    assert port in (0, 1)
    assert far.tolist() == [0, 8 + port, 12 + 2 + port, 7]


def test_links_of_three_tiers_meet_in_the_same_switches():
    clos = three_tiers()
    first = clos.offsets
    every = flows(*((i, j) for i in range(16) for j in range(16) if i != j))
    links = route(clos, every, ecmp=Ecmp()).links
    assert (clos.num_leaves, clos.num_pods, clos.num_spines) == (8, 4, 8)
    num_hops = (links < clos.num_links).sum(axis=1)
    apart = (every.source[:, None] ^ every.target[:, None]) >> np.arange(4)
    # Nodes differ in the last bit within a rack, in the second last within a pod.
    expected = np.where((apart[:, 2] > 0) | (apart[:, 3] > 0), 6, 4)
    expected[(apart[:, 1] == 0) & (expected == 4)] = 2
    assert num_hops.tolist() == expected.tolist()
    far = links[num_hops == 6]
    leaf_up, leaf_down = far[:, 1] - first[2], far[:, 4] - first[3]
    spine_up, spine_down = far[:, 2] - first[4], far[:, 3] - first[5]
    # The spine that a leaf's port leads to is the one whose port up is used.
    assert (leaf_up // 4 * 2 + leaf_up % 2 == spine_up // 2).all()
    assert (leaf_down // 4 * 2 + leaf_down % 2 == spine_down // 2).all()
    # A core hangs on the same port of the same spine of each pod.
    assert (spine_up % 4 == spine_down % 4).all()


def has_way(failed, source, target):
    """Returns whether a way is left in the fabric of three tiers, by trying all."""
    cut = {(link.tier, link.switch, link.port) for link in failed}
    leaves, pods = (source // 2, target // 2), (source // 4, target // 4)
    if leaves[0] == leaves[1]:
        return True
    ports = [u for u in (0, 1) if not {(0, leaf, u) for leaf in leaves} & cut]
    if pods[0] == pods[1]:
        return bool(ports)
    return any(
        not {(1, pod * 2 + u, v) for pod in pods} & cut for u in ports for v in (0, 1)
    )


@settings(max_examples=15, deadline=None)
@given(
    num_failed=st.integers(1, 12),
    seed=st.integers(0, 1000),
    kind=st.sampled_from(["crc", "unseeded", "random"]),
)
def test_flows_find_the_ways_that_failed_links_leave(num_failed, seed, kind):
    generator = np.random.default_rng(seed)
    failed = tuple(
        FailedLink(
            tier=int(generator.integers(2)),
            switch=int(generator.integers(8)),
            port=int(generator.integers(2)),
        )
        for _ in range(num_failed)
    )
    clos = three_tiers(failed=failed)
    down = set()
    for link in failed:
        first = clos.offsets[2 + 2 * link.tier], clos.offsets[3 + 2 * link.tier]
        down |= {at + link.switch * 2 + link.port for at in first}
    ecmp = Ecmp(kind=kind, seed=seed)
    for source in range(16):
        for target in set(range(16)) - {source}:
            one = flows((source, target))
            if has_way(failed, source, target):
                assert not down & set(route(clos, one, ecmp=ecmp).links[0].tolist())
            else:
                with pytest.raises(FabricError, match="does not connect"):
                    route(clos, one, ecmp=ecmp)


def test_fabric_without_a_way_left_is_an_error():
    cut = tuple(FailedLink(tier=0, switch=0, port=port) for port in (0, 1))
    clos = replace(two_tiers(4), failed=cut)
    with pytest.raises(FabricError, match=r"does not connect.*switch 0"):
        route(clos, flows((0, 3)), ecmp=Ecmp())
    # Those under one leaf still reach each other.
    assert len(route(clos, flows((0, 1)), ecmp=Ecmp()).links) == 1


def test_ports_that_are_not_split_keep_the_capacity():
    clos = clos_of(ClusterSpec.from_yaml(SPEC))
    clos = replace(
        clos,
        failed=(
            FailedLink(tier=0, switch=3, port=5),
            FailedLink(tier=1, switch=33, port=7),
        ),
    )
    slow = without_split(clos)
    assert slow.uplink_ratio == 1
    assert slow.num_spines == 2 * clos.num_spines
    assert slow.capacity_bits_per_s.sum() == clos.capacity_bits_per_s.sum()
    assert slow.failed == (
        FailedLink(tier=0, switch=3, port=10),
        FailedLink(tier=0, switch=3, port=11),
        FailedLink(tier=1, switch=66, port=7),
        FailedLink(tier=1, switch=67, port=7),
    )
    with pytest.raises(FabricError, match=r"1\.5 times"):
        without_split(two_tiers(gbps=150))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_nodes": 0}, "num_nodes must be above zero"),
        ({"nic_bits_per_s": -1.0}, "nic_bits_per_s must be above zero, got -1"),
        ({"nic_bits_per_s": math.nan}, "nic_bits_per_s must be above zero"),
        ({"latency_s": -1.0}, "latency_s must be at least zero"),
        ({"num_nodes": 1000}, "1000 nodes need 500 leaves, but .* 8 ports"),
        ({"tiers": (Tier(downlinks=4),)}, "two or three tiers, got 1"),
        ({"failed": (FailedLink(tier=1, switch=0, port=0),)}, "of no tier"),
        ({"failed": (FailedLink(tier=0, switch=9, port=0),)}, "is not there"),
        ({"nics_per_node": 4, "rails": False}, "fewer than the 4 network cards"),
    ],
)
def test_fabric_that_cannot_be_is_an_error(change, message):
    with pytest.raises(FabricError, match=message):
        replace(two_tiers(), **change)


def test_negative_uplinks_and_uplinks_at_the_top_are_errors():
    for leaf, top, message in (
        (Tier(downlinks=2, uplinks=-1, uplink_bits_per_s=1), Tier(downlinks=8), "-1"),
        (Tier(downlinks=2, uplinks=1), Tier(downlinks=8), "uplink_bits_per_s"),
        (
            Tier(downlinks=2, uplinks=1, uplink_bits_per_s=1),
            Tier(downlinks=8, uplinks=2),
            "top tier has no ports up",
        ),
    ):
        with pytest.raises(FabricError, match=message):
            replace(two_tiers(), tiers=(leaf, top))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("    switch: tor\n", "", "must have a 'switch'"),
        ("downlinks: 64, uplinks", "uplinks", "'tor' must say its downlinks"),
        ("uplink: spine, ", "", "has ports up, but no uplink"),
        ("count: 1536", "count: 153600", "153600 nodes need 600 pods"),
        ("uplink: spine, ", "uplink: core, ", "192 leaves, but .* 64 ports"),
        (", uplink_bandwidth: 400Gb/s", ", oversubscription: 2", "give one of them"),
        (
            "switches:",
            """\
  - name: other
    devices: {kind: A100, count: 4, memory: 80GiB}
    nics: {count: 8, bandwidth: 200Gb/s, latency: 5us, rails: true}
    switch: tor
switches:""",
            "'other' has others than 'gpu'",
        ),
    ],
)
def test_cluster_that_is_no_fabric_is_an_error(before, after, message):
    assert before in SPEC
    with pytest.raises(ValueError, match=message):
        clos_of(ClusterSpec.from_yaml(SPEC.replace(before, after)))


def test_oversubscription_says_the_ports_up():
    text = SPEC.replace(
        "downlinks: 64, uplinks: 32, uplink_bandwidth: 400Gb/s",
        "downlinks: 64, oversubscription: 2, uplink_bandwidth: 400Gb/s",
    )
    clos = clos_of(ClusterSpec.from_yaml(text))
    assert clos.tiers[0].uplinks == 16
    assert clos.oversubscription == 2


def test_flows_that_do_not_fit_the_fabric_are_errors():
    clos = two_tiers(4, nics=2, down=4, rails=False)
    with pytest.raises(FabricError, match="network cards are 0 to 7, got 8 to 8"):
        route(clos, flows((0, 8)), ecmp=Ecmp())
    with pytest.raises(FabricError, match="stays in its node"):
        route(clos, flows((0, 1)), ecmp=Ecmp())
    with pytest.raises(FabricError, match="one queue pair at least, got 0"):
        route(clos, flows((0, 2)), ecmp=Ecmp(), num_queue_pairs=0)
    with pytest.raises(FabricError, match="as many sources"):
        Flows(source=np.arange(2), target=np.arange(2), size_bytes=np.ones(1))
