"""Bytes and times of collectives and jobs on an idle, symmetric fabric: closed forms."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_fabric.cli import main
from drivetrain_fabric.network import (
    Clos,
    Ecmp,
    FabricError,
    Job,
    Phase,
    Tier,
    collective,
    send,
    simulate,
)

SPEED = 100e9
LATENCY_S = 1e-6

few = st.sampled_from([1, 2, 4, 8])
cards = st.sampled_from([1, 2, 3, 4, 6, 8, 16])
nodes_of_a_stage = st.integers(1, 5)


def idle(num_nodes, nics):
    """One switch for all, which carries what its cards do."""
    tier = Tier(downlinks=num_nodes * nics, uplinks=1, uplink_bits_per_s=SPEED)
    return Clos(
        num_nodes=num_nodes,
        nics_per_node=nics,
        nic_bits_per_s=SPEED,
        rails=False,
        tiers=(tier, Tier(downlinks=1)),
        latency_s=LATENCY_S,
    )


def carried(flows, num):
    """What each card sends and gets."""
    return [
        np.bincount(ends, flows.size_bytes, minlength=num)
        for ends in (flows.source, flows.target)
    ]


def check(phase, num_nodes, nics, of_node, steps):
    """Each card carries an equal part of what its node does, and it takes that long."""
    num = num_nodes * nics
    flows = phase.flows.placed(np.arange(num_nodes), nics)
    for amounts in carried(flows, num):
        assert amounts == pytest.approx(np.full(num, of_node / nics))
    phase = Phase(name=phase.name, flows=flows, is_paced=phase.is_paced)
    for pairs in (1, 4):
        took = simulate(
            idle(num_nodes, nics), phase, ecmp=Ecmp(), num_queue_pairs=pairs
        )
        seconds = of_node / nics * 8 / SPEED + steps * LATENCY_S
        assert took.seconds == pytest.approx(seconds)
        assert took.ideal_s == pytest.approx(seconds)


def of_node_and_steps(name, nodes, gpus, size):
    """Returns what a node of some GPUs sends, and how many messages wait on others."""
    num, turns = nodes * gpus, {"all-reduce": 2}.get(name, 1)
    if name == "all-to-all":
        # Each rank of a node sends its part to each rank that is not in it.
        return gpus * (num - gpus) / num * size, 1
    leaves = turns * (num - 1) / num * size if nodes > 1 else 0.0
    return leaves, turns * (nodes - 1)


RINGS = ["all-reduce", "all-gather", "reduce-scatter"]


@pytest.mark.parametrize("name", [*RINGS, "all-to-all"])
@given(nodes=st.integers(1, 9), gpus=few, nics=cards, size=st.floats(1, 1e9))
def test_collective_takes_what_its_closed_form_says(name, nodes, gpus, nics, size):
    phase = collective(
        name,
        num_nodes=nodes,
        nics_per_node=nics,
        size_bytes=size,
        num_ranks=nodes * gpus,
    )
    check(phase, nodes, nics, *of_node_and_steps(name, nodes, gpus, size))


@pytest.mark.parametrize("name", [*RINGS, "all-to-all", "tree"])
@pytest.mark.parametrize("ranks", [0, 1, 3, 6, -4])
def test_ranks_that_nodes_do_not_share_evenly_are_refused(name, ranks):
    with pytest.raises(FabricError, match="num_ranks must be a multiple of 4 nodes"):
        collective(name, num_nodes=4, nics_per_node=1, size_bytes=1, num_ranks=ranks)


@given(nodes=st.integers(2, 64), nics=cards, size=st.floats(1, 1e9))
def test_trees_send_twice_the_vector_over_each_edge(nodes, nics, size):
    phase = collective("tree", num_nodes=nodes, nics_per_node=nics, size_bytes=size)
    sent, got = carried(phase.flows, nodes * nics)
    assert sent == pytest.approx(got)
    assert sent.sum() == pytest.approx(2 * (nodes - 1) * size)
    # At each end of an edge passes one half: nobody has more than five of them.
    assert sent.max() <= 2.5 * size / nics * (1 + 1e-9)
    took = simulate(idle(nodes, nics), phase, ecmp=Ecmp())
    steps = 2 * math.ceil(math.log2(nodes))
    assert took.seconds == pytest.approx(
        sent.max() * 8 / SPEED + steps * LATENCY_S, rel=1e-6
    )


@given(nodes=st.integers(2, 6), nics=cards, size=st.floats(1, 1e9))
def test_sends_around_all_nodes_take_what_a_card_carries(nodes, nics, size):
    here = np.arange(nodes * nics)
    flows = send(here, (here + nics) % len(here), size)
    check(Phase(name="send", flows=flows), nodes, nics, size * nics, 1)


@st.composite
def jobs(draw):
    """A job whose stages have nodes of their own."""
    gpus = draw(few)
    tensor = draw(st.sampled_from([t for t in (1, 2, 4, 8) if t <= gpus]))
    pipeline, nodes = draw(st.integers(1, 4)), draw(nodes_of_a_stage)
    return Job(
        num_gpus=gpus * nodes * pipeline,
        gpus_per_node=gpus,
        nics_per_node=draw(cards),
        tensor=tensor,
        pipeline=pipeline,
        gradient_bytes=draw(st.floats(1, 1e9)),
        activation_bytes=draw(st.floats(1, 1e9)),
    )


@given(job=jobs())
def test_gradients_of_a_job_take_what_their_rings_do(job):
    """Each of the tensor-parallel ranks has a ring of its own through all replicas."""
    nodes = job.num_nodes // job.pipeline
    of_node = 0.0
    if nodes > 1:
        of_node = job.tensor * 2 * (job.data - 1) / job.data * job.gradient_bytes
    steps = 2 * (nodes - 1)
    check(job.phases()[0], job.num_nodes, job.nics_per_node, of_node, steps)


@given(job=jobs())
def test_activations_of_a_job_pass_once_each_way_between_stages(job):
    phases = job.phases()
    assert len(phases) == 1 + (job.pipeline > 1)
    if job.pipeline == 1:
        return
    nics, num = job.nics_per_node, job.num_nodes * job.nics_per_node
    flows = phases[1].flows.placed(np.arange(job.num_nodes), nics)
    of_card = job.gpus_per_node * job.activation_bytes / nics
    sent, got = (amounts.reshape(job.pipeline, -1) for amounts in carried(flows, num))
    for stage in range(job.pipeline):
        neighbours = (stage > 0) + (stage < job.pipeline - 1)
        for amounts in (sent[stage], got[stage]):
            assert amounts == pytest.approx(np.full(len(amounts), neighbours * of_card))
    phase = Phase(name="pipeline", flows=flows)
    took = simulate(idle(job.num_nodes, nics), phase, ecmp=Ecmp())
    most = min(2, job.pipeline - 1) * of_card
    assert took.seconds == pytest.approx(most * 8 / SPEED + LATENCY_S)


@given(
    gpus=few,
    nics=cards,
    tensor=few,
    pipeline=st.integers(1, 6),
    replicas=st.integers(1, 6),
)
def test_no_card_of_any_job_has_more_than_its_ranks_send(
    gpus, nics, tensor, pipeline, replicas
):
    """Also where stages share nodes: all rings of a node's ranks leave it at most."""
    num = tensor * pipeline * replicas
    if tensor > gpus or num % gpus:
        return
    job = Job(
        num_gpus=num,
        gpus_per_node=gpus,
        nics_per_node=nics,
        tensor=tensor,
        pipeline=pipeline,
        gradient_bytes=100.0,
    )
    flows = job.phases()[0].flows.placed(np.arange(job.num_nodes), nics)
    most = 2 * (replicas - 1) / replicas * 100.0 * gpus
    for amounts in carried(flows, job.num_nodes * nics):
        of_nodes = amounts.reshape(-1, nics).sum(axis=1)
        assert of_nodes.max(initial=0.0) <= most * (1 + 1e-9)
        assert amounts.max(initial=0.0) <= most / nics * (1 + 1e-9)


def told(capsys, *words):
    """Returns what the command line measures on one leaf for all nodes."""
    fabric = ["--tiers", "2", "--leaf-downlinks", "512", "--nic-gbps", "100"]
    fabric += ["--uplink-gbps", "100", "--latency-us", "1", "--placements", "given"]
    status = main(["simulate", *fabric, "--queue-pairs", "1", "--json", *words])
    assert status == 0
    (measure,) = json.loads(capsys.readouterr().out)["measures"]
    return measure


@pytest.mark.parametrize("rails", [[], ["--no-rails"]])
@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
@pytest.mark.parametrize("nics", [1, 2, 8])
@pytest.mark.parametrize("name", [*RINGS, "all-to-all"])
def test_command_line_takes_what_the_closed_form_says(capsys, name, nics, gpus, rails):
    nodes, size = 3, 1e9
    words = ["--gpus", str(nodes * gpus), "--gpus-per-node", str(gpus)]
    words += ["--nics", str(nics), "--traffic", name, "--size", "1G", *rails]
    measure = told(capsys, *words)
    of_node, steps = of_node_and_steps(name, nodes, gpus, size)
    assert measure["seconds"] == pytest.approx(of_node / nics * 8e-11 + steps * 1e-6)
    assert measure["slowdown"] == pytest.approx(1)


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
@pytest.mark.parametrize("nics", [1, 3, 8])
@pytest.mark.parametrize("pipeline", [1, 3])
def test_command_line_of_a_job_takes_what_its_phases_do(capsys, gpus, nics, pipeline):
    tensor = max(1, gpus // 2)
    nodes = 2 * pipeline
    words = ["--gpus", str(nodes * gpus), "--gpus-per-node", str(gpus)]
    words += ["--nics", str(nics), "--traffic", "job", "--size", "1G"]
    words += ["--tensor", str(tensor), "--pipeline", str(pipeline)]
    measure = told(capsys, *words, "--activations", "10M")
    data = 2 * gpus // tensor
    rings = tensor * 2 * (data - 1) / data * 1e9 / nics * 8e-11 + 2e-6
    assert measure["phase_s"]["data"] == pytest.approx(rings)
    if pipeline > 1:
        passed = 2 * gpus * 10e6 / nics * 8e-11 + 1e-6
        assert measure["phase_s"]["pipeline"] == pytest.approx(passed)
