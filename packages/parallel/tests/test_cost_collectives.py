"""Collectives by alpha and beta, over groups on one node or several."""

from __future__ import annotations

import dataclasses

import pytest
from cost_hardware import nodes
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_core import MeshShape
from drivetrain_core._errors import ClusterSpecError
from drivetrain_parallel.cost import Path
from drivetrain_parallel.cost.collectives import (
    Group,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    axis_group,
    send_s,
)

GROUPS = [Group(1, 1), Group(2, 2), Group(8, 8), Group(4, 1), Group(64, 8)]
COLLECTIVES = [all_gather_s, all_reduce_s, all_to_all_s]


@pytest.mark.parametrize(
    ("shape", "axes", "expected"),
    [
        (MeshShape(tensor=8, shard=2), ("tensor",), Group(8, 8)),
        (MeshShape(tensor=8, shard=2), ("shard",), Group(2, 1)),
        (MeshShape(tensor=2, shard=16), ("shard",), Group(16, 4)),
        (MeshShape(pipeline=2, shard=4, tensor=2), ("pipeline",), Group(2, 1)),
        (MeshShape(pipeline=2, shard=2, tensor=2), ("pipeline",), Group(2, 2)),
        (MeshShape(replicate=4, shard=4), ("replicate", "shard"), Group(16, 8)),
        (MeshShape(tensor=16), ("tensor",), Group(16, 8)),
    ],
)
def test_group_lies_on_nodes_as_the_order_of_axes_says(shape, axes, expected):
    assert axis_group(shape, 8, *axes) == expected


def test_group_agrees_with_the_coordinates_of_ranks():
    shape = MeshShape(pipeline=2, replicate=2, shard=4, tensor=2)
    for axis, number in shape.used().items():
        others = {
            tuple(v for k, v in shape.coordinates(rank).items() if k != axis)
            for rank in range(shape.size)
        }
        place = min(others)
        ranks = [
            rank
            for rank in range(shape.size)
            if tuple(v for k, v in shape.coordinates(rank).items() if k != axis)
            == place
        ]
        group = axis_group(shape, 8, axis)
        assert group.size == len(ranks) == number
        assert group.nodes == len({rank // 8 for rank in ranks})


def test_times_inside_a_node_are_those_of_a_ring():
    hardware = nodes(link=Path(bytes_per_s=100e9, latency_s=1e-6))
    expected = 1e9 * 7 / 8 / 100e9 + 7e-6
    assert all_gather_s(hardware, Group(8, 8), 1e9) == pytest.approx(expected)
    assert all_reduce_s(hardware, Group(8, 8), 1e9) == pytest.approx(2 * expected)


def test_times_between_nodes_share_the_cards_of_the_ranks_on_a_node():
    alone = all_gather_s(nodes(), Group(4, 1), 1e9)
    assert alone == pytest.approx(1e9 * 3 / 4 / 10e9)
    together = all_gather_s(nodes(), Group(32, 8), 1e9)
    assert together == pytest.approx(max(1e9 * 3 / 4 / 80e9, 1e9 * 31 / 32 / 100e9))


def test_exchange_sends_over_the_network_only_what_leaves_the_node():
    near, far = 1e9 / 16 * 7 / 100e9, 1e9 / 16 * 8 / 10e9
    found = all_to_all_s(nodes(), Group(16, 8), 1e9)
    assert found == pytest.approx(max(near, far))


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("group", GROUPS)
@given(faster=st.floats(1.0, 100.0), num_bytes=st.floats(0, 1e12))
def test_more_bandwidth_is_never_slower(collective, group, faster, num_bytes):
    slow = nodes()
    fast = dataclasses.replace(
        slow,
        link=Path(bytes_per_s=slow.link.bytes_per_s * faster),
        network=Path(bytes_per_s=slow.network.bytes_per_s * faster),
    )
    assert collective(fast, group, num_bytes) <= collective(slow, group, num_bytes)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_rank_says_nothing(collective):
    assert collective(nodes(), Group(1, 1), 1e9) == 0


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_nodes_without_a_network_are_named(collective):
    lonely = nodes(network=None)
    assert collective(lonely, Group(8, 8), 1e9) > 0
    with pytest.raises(ClusterSpecError, match=r"spans nodes of 8 .* nics"):
        collective(lonely, Group(16, 8), 1e9)
    with pytest.raises(ClusterSpecError, match="nics"):
        send_s(lonely, 1.0, between_nodes=True)
