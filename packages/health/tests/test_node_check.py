"""Who is named faulty or slow after rounds of checks, and who never is."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from node_simulation import NodeFault, rehearse

from drivetrain_core import ProgramError
from drivetrain_health.decisions.node_check import Outcome, judge
from drivetrain_health.decisions.node_pairs import pair
from drivetrain_health.decisions.node_results import NodeCheckConfig, Result

CONFIG = NodeCheckConfig()
SLOW = {NodeFault.SLOW_COMPUTE, NodeFault.SLOW_NETWORK}
NODES = tuple(f"n{i}" for i in range(256))
FOUR = ("a", "b", "c", "d")


def results_of(groups, number=0, **said):
    """What nodes say after a round in which all went well, but for what is given."""
    found = []
    for group in groups:
        for node in group:
            good = Result(number, node, group, {"x_gflops": 100.0}, received="r")
            one = said.get(node, {})
            found += [] if one is None else [good._replace(**one)]
    return found


def verdict_of(nodes, *said, config=CONFIG):
    """Plays as many rounds as there are things said."""
    rounds, results, verdict = [], [], None
    for number, one in enumerate(said):
        rounds.append(pair(nodes, rounds, verdict))
        results += results_of(rounds[-1], number, **one)
        verdict = judge(nodes, rounds, results, config)
    return verdict


def named(verdict):
    return {n for n, o in verdict.opinions.items() if o.outcome != Outcome.PASSED}


@pytest.mark.parametrize("fault", list(NodeFault))
def test_one_bad_node_of_256_is_named_in_two_rounds(fault):
    verdict, rounds = rehearse(NODES, {"n77": fault}, seed=3)
    wanted = Outcome.SLOW if fault in SLOW else Outcome.FAULTY
    assert verdict.opinions["n77"].outcome == wanted
    assert named(verdict) == {"n77"}
    assert len(rounds) <= 2


@pytest.mark.parametrize("fault", list(NodeFault))
@pytest.mark.parametrize("other", ["n76", "n200"], ids=["of one pair", "of two pairs"])
def test_two_bad_nodes_of_256_are_named_in_four_rounds(fault, other):
    verdict, rounds = rehearse(NODES, {"n77": fault, other: fault}, seed=4)
    assert named(verdict) == {"n77", other}
    assert not verdict.suspects
    assert len(rounds) <= 4


@given(data=st.data(), seed=st.integers(0, 1 << 30))
@settings(max_examples=60, deadline=None)
def test_healthy_node_is_never_named_whoever_is_bad(data, seed):
    nodes = tuple(f"n{i}" for i in range(data.draw(st.integers(1, 40))))
    # A slow node is told from the median, which the healthy ones have to make.
    bad = data.draw(
        st.dictionaries(
            st.sampled_from(nodes),
            st.sampled_from(list(NodeFault)),
            max_size=(len(nodes) - 1) // 4,
        )
    )
    switches = {node: data.draw(st.sampled_from("stu")) for node in nodes[::2]}
    verdict, rounds = rehearse(nodes, bad, seed=seed, noise=0.05, switches=switches)
    wrongly = {*verdict.faulty, *verdict.slow} - set(bad)
    assert not wrongly, [verdict.opinions[n] for n in wrongly]
    assert len(rounds) <= CONFIG.max_rounds


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_results_at_all_are_judged(data):
    nodes = tuple(f"n{i}" for i in range(data.draw(st.integers(1, 6))))
    rounds, results, verdict = [], [], None
    values = st.floats() | st.sampled_from([0.0, -1.0, math.nan, math.inf, 1.0])
    for number in range(data.draw(st.integers(1, 4))):
        rounds.append(pair(nodes, rounds, verdict))
        for _ in range(data.draw(st.integers(0, 8))):
            members = st.lists(st.sampled_from([*nodes, "stranger"]), max_size=3)
            asked = [g for groups in rounds for g in groups]
            group = data.draw(st.sampled_from(asked) if asked else members.map(tuple))
            results.append(
                Result(
                    data.draw(st.integers(-1, number + 1)),
                    data.draw(st.sampled_from([*nodes, "stranger"])),
                    group,
                    data.draw(st.dictionaries(st.sampled_from("xy"), values)),
                    data.draw(st.dictionaries(st.just("disk"), st.just("no room"))),
                    data.draw(st.sampled_from(["", "timed out"])),
                    data.draw(st.sampled_from(["", "r", "s"])),
                    digests=data.draw(
                        st.dictionaries(st.just("cpu"), st.sampled_from("ab"))
                    ),
                )
            )
        verdict = judge(nodes, rounds, results, CONFIG)
        assert list(verdict.opinions) == list(nodes)
        assert all(opinion.reason for opinion in verdict.opinions.values())
        assert all(math.isfinite(m) and m > 0 for m in verdict.medians.values())
        again = judge(nodes, rounds, list(results), CONFIG)
        assert again == verdict


@given(
    st.integers(1, 300).map(lambda n: [f"n{i}" for i in range(n)]),
    st.integers(1, 9),
    st.integers(0, 1 << 30),
)
def test_first_round_has_everybody_in_a_pair_under_one_switch_if_possible(
    nodes, num_switches, seed
):
    dice = random.Random(seed)
    switches = {node: str(dice.randrange(num_switches)) for node in nodes}
    groups = pair(nodes, [], None, switches)
    assert sorted(node for group in groups for node in group) == sorted(nodes)
    sizes = sorted(map(len, groups))
    assert sizes == ([1] if len(nodes) == 1 else sorted(sizes))
    assert len(nodes) == 1 or set(sizes) <= {2, 3}
    assert sizes.count(3) == (len(nodes) % 2 if len(nodes) > 1 else 0)
    mixed = [g for g in groups if len({switches[n] for n in g}) > 1]
    # Of each switch one node may be left over.
    assert sum(map(len, mixed)) <= num_switches + 2


def test_nodes_of_a_switch_nobody_knows_meet_each_other():
    assert pair(FOUR, [], None, {"a": "s", "c": "s"}) == (("a", "c"), ("b", "d"))


def test_suspects_meet_nodes_that_have_passed_and_that_they_have_not_met():
    broken = {"network_failure": "timed out"}
    first = pair(FOUR, [], None)
    assert first == (("a", "b"), ("c", "d"))
    verdict = judge(FOUR, [first], results_of(first, a=broken, b=broken), CONFIG)
    assert verdict.suspects == ("a", "b")
    second = pair(FOUR, [first], verdict)
    assert second == (("a", "c"), ("b", "d"))
    assert pair(FOUR, [first], judge(FOUR, [first], results_of(first), CONFIG)) == ()


def test_suspects_under_a_switch_meet_others_of_it():
    nodes = ("a", "b", "c", "d", "e", "f")
    switches = dict(zip(nodes, "sstsst", strict=True))
    first = pair(nodes, [], None, switches)
    bad = {"network_failure": "timed out"}
    verdict = judge(nodes, [first], results_of(first, a=bad, b=bad), CONFIG)
    helpers = dict(pair(nodes, [first], verdict, switches))
    assert helpers == {"a": "d", "b": "e"}


def test_bad_one_of_three_is_named_by_the_other_two():
    verdict, _ = rehearse("abc", {"b": NodeFault.NETWORK}, seed=1)
    assert verdict.faulty == ("b",)
    assert named(verdict) == {"b"}
    assert any("compared with no others" in note for note in verdict.notes)


def test_two_nodes_that_fail_together_are_not_told_apart():
    bad = {"network_failure": "timed out"}
    verdict = verdict_of("ab", {"a": bad, "b": bad}, {"a": bad, "b": bad})
    assert verdict.suspects == ("a", "b")
    assert verdict.opinions["a"].reason == (
        "it cannot be told, no two of 2 nodes passed together, and the network between "
        "them may be the reason: timed out"
    )


def test_one_of_two_that_is_silent_is_faulty_and_the_other_passes_alone():
    verdict = verdict_of("ab", {"b": None}, {"b": None})
    assert verdict.faulty == ("b",)
    assert verdict.opinions["b"].reason == "did not answer (2 of 2 rounds)"
    assert "its network was not checked" in verdict.opinions["a"].reason


def test_node_alone_is_judged_by_itself():
    hangs = {"failures": {"compute": "no result within 5 s"}}
    assert verdict_of("a", {}).is_good
    assert verdict_of("a", {"a": hangs}).suspects == ("a",)
    verdict = verdict_of("a", {"a": hangs}, {"a": hangs})
    assert verdict.opinions["a"].reason == (
        "compute: no result within 5 s (2 of 2 rounds)"
    )


def test_failure_that_most_nodes_have_is_blamed_on_none_of_them():
    hangs = {"failures": {"bits": "no result within 1 s"}}
    most = dict.fromkeys("abc", hangs)
    verdict = verdict_of(FOUR, most, most)
    assert not verdict.faulty
    assert verdict.suspects == ("a", "b", "c")
    assert verdict.opinions["a"].reason == (
        "it cannot be told whether nodes or limits are wrong, for 3 of 4 nodes fail by "
        "themselves: bits: no result within 1 s (2 of 2 rounds)"
    )
    half = dict.fromkeys("ab", hangs)
    assert verdict_of(FOUR, half, half).faulty == ("a", "b")


def test_failure_that_does_not_come_again_is_told_and_forgiven():
    hangs = {"failures": {"disk": "no room"}}
    verdict = verdict_of(FOUR, {"a": hangs}, {})
    assert verdict.is_good
    assert verdict.opinions["a"].reason == "passed, but failed before: disk: no room"


def test_wrong_bits_are_not_forgiven():
    verdict = verdict_of(FOUR, {"a": {"wrong_bits": "the output differs"}})
    assert verdict.faulty == ("a",)


def test_node_that_computes_other_bits_than_the_majority_is_named_at_once():
    said = {n: {"digests": {"cpu": "z" if n == "c" else "y"}} for n in FOUR}
    verdict = verdict_of(FOUR, said)
    assert verdict.faulty == ("c",)
    assert verdict.opinions["c"].reason == (
        "computes other bits than 3 of 4 nodes (cpu)"
    )


def test_bits_of_different_builds_are_not_compared():
    said = {n: {"digests": {f"cpu {n}": n}} for n in FOUR}
    assert verdict_of(FOUR, said).is_good


def test_bits_of_two_nodes_that_differ_leave_both_suspect():
    said = {n: {"digests": {"cpu": n}} for n in "ab"}
    verdict = verdict_of("ab", said, said)
    assert verdict.suspects == ("a", "b")
    assert "it cannot be told, there is no majority" in verdict.opinions["a"].reason


def test_node_that_says_all_is_well_where_its_partner_fails_is_suspect_too():
    bad = {"network_failure": "timed out"}
    verdict = verdict_of(FOUR, {"b": bad})
    assert verdict.suspects == ("a", "b")
    # a lies: whoever it is with fails.
    verdict = verdict_of(FOUR, {"b": bad}, {"c": bad})
    assert verdict.faulty == ("a",)
    assert named(verdict) == {"a"}


def test_two_that_agree_to_lie_do_not_know_what_they_should_have_received():
    verdict = verdict_of(FOUR, {"a": {"received": "u"}, "b": {"received": "v"}})
    assert verdict.suspects == ("a", "b")
    assert "received different things" in verdict.opinions["a"].reason
    nothing = {"received": ""}
    assert verdict_of(FOUR, {"a": nothing, "b": nothing}).suspects == ("a", "b")


@pytest.mark.parametrize(
    ("rate", "says"),
    [
        (math.nan, "of nan cannot be"),
        (-3.0, "of -3 cannot be"),
        (0.0, "of 0 cannot be"),
        (math.inf, "of inf cannot be"),
        (1e6, "is 10000 times the median: it is not believed"),
    ],
)
def test_rate_that_cannot_be_is_a_failure_of_the_node(rate, says):
    said = {"a": {"measures": {"x_gflops": rate}}}
    verdict = verdict_of(FOUR, said, said)
    assert verdict.faulty == ("a",)
    assert says in verdict.opinions["a"].reason
    assert verdict.medians["x_gflops"] == 100.0


def test_rate_that_most_have_and_one_lacks_is_a_failure():
    verdict = verdict_of(FOUR, {"a": {"measures": {}}}, {"a": {"measures": {}}})
    assert "has no x_gflops, which 3 of 4 nodes have" in verdict.opinions["a"].reason


def test_results_of_other_rounds_groups_and_strangers_count_as_silence():
    rounds = [(("a", "b"), ("c", "d"))]
    good = results_of(rounds[0])
    odd = [
        good[0]._replace(round_number=1),
        good[0]._replace(round_number=-1),
        good[0]._replace(group=("a", "c")),
        good[0]._replace(node="stranger"),
    ]
    verdict = judge(FOUR, rounds, odd + good[1:], CONFIG)
    assert verdict.opinions["a"].reason == "did not answer"
    assert verdict.suspects == ("a", "b")


def test_result_that_is_repeated_counts_once_and_two_different_ones_not_at_all():
    rounds = [(("a", "b"), ("c", "d"))]
    good = results_of(rounds[0])
    assert judge(FOUR, rounds, good + good, CONFIG).is_good
    other = good[0]._replace(measures={"x_gflops": 99.0})
    verdict = judge(FOUR, rounds, [*good, other], CONFIG)
    assert "two different things" in verdict.opinions["a"].reason


def test_slow_node_is_named_after_two_rounds_and_forgiven_after_a_good_one():
    slow = {"measures": {"x_gflops": 30.0}}
    assert verdict_of(FOUR, {"a": slow}).suspects == ("a",)
    verdict = verdict_of(FOUR, {"a": slow}, {"a": slow})
    assert verdict.slow == ("a",)
    opinion = verdict.opinions["a"]
    assert (opinion.measure, opinion.value, opinion.median) == ("x_gflops", 30.0, 100.0)
    assert verdict_of(FOUR, {"a": slow}, {}).is_good


def test_node_that_is_slow_by_itself_and_with_others_is_slow_by_itself():
    def rates(network):
        return {"x_gflops": 100.0, "network_all_gather_gb_per_s": network}

    def said(**other):
        good = {n: {"measures": rates(9.0)} for n in FOUR}
        return {**good, **{n: {"measures": m} for n, m in other.items()}}

    both = {"x_gflops": 30.0, "network_all_gather_gb_per_s": 1.0}
    first = said(a=both, b=rates(1.0))
    verdict = verdict_of(FOUR, first, said(a=both, c=rates(1.0)))
    assert verdict.slow == ("a",)
    assert verdict.opinions["a"].measure == "x_gflops"
    network = said(a=rates(1.0), c=rates(1.0))
    verdict = verdict_of(FOUR, said(a=rates(1.0), b=rates(1.0)), network)
    assert verdict.slow == ("a",)
    assert verdict.opinions["a"].measure == "network_all_gather_gb_per_s"


def test_among_many_nodes_that_vary_a_slow_one_has_to_stand_out():
    nodes = tuple(f"n{i}" for i in range(20))
    said = {n: {"measures": {"x_gflops": 20.0 * (i + 1)}} for i, n in enumerate(nodes)}
    assert verdict_of(nodes, said).is_good
    config = NodeCheckConfig(slow_z=0.0)
    assert verdict_of(nodes, said, config=config).suspects


def test_half_of_the_nodes_do_not_make_the_other_half_slow():
    said = {n: {"measures": {"x_gflops": 10.0}} for n in "ab"}
    verdict = verdict_of(FOUR, said)
    assert verdict.is_good
    (note,) = verdict.notes
    assert note == (
        "x_gflops is 10.0 times higher on 2 of 4 nodes: half of the nodes cannot tell "
        "which half is wrong"
    )


def test_two_nodes_cannot_tell_which_of_them_is_slow():
    verdict = verdict_of("ab", {"a": {"measures": {"x_gflops": 10.0}}})
    assert verdict.is_good
    assert "two nodes cannot tell which of them is wrong" in verdict.notes[0]


def test_disks_are_shown_and_not_judged():
    said = {n: {"measures": {"disk_write_mb_per_s": 1e3}} for n in FOUR}
    said["a"] = {"measures": {"disk_write_mb_per_s": 1.0}}
    verdict = verdict_of(FOUR, said)
    assert verdict.is_good
    assert not verdict.notes
    assert verdict.medians["disk_write_mb_per_s"] == 1e3


def test_intermittent_node_costs_a_round_and_not_its_partner():
    bad = {"network_failure": "timed out"}
    # b is bad, and c, which passed, fails once with a.
    verdict = verdict_of(FOUR, {"a": bad, "b": bad}, {"c": bad, "b": bad}, {"b": bad})
    assert "a" not in verdict.faulty


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"slow_ratio": 1.0}, "slow_ratio must be"),
        ({"slow_ratio": math.nan}, "slow_ratio must be"),
        ({"slow_z": -1.0}, "slow_z must be"),
        ({"incredible_ratio": 2.0}, "incredible_ratio must be over slow_ratio, 2"),
        ({"max_rounds": 0}, "max_rounds must be"),
    ],
)
def test_judging_that_makes_no_sense_is_refused(options, says):
    with pytest.raises(ProgramError, match=says):
        NodeCheckConfig(**options)


def test_nodes_and_groups_that_make_no_sense_are_refused():
    for nodes in ((), ("a", "a")):
        with pytest.raises(ProgramError, match="one or more different names"):
            judge(nodes, [], [], CONFIG)
    for groups in ((("a", "z"),), (("a", "b"), ("b",))):
        with pytest.raises(ProgramError, match="one group of a round"):
            judge("ab", [groups], [], CONFIG)
    with pytest.raises(ProgramError, match="there must be a node"):
        pair((), [], None)
    with pytest.raises(ProgramError, match="needs the verdict"):
        pair("ab", [(("a", "b"),)], None)
    with pytest.raises(ProgramError, match="faults are for nodes that exist, got z"):
        rehearse("ab", {"z": NodeFault.DEAD}, seed=0)


def test_check_that_could_not_be_made_is_no_missing_measure():
    measures = {"compute_gflops": 9.0}
    said = [Result(0, n, (n,), measures) for n in "abc"]
    said.append(Result(0, "d", ("d",), not_made={"compute": "out of memory"}))
    groups = tuple((n,) for n in "abcd")
    config = NodeCheckConfig(has_exchange=False)
    assert judge("abcd", [groups], said, config).is_good
    said[-1] = Result(0, "d", ("d",))
    assert not judge("abcd", [groups], said, config).is_good
