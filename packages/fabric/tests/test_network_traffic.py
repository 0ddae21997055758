"""The flows of collectives: who sends how much to whom."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_fabric.network import (
    FabricError,
    Flows,
    Job,
    all_gather,
    all_reduce,
    all_to_all,
    channels,
    collective,
    reduce_scatter,
    send,
    tree_all_reduce,
)


def sent(flows, num):
    return np.bincount(flows.source, flows.size_bytes, minlength=num)


def received(flows, num):
    return np.bincount(flows.target, flows.size_bytes, minlength=num)


@pytest.mark.slow
@given(st.integers(1, 40), st.integers(1, 4))
def test_ring_sends_what_every_all_reduce_must(num, nics):
    members = channels(num, nics)
    flows = all_reduce(members, 100.0)
    least = 2 * (num - 1) / num * 100
    for amounts in (sent(flows, num * nics), received(flows, num * nics)):
        assert amounts == pytest.approx(np.full(num * nics, least))
    assert flows.num_steps == 2 * (num - 1)
    halves = reduce_scatter(members, 100.0), all_gather(members, 100.0)
    together = Flows.join(halves).size_bytes.sum()
    assert together == pytest.approx(flows.size_bytes.sum())


def test_ring_through_devices_of_nodes_counts_all_ranks():
    flows = all_reduce(channels(2, 1), 100.0, num_ranks=16)
    assert flows.size_bytes.tolist() == [187.5, 187.5]
    with pytest.raises(FabricError, match="3 ranks at least"):
        all_reduce(channels(3, 1), 1.0, num_ranks=2)


@given(st.integers(1, 70))
def test_trees_reach_all_and_spread_the_work(num):
    flows = tree_all_reduce(channels(num, 1), 100.0)
    assert len(flows) == 4 * (num - 1)
    up = {}
    # Flows go up and down a tree: an edge of the first half is one of the first tree.
    for at in (slice(0, num - 1), slice(2 * num - 2, 3 * num - 3)):
        children, parents = flows.source[at].tolist(), flows.target[at].tolist()
        assert len(set(children)) == num - 1
        parent_of = dict(zip(children, parents, strict=True))
        depths = []
        for child in children:
            depth, here = 0, child
            while here in parent_of:
                here, depth = parent_of[here], depth + 1
                assert depth <= num
            depths.append(depth)
        assert max(depths, default=0) <= flows.num_steps / 2 + 1
        for parent in parents:
            up[parent] = up.get(parent, 0) + 1
    # Up to one that has children in both trees, nobody sends more than twice the vector.
    assert sent(flows, num).max() <= 250
    assert received(flows, num) == pytest.approx(sent(flows, num))


def test_all_to_all_sends_each_the_same():
    flows = all_to_all(channels(4, 2), 100.0)
    assert sent(flows, 8).tolist() == [75.0] * 8
    pairs = set(zip(flows.source.tolist(), flows.target.tolist(), strict=True))
    assert len(pairs) == len(flows) == 24
    with pytest.raises(FabricError, match="smaller groups"):
        all_to_all(channels(3000, 1), 1.0)


def test_job_groups_ranks_as_they_are_numbered():
    job = Job(
        num_gpus=32,
        gpus_per_node=4,
        nics_per_node=4,
        tensor=4,
        pipeline=2,
        gradient_bytes=100.0,
        activation_bytes=10.0,
    )
    data, pipeline = job.phases()
    # Stage 0 is on nodes 0 to 3; its rings go through card `k` of each.
    first = data.flows.target[data.flows.source == 1].tolist()
    assert first == [5]
    assert data.flows.target[data.flows.source == 13].tolist() == [1]
    assert sent(data.flows, 32).tolist() == [150.0] * 32
    assert pipeline.flows.target[pipeline.flows.source == 6].tolist() == [22]
    assert pipeline.flows.target[pipeline.flows.source == 22].tolist() == [6]
    assert sent(pipeline.flows, 32).tolist() == [10.0] * 32


def test_job_shares_cards_and_stays_in_nodes():
    job = Job(
        num_gpus=16,
        gpus_per_node=8,
        nics_per_node=2,
        tensor=4,
        gradient_bytes=100.0,
    )
    (data,) = job.phases()
    assert job.data == 4
    placed = data.flows.placed(np.array([1, 0]), 2)
    # Of two replicas a node each begins a ring to the other, with half of the vector.
    assert len(placed) == 16
    assert set(placed.size_bytes.tolist()) == {75.0}
    assert (placed.source // 2 != placed.target // 2).all()
    assert set(placed.source.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_gpus": 0}, "num_gpus must be at least 1"),
        (
            {"num_gpus": 12},
            "num_gpus must be a multiple of gpus_per_node, which is 8, got 12",
        ),
        (
            {"tensor": 3},
            "gpus_per_node must be a multiple of tensor, which is 3, got 8",
        ),
        (
            {"pipeline": 3},
            "num_gpus must be a multiple of tensor x pipeline, which is 24, got 16",
        ),
        ({"pipeline": -1}, "pipeline must be at least 1"),
    ],
)
def test_job_that_does_not_divide_is_an_error(change, message):
    with pytest.raises(FabricError, match=message):
        Job(**{"num_gpus": 16, "gradient_bytes": 1.0, **change})


def test_traffic_that_makes_no_sense_is_an_error():
    nobody = np.zeros((0, 0), np.int64)
    with pytest.raises(FabricError, match="one at least"):
        all_reduce(nobody, 1.0)
    with pytest.raises(FabricError, match="at least zero, got -1"):
        all_reduce(channels(2, 1), -1.0)
    with pytest.raises(FabricError, match="one node at least, got 0"):
        channels(0, 1)
    with pytest.raises(FabricError, match="at least zero, got -1"):
        send(np.array([0]), np.array([1]), -1.0)
    with pytest.raises(FabricError, match="got 'gossip'"):
        collective("gossip", num_nodes=2, nics_per_node=1, size_bytes=1)


@pytest.mark.parametrize("nodes", [2, 3, 8])
@pytest.mark.parametrize(("gpus", "cards"), [(8, 8), (8, 4), (4, 1), (1, 1)])
def test_cards_carry_what_the_ranks_of_their_node_send_to_others(nodes, gpus, cards):
    num, size = nodes * gpus, 1000.0
    leaves = {
        "all-reduce": 2 * (num - 1) / num * size,
        "all-gather": (num - 1) / num * size,
        "reduce-scatter": (num - 1) / num * size,
        # Each rank of a node sends its part to each rank that is not in it.
        "all-to-all": gpus * (num - gpus) / num * size,
    }
    for name, of_node in leaves.items():
        phase = collective(
            name, num_nodes=nodes, nics_per_node=cards, size_bytes=size, num_ranks=num
        )
        found = sent(phase.flows, nodes * cards)
        assert found == pytest.approx(np.full(nodes * cards, of_node / cards)), name


@pytest.mark.parametrize("pipeline", [1, 2])
@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
def test_job_uses_all_cards_like_a_collective_of_its_replicas(tensor, pipeline):
    job = Job(num_gpus=64, tensor=tensor, pipeline=pipeline, gradient_bytes=1000.0)
    flows = job.phases()[0].flows.placed(np.arange(8), 8)
    # A stage has its own nodes, and each of its replicas' groups an all-reduce.
    share = 2 * (job.data - 1) / job.data * 1000.0
    assert sent(flows, 64) == pytest.approx(np.full(64, share * tensor / 8))


def test_job_whose_stages_share_a_node_sends_no_more_than_its_ring():
    job = Job(num_gpus=24, tensor=1, pipeline=2, gradient_bytes=1000.0)
    flows = job.phases()[0].flows.placed(np.arange(3), 8)
    most = 2 * (job.data - 1) / job.data * 1000.0
    out_of_node = np.bincount(flows.source // 8, flows.size_bytes, minlength=3)
    assert out_of_node[0] == pytest.approx(most)
    assert out_of_node[1] == pytest.approx(2 * most)
