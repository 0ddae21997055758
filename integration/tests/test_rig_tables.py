"""The rig's pure parts: links, bounds, shapes of models, and scenarios."""

from __future__ import annotations

import doctest
import importlib
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))
from rig import bounds
from rig.__main__ import main
from rig.model_shapes import SHAPES
from rig.report import Bench
from rig.scenarios import SCENARIOS
from rig.shape import Link, node_commands, port_commands
from rig.trainers import Training, environment, loss_difference


@pytest.mark.parametrize("name", ["bounds", "goodput", "shape"])
def test_examples_of_module_hold(name):
    found = doctest.testmod(importlib.import_module(f"rig.{name}"))
    assert found.attempted
    assert found.failed == 0


@pytest.mark.parametrize(
    "options",
    [
        {"rate_mbit_per_s": 0},
        {"rate_mbit_per_s": 1, "rtt_ms": -1},
        {"rate_mbit_per_s": 1, "flow_cap_mbit_per_s": 2},
        {"rate_mbit_per_s": 1, "flow_cap_mbit_per_s": 0},
    ],
    ids=str,
)
def test_link_refuses_what_cannot_be(options):
    with pytest.raises(ValueError, match=r"rate|round trip"):
        Link(**options)


def test_queue_is_that_of_a_switch_with_buffers():
    assert Link(rate_mbit_per_s=8).queue_bytes == 4_000_000
    assert Link(rate_mbit_per_s=1000).queue_bytes == 12_500_000
    assert Link(rate_mbit_per_s=1000, rtt_ms=200).queue_bytes == 25_000_000


def test_node_without_flow_cap_is_shaped_as_its_port():
    link = Link(rate_mbit_per_s=400)
    assert node_commands(link, "eth0") == port_commands(link, "eth0")


def test_node_with_flow_cap_has_a_class_for_each_flow():
    link = Link(rate_mbit_per_s=800, flow_cap_mbit_per_s=200)
    lines = [" ".join(words) for words in node_commands(link, "eth0")]
    assert sum("ceil 200000000bit" in line for line in lines) == 1024
    assert lines[1].startswith("class add dev eth0 parent 1: classid 1:1 htb rate 8000")
    assert "bpf bytecode" in lines[-1]


def test_bounds_of_one_host_or_one_rank_are_free_of_the_network():
    assert bounds.flat_ring(1e6, bounds.contiguous(1, 4), 1e6, delay_s=1) == 0
    assert bounds.direct(1e6, [0], 1e6, delay_s=1) == 0
    assert bounds.halving_doubling(1e6, [0], 1e6, delay_s=1) == 0
    assert bounds.hierarchical(1e6, 1, 1e6, delay_s=1) == 0


@pytest.mark.parametrize("hosts", [(2, 4), (4, 2), (8, 1), (16, 2)])
@pytest.mark.parametrize("order", [bounds.contiguous, bounds.round_robin])
def test_no_algorithm_is_under_the_bound_of_all(hosts, order):
    least = bounds.any_allreduce(1e6, hosts[0], 1e6, delay_s=0.1)
    for algorithm in (bounds.flat_ring, bounds.direct, bounds.halving_doubling):
        assert algorithm(1e6, order(*hosts), 1e6, delay_s=0.1) >= least
    assert bounds.hierarchical(1e6, hosts[0], 1e6, delay_s=0.1) >= least


def test_ring_is_held_up_by_the_cap_of_a_flow():
    hosts = bounds.contiguous(2, 4)
    capped = bounds.flat_ring(16e6, hosts, 50e6, flow_bytes_per_s=10e6)
    assert capped == pytest.approx(2.8)
    shuffled = bounds.round_robin(2, 4)
    assert bounds.flat_ring(16e6, shuffled, 50e6, flow_bytes_per_s=20e6) == 2.24


def test_halving_doubling_refuses_other_numbers_of_ranks():
    with pytest.raises(ValueError, match="power of two, not 6"):
        bounds.halving_doubling(1, bounds.contiguous(2, 3), 1)


def test_shapes_are_as_large_as_they_say():
    sizes = {name: shape.size_bytes / 1e6 for name, shape in SHAPES.items()}
    assert sizes == {
        "even": 48,
        "embedding": 36,
        "many": pytest.approx(24, rel=0.05),
    }
    assert sum(map(len, SHAPES["many"].blocks)) == 159


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_gradients_are_ready_from_the_last_block_on(shape):
    times, sizes = zip(*shape.gradients(0.9), strict=True)
    assert sum(sizes) == shape.size_bytes
    assert list(times) == sorted(times)
    assert times[-1] == pytest.approx(0.9)
    assert min(times) > 0.3
    assert sizes[-1] == sum(shape.blocks[0]) * 4


def test_scenarios_cover_what_they_should():
    found = SCENARIOS.values()
    assert len(found) >= 10
    assert list(SCENARIOS) == [scenario.name for scenario in found]
    places = {(s.num_hosts, s.ranks_per_host) for s in found}
    assert places == {(2, 4), (4, 2), (8, 1)}
    assert {s.model for s in found} == set(SHAPES)
    assert {s.link.rtt_ms for s in found} == {0, 5, 10, 20}
    assert sum(s.order == "round-robin" for s in found) == 1
    assert sum(s.link.flow_cap_mbit_per_s is not None for s in found) >= 2
    assert all(200 <= s.link.rate_mbit_per_s <= 1000 for s in found)
    assert all(0.8 <= s.ring_per_compute <= 3 for s in found)


def test_environment_numbers_ranks_on_their_hosts():
    class Addresses:
        def address(self, node):
            return f"10.0.0.{node}"

    scenario = SCENARIOS["2x4-1000mbit-shuffled-many"]
    found = [environment(Addresses(), scenario, rank) for rank in range(8)]
    assert [env["LOCAL_RANK"] for env in found] == list("00112233")
    assert {env["LOCAL_WORLD_SIZE"] for env in found} == {"4"}
    assert {env["MASTER_ADDR"] for env in found} == {"10.0.0.0"}


def test_loss_difference_is_relative_and_the_largest():
    one, other = (
        Training(steps_s=[1.0], losses=losses, checksums=["a", "a"])
        for losses in ([[100.0, 1.0], [0.0, 0.0]], [[100.0, 2.0], [0.0, 0.0]])
    )
    assert loss_difference(one, one) == 0
    assert loss_difference(one, other) == 0.5


def test_bench_refuses_a_warmup_of_all_steps():
    with pytest.raises(ValueError, match="fewer than all 5, not 5"):
        Bench(SCENARIOS["2x4-400mbit-even"], num_steps=5, num_warmup=5)


def test_list_names_every_scenario(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(SCENARIOS)


def test_model_has_exact_gradients():
    torch = pytest.importorskip("torch")
    from rig.models import Block

    block = Block((3, 2), (0, 0)).double()
    x = torch.zeros((), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: block(x, 0.7), (x,))
    loss = block(x, 0.5)
    loss.backward()
    for tensor in block.tensors:
        torch.testing.assert_close(tensor.grad, 0.5 * tensor)
