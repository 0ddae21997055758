"""Nodes under one switch, and across switches: who meets whom, and which switch is bad."""

import random
from collections import Counter

import pytest
from torch.distributed import HashStore

from drivetrain_health.checks import CheckConfig
from drivetrain_health.checks._check_node import NodeReport
from drivetrain_health.checks._check_nodes import confer
from drivetrain_health.decisions.node_results import Result
from drivetrain_health.decisions.switch_rounds import bad_switches, switch_rounds

NUM_SWITCHES, PER_SWITCH = 8, 8
NODES = [f"n{i}" for i in range(NUM_SWITCHES * PER_SWITCH)]
UNDER = {node: f"s{i // PER_SWITCH}" for i, node in enumerate(NODES)}


def simulated(dice, *, uplinks=(), switches=(), noise=0.05):
    """What nodes say of all rounds, where some uplinks or switches are slow."""
    said = []
    for number, groups in enumerate(switch_rounds(NODES, UNDER)):
        for group in groups:
            met = {UNDER[node] for node in group}
            rate = dice.gauss(20.0, 20.0 * noise)
            if met & set(uplinks if len(met) == 2 else switches):
                rate *= 0.5
            said += [Result(number, n, group, {"network_x": rate}) for n in group]
    return said


@pytest.mark.parametrize("num", range(4, 12))
def test_each_switch_meets_two_others_and_each_node_one_at_a_time(num):
    under = {f"n{i}": f"s{i // 3}" for i in range(3 * num)}
    _, *across = switch_rounds(list(under), under)
    met = Counter()
    for groups in across:
        nodes = [node for group in groups for node in group]
        assert len(nodes) == len(set(nodes))
        for a, b in groups:
            assert under[a] != under[b]
            met[frozenset((under[a], under[b]))] += 1
    assert len(met) == num
    assert set(met.values()) == {3}


def test_few_switches_and_nodes_without_one_do_what_they_can():
    assert switch_rounds(["a", "b"], {}) == []
    assert switch_rounds(["a", "b", "c"], {"a": "s", "b": "s"}) == [(("a", "b"),)]
    two = {"a": "s", "b": "s", "c": "t", "d": "t"}
    assert switch_rounds("abcd", two) == [(("a", "b"), ("c", "d"))]


def test_one_bad_uplink_of_eight_switches_is_named_and_no_other():
    for seed in range(200):
        dice = random.Random(seed)
        bad = f"s{dice.randrange(NUM_SWITCHES)}"
        found = bad_switches(simulated(dice, uplinks=[bad]), UNDER)
        assert list(found) == [bad]
        assert "across its uplinks" in found[bad]


def test_bad_switch_is_named_by_what_is_under_it():
    found = bad_switches(simulated(random.Random(1), switches=["s4"]), UNDER)
    assert list(found) == ["s4"]
    assert found["s4"].startswith("network_x under it: ")


def test_neighbours_on_the_ring_are_both_named():
    found = bad_switches(simulated(random.Random(2), uplinks=["s2", "s3"]), UNDER)
    assert sorted(found) == ["s2", "s3"]


def test_healthy_networks_have_no_bad_switch():
    for seed in range(1000):
        assert bad_switches(simulated(random.Random(seed)), UNDER) == {}


def test_rounds_that_fail_are_told_whatever_else_is_known():
    under = {"a": "s", "b": "s"}
    said = [Result(0, n, ("a", "b"), network_failure="timed out") for n in "ab"]
    assert bad_switches(said, under) == {"s": "exchange under it: failed"}
    said = simulated(random.Random(5))
    lost = [
        one._replace(measures={}) if UNDER[one.node] == "s1" else one for one in said
    ]
    assert "failed" in bad_switches(lost, UNDER)["s1"]


def test_nodes_of_a_check_meet_by_switches_after_they_have_passed():
    """One process plays the nodes, whose rates are those of the switch they are under."""
    import threading

    nodes = [f"n{i}" for i in range(8)]
    under = {node: f"s{i // 2}" for i, node in enumerate(nodes)}
    config = CheckConfig(checks=("exchange",), switches=under)
    store, verdicts, seen = HashStore(), {}, []

    def run(node):
        def measure(group, store_of_round, is_whole):
            rate = 5.0 if not is_whole and "s3" in {under[n] for n in group} else 20.0
            seen.append((group, is_whole))
            measures = {"network_x_gb_per_s": rate}
            return NodeReport(node, measures, received="x")

        verdicts[node] = confer(store, node, nodes, config, measure).verdict

    threads = [threading.Thread(target=run, args=(node,)) for node in nodes]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    first, *others = verdicts.values()
    assert all(verdict == first for verdict in others)
    assert list(first.bad_switches) == ["s3"]
    assert not first.is_good
    assert not first.faulty
    assert not first.slow
    assert {len(group) for group, is_whole in seen if not is_whole} == {2}
