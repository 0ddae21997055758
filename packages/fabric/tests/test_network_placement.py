"""Placement: what crosses racks, and what the advice is worth."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_fabric.network import (
    Clos,
    Ecmp,
    FabricError,
    Flows,
    Job,
    Phase,
    Tier,
    advise,
    collective,
    compare,
    comparison_svg,
    crossing,
    place,
)
from drivetrain_fabric.network._placement import _Traffic


def fabric(num_nodes=32, per_leaf=4, nics=1, uplinks=2, gbps=200):
    """Two racks a pod."""
    leaf = Tier(downlinks=per_leaf, uplinks=uplinks, uplink_bits_per_s=gbps * 1e9)
    spine = Tier(downlinks=2 * nics, uplinks=uplinks, uplink_bits_per_s=gbps * 1e9)
    return Clos(
        num_nodes=num_nodes,
        nics_per_node=nics,
        nic_bits_per_s=100e9,
        tiers=(leaf, spine, Tier(downlinks=64)),
    )


def ring(num_nodes, nics=1):
    return collective(
        "all-reduce", num_nodes=num_nodes, nics_per_node=nics, size_bytes=1e9
    )


def test_crossing_by_hand():
    clos, phase = fabric(8), ring(8)
    size = phase.flows.size_bytes[0]
    inside = crossing(clos, [phase], np.arange(8))
    # Eight hops, of which two go between the racks of the one pod.
    assert inside.total_bytes == pytest.approx(8 * size)
    assert inside.share_between_racks == pytest.approx(1 / 4)
    assert inside.between_pods_bytes == 0
    across = crossing(clos, [phase], np.array([0, 4, 1, 5, 2, 6, 3, 7]))
    assert across.share_between_racks == 1


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_packed_ring_never_crosses_more_than_random(data):
    nodes = data.draw(
        st.lists(st.integers(0, 31), min_size=2, max_size=32, unique=True)
    )
    clos, phases = fabric(), [ring(len(nodes))]
    seed = data.draw(st.integers(0, 100))
    found = {
        kind: crossing(clos, phases, place(kind, clos, phases, nodes=nodes, seed=seed))
        for kind in ("random", "packed", "given")
    }
    packed = found["packed"]
    assert packed.between_racks_bytes <= found["random"].between_racks_bytes
    assert packed.between_pods_bytes <= found["random"].between_pods_bytes
    assert packed.between_racks_bytes <= found["given"].between_racks_bytes


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_advice_is_never_worse_and_uses_each_node_once(data):
    nodes = data.draw(
        st.lists(st.integers(0, 31), min_size=2, max_size=32, unique=True)
    )
    num = len(nodes)
    seed = data.draw(st.integers(0, 1000))
    generator = np.random.default_rng(seed)
    source = generator.integers(num, size=40)
    target = generator.integers(num, size=40)
    sizes = generator.integers(0, 100, 40).astype(float)
    phases = [
        Phase(name="any", flows=Flows(source=source, target=target, size_bytes=sizes))
    ]
    clos = fabric()
    advice = advise(clos, phases, nodes=nodes)
    assert sorted(advice.order) == sorted(nodes)
    packed = crossing(clos, phases, np.sort(nodes))
    assert advice.after.cost_bytes <= packed.cost_bytes + 1e-6
    assert advice.after.cost_bytes <= advice.before.cost_bytes + 1e-6
    again = crossing(clos, phases, np.array(advice.order))
    assert again == advice.after
    assert 0 <= advice.gain <= 1


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 14), st.integers(0, 10_000))
def test_no_exchange_of_two_nodes_improves_an_order_further(num, seed):
    generator = np.random.default_rng(seed)
    flows = Flows(
        source=generator.integers(num, size=30),
        target=generator.integers(num, size=30),
        size_bytes=generator.integers(1, 100, 30).astype(float),
    )
    clos = fabric(32, per_leaf=2)
    traffic = _Traffic(clos, [Phase(name="any", flows=flows)], num)
    start = generator.permutation(32)[:num]
    order = traffic.improve(start, 1000)
    assert sorted(order.tolist()) == sorted(start.tolist())
    assert traffic.cost(order) <= traffic.cost(start)
    for i, j in itertools.combinations(range(num), 2):
        other = order.copy()
        other[[i, j]] = other[[j, i]]
        assert traffic.cost(other) >= traffic.cost(order) - 1e-6
    # One exchange alone is the best that there is.
    once = traffic.improve(start, 1)
    costs = [traffic.cost(start)]
    for i, j in itertools.combinations(range(num), 2):
        other = start.copy()
        other[[i, j]] = other[[j, i]]
        costs.append(traffic.cost(other))
    assert traffic.cost(once) == pytest.approx(min(costs))


def test_advice_finds_pairs_that_stand_apart():
    """Node `i` talks to `i + 8` alone, and racks have room for two such pairs."""
    clos = fabric(16)
    one = np.arange(8)
    flows = Flows(source=one, target=one + 8, size_bytes=np.full(8, 1e9))
    advice = advise(clos, [Phase(name="pairs", flows=flows)], nodes=range(16))
    assert advice.before.share_between_racks == 1
    assert advice.after.between_racks_bytes == 0
    assert advice.gain == 1


def test_exchanges_mend_an_order_of_chance():
    clos, phases = fabric(32), [ring(32)]
    nodes = np.random.default_rng(0).permutation(32).tolist()
    advice = advise(clos, phases, nodes=nodes)
    best = crossing(clos, phases, np.arange(32))
    assert advice.after.cost_bytes == best.cost_bytes


def test_advice_keeps_a_pipeline_in_racks():
    """Activations that outweigh gradients decide which neighbours share a rack."""
    job = Job(
        num_gpus=32,
        gpus_per_node=1,
        nics_per_node=1,
        tensor=1,
        pipeline=4,
        gradient_bytes=1e6,
        activation_bytes=1e9,
    )
    clos = fabric(32)
    advice = advise(clos, job.phases(), nodes=range(32))
    packed = crossing(clos, job.phases(), np.arange(32))
    assert packed.share_between_racks > 0.9
    assert advice.after.share_between_racks < 0.1


@pytest.mark.parametrize(
    ("kind", "nodes", "message"),
    [
        ("best", [0, 1], "placement must be one of given, .* got 'best'"),
        ("packed", [], "one node at least"),
        ("packed", [0, 32], "nodes are 0 to 31, got 0 to 32"),
        ("packed", [-1, 2], "got -1 to 2"),
        ("packed", [1, 1], "given twice"),
        ("advised", [1], "sends between 2 nodes, but got 1"),
    ],
)
def test_nodes_that_are_not_there_are_errors(kind, nodes, message):
    with pytest.raises(FabricError, match=message):
        place(kind, fabric(), [ring(2)], nodes=nodes)


def comparison(**options):
    clos = fabric(32, per_leaf=8, nics=2, uplinks=4, gbps=200)
    phases = [ring(32, nics=2)]
    return compare(clos, phases, nodes=range(32), **options)


def test_split_ports_lower_the_slowdown_of_conflicts():
    measures = comparison(placements=["random"], queue_pairs=[1, 4], num_seeds=20)
    found = {(m.uplink_ratio, m.num_queue_pairs): m for m in measures}
    for num in (1, 4):
        split, plain = found[2.0, num], found[1.0, num]
        assert split.slowdown < plain.slowdown
        assert split.flow_overloaded < plain.flow_overloaded
    assert found[1.0, 4].slowdown < found[1.0, 1].slowdown


def test_packed_ring_is_as_fast_as_its_cards():
    for measure in comparison(placements=["packed", "advised"]):
        assert measure.crossing.share_between_racks == pytest.approx(1 / 8)
        assert measure.slowdown == pytest.approx(1)


def test_comparison_becomes_a_picture():
    measures = comparison(placements=["random", "packed"], queue_pairs=[1, 2])
    picture = comparison_svg(measures, "A ring <here>")
    assert picture.startswith("<svg")
    assert picture.count("<title>") == len(measures) == 8
    assert "A ring &lt;here&gt;" in picture


def test_comparison_of_nothing_is_an_error():
    with pytest.raises(FabricError, match="one seed"):
        comparison(num_seeds=0)
    with pytest.raises(FabricError, match="one phase"):
        compare(fabric(), [], nodes=range(32))
    with pytest.raises(FabricError, match="hash must be one of"):
        comparison(ecmp=Ecmp(kind="none"))


@pytest.mark.parametrize("kind", ["random", "given"])
def test_place_refuses_a_negative_seed(kind):
    with pytest.raises(FabricError, match="seed must be at least 0, got -1"):
        place(kind, fabric(), [ring(2)], nodes=range(2), seed=-1)
