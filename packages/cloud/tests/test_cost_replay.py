"""The replay of traces: what is paid, what counts, and what strategies save."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_cloud.cost import (
    PROFILES,
    SHAPES,
    CapacityTrace,
    CloudTimes,
    JobProfile,
    ProfileError,
    Scenario,
    Spent,
    Strategy,
    draw_trace,
    replay,
    sensitivity,
    shipped_prices,
    simulate,
    simulate_all,
    usual_strategies,
    with_number,
)
from drivetrain_cloud.cost.input_sensitivity import INPUTS, changed
from drivetrain_cloud.cost.progress import Progress
from drivetrain_cloud.spot import (
    AfterMaxWait,
    Capacity,
    JobPhase,
    Market,
    Node,
    NodePhase,
    Notice,
    Recovery,
    SpotConfig,
    Train,
    decide,
)
from drivetrain_core import ProgramError

# A step of as many nodes as are asked for takes a second, and divides among 1 to 8.
JOB = JobProfile(
    name="job", batch_per_node=840, sample_s=1 / 840, save_s=4.0, stall_s=1.0
)
OFFER = "example/zone-a/gpu-8"


def made(*changes, end_s=7200.0):
    return CapacityTrace(
        changes=((0.0, changes[0]), *changes[1:]), end_s=end_s, source="a test"
    )


def named(name, nodes=4, **fields):
    (found,) = [one for one in usual_strategies(nodes, **fields) if one.name == name]
    return found


def paid_s(found, market=None):
    return sum(
        use.end_s - use.begin_s
        for use in found.uses
        if market is None or use.market == market
    )


# ---- progress ----

CALLS = st.lists(
    st.tuples(
        st.sampled_from(["advance", "advance", "world", "save", "lose", "back", "end"]),
        st.floats(0.01, 500),
    ),
    max_size=12,
)


def carried_out(calls, steps, target=math.inf):
    """Calls a progress, and lets time go by in so many steps."""
    progress = Progress(interval_s=30.0, stall_s=2.0, save_s=7.0, target=target)
    now_s = 0.0
    for what, number in [("world", 3.0), *calls]:
        if what == "advance":
            for step in range(1, steps + 1):
                progress.advance(now_s + number * step / steps)
            now_s += number
        elif what == "world":
            nodes = 1 + int(number) % 4
            progress.begin_world(
                now_s,
                nodes=nodes,
                samples_per_s=2.0 * nodes,
                step_s=1.5,
                stall_s=number,
            )
        elif what == "save":
            progress.save(now_s)
        elif what == "lose":
            progress.lose_step()
        elif what == "back":
            progress.roll_back()
        else:
            progress.end_world()
    return progress


@given(CALLS, st.integers(2, 5))
def test_progress_is_the_same_in_one_go_and_step_by_step(calls, steps):
    one, many = carried_out(calls, 1), carried_out(calls, steps)
    for name in ("samples", "trained_s", "stalled_s", "repeated_s"):
        assert getattr(one, name) == pytest.approx(getattr(many, name), abs=1e-6), name
    # Samples are made by seconds of nodes, and each of them counts once.
    assert one.samples == pytest.approx(2.0 * one.trained_s, abs=1e-6)
    assert one.samples >= -1e-6


@given(st.floats(1, 2000))
def test_progress_ends_when_the_last_sample_is_made(target):
    progress = carried_out([("advance", 10_000.0)], 1, target=target)
    assert progress.samples == pytest.approx(target)
    again = carried_out([("advance", progress.done_s)], 1)
    assert again.samples == pytest.approx(target)


def test_a_checkpoint_counts_when_it_is_durable_and_not_before():
    progress = Progress(interval_s=math.inf, stall_s=0.0, save_s=5.0)
    progress.begin_world(0.0, nodes=1, samples_per_s=1.0, step_s=1.0, stall_s=0.0)
    progress.advance(10.0)
    assert progress.save(10.0) == 16.0
    progress.advance(15.9)
    assert (progress.is_saving, progress.saved_s) == (True, None)
    progress.advance(16.0)
    assert (progress.is_saving, progress.saved_s) == (False, 10.0)
    progress.roll_back()
    assert (progress.samples, progress.repeated_s) == (10.0, 6.0)


def test_a_checkpoint_that_is_torn_does_not_count():
    progress = Progress(interval_s=math.inf, stall_s=0.0, save_s=5.0)
    progress.begin_world(0.0, nodes=1, samples_per_s=1.0, step_s=4.0, stall_s=0.0)
    progress.advance(10.0)
    progress.save(10.0)
    progress.lose_step()
    assert (progress.samples, progress.repeated_s) == (8.0, 2.0)
    progress.advance(30.0)
    progress.roll_back()
    assert progress.samples == 0.0


# ---- a replay ----

TRACES = st.lists(
    st.tuples(st.floats(1.0, 4000.0), st.integers(0, 7)),
    min_size=0,
    max_size=12,
).map(
    lambda rows: made(
        5,
        *sorted({round(time, 3): number for time, number in rows}.items()),
        end_s=5000.0,
    )
)
STRATEGIES = st.builds(
    Strategy,
    name=st.just("any"),
    about=st.just(""),
    config=st.builds(
        SpotConfig,
        nodes=st.sampled_from([2, 4]),
        min_nodes=st.sampled_from([1, 2]),
        max_nodes=st.sampled_from([None, 6]),
        unit=st.sampled_from([1, 2]),
        recovery=st.sampled_from(Recovery),
        tolerate=st.sampled_from([0, 1]),
        max_wait_s=st.sampled_from([60.0, 900.0, math.inf]),
        after_max_wait=st.sampled_from(AfterMaxWait),
        resume_after_s=st.sampled_from([60.0, math.inf]),
    ),
    heeds_notices=st.booleans(),
    keeps_state=st.booleans(),
)
CLOUDS = st.builds(
    CloudTimes,
    start_s=st.sampled_from([0.0, 20.0, 200.0]),
    notice_s=st.sampled_from([0.0, 5.0, 30.0, 300.0]),
)


@settings(max_examples=100, deadline=None)
@given(TRACES, STRATEGIES, CLOUDS, st.integers(0, 9))
def test_replay_keeps_its_books(trace, strategy, cloud, seed):
    found = replay(trace, JOB, strategy, cloud=cloud, seed=seed)
    assert found == replay(trace, JOB, strategy, cloud=cloud, seed=seed)
    # All that is paid for went somewhere, once.
    assert sum(found.node_s.values()) == pytest.approx(paid_s(found), abs=1e-6)
    assert all(seconds >= -1e-6 for seconds in found.node_s.values())
    # So many samples are a second of a node, however many nodes there are.
    assert found.samples == pytest.approx(840 * found.node_s[Spent.TRAINED], abs=1e-3)
    assert found.seconds <= trace.end_s
    assert len({use.node for use in found.uses}) == len(found.uses)
    # The pool never gave more than it had.
    edges = defaultdict(int)
    for use in found.uses:
        if use.market == Market.SPOT and use.end_s > use.begin_s:
            edges[use.begin_s] += 1
            edges[use.end_s] -= 1
    have, at = 0, 0
    for time in sorted(edges):
        have += edges[time]
        while at + 1 < len(trace.changes) and trace.changes[at + 1][0] <= time:
            at += 1
        assert have <= trace.changes[at][1]


@pytest.mark.parametrize("strategy", usual_strategies(4), ids=lambda one: one.name)
def test_a_trace_without_reclaims_costs_spot_price_times_time(strategy):
    prices = shipped_prices()
    scenario = Scenario(
        profile=JOB,
        strategy=strategy,
        prices=prices,
        offer=OFFER,
        traces=made(4),
        places=4,
    )
    found = simulate(scenario, 0)
    assert found.cost == pytest.approx(4 * 2 * 9.60)
    # 180 s to start and 60 s to restore are paid for, and make nothing.
    assert found.replay.samples == pytest.approx(4 * 840 * (7200 - 240))
    assert found.goodput == pytest.approx(1 - 240 / 7200)
    assert found.saving == pytest.approx(1 - 0.3 * 7200 / (7200 - 240))
    assert (found.replay.taken, found.replay.waste) == (0, pytest.approx(240 / 7200))


def test_with_notices_nothing_is_made_again():
    trace = made(4, (3600.0, 3))
    found = replay(trace, JOB, named("resize"), cloud=CloudTimes(start_s=60.0))
    assert (found.taken, found.node_s[Spent.REPEATED]) == (1, 0.0)
    assert found.node_s[Spent.WAITING] == 0.0
    # Until then four train, and then three.
    stalls_s = found.node_s[Spent.STALLED]
    assert found.node_s[Spent.TRAINED] < 4 * 3600 + 3 * 3600 - stalls_s
    assert found.node_s[Spent.TRAINED] > 4 * 3590 + 3 * 3600 - stalls_s - 4 * 60


def test_waiting_for_all_pays_for_those_who_wait():
    trace = made(4, (3600.0, 3), (5400.0, 4))
    cloud = CloudTimes(start_s=60.0)
    full = replay(trace, JOB, named("wait-full"), cloud=cloud)
    resize = replay(trace, JOB, named("resize"), cloud=cloud)
    assert full.node_s[Spent.WAITING] == pytest.approx(3 * 1860, rel=0.02)
    assert full.node_s[Spent.REPEATED] == 0.0
    assert full.samples < resize.samples


def test_without_fault_tolerance_steps_are_made_again():
    trace = made(4, (3600.0, 3), (3700.0, 4), (5000.0, 3), (5100.0, 4))
    cloud = CloudTimes(start_s=60.0)
    restart = replay(trace, JOB, named("restart"), cloud=cloud)
    full = replay(trace, JOB, named("wait-full"), cloud=cloud)
    assert restart.node_s[Spent.REPEATED] > 0
    assert restart.samples < full.samples


def test_a_loss_without_a_word_costs_the_step_and_the_time_to_notice():
    trace = made(4, (3600.3, 3))
    cloud = CloudTimes(start_s=60.0, notice_s=0.0)
    found = replay(trace, JOB, named("resize"), cloud=cloud)
    # Steps take a second; the fourth node is lost in the middle of one.
    assert 0 < found.node_s[Spent.REPEATED] < 4 * 1.0
    assert found.node_s[Spent.STALLED] >= 3 * JOB.lose_s


def test_when_all_go_what_was_saved_after_the_notice_is_there_again():
    trace = made(4, (3600.0, 0), (4000.0, 4))
    found = replay(trace, JOB, named("resize"), cloud=CloudTimes(start_s=60.0))
    assert found.taken == 4
    assert found.node_s[Spent.REPEATED] == pytest.approx(0.0, abs=4 * 20)
    short = CloudTimes(start_s=60.0, notice_s=1.0)
    lost = replay(trace, replace(JOB, save_s=60.0), named("resize"), cloud=short)
    assert lost.node_s[Spent.REPEATED] > 4 * 20


def test_nodes_on_demand_fill_the_gap_and_are_given_back():
    trace = made(4, (3600.0, 1), (9000.0, 4), end_s=20_000.0)
    found = replay(trace, JOB, named("resize+fallback", max_wait_s=300.0))
    # One is missing to the least of two, from the wait until others have stayed.
    assert paid_s(found, Market.ON_DEMAND) == pytest.approx(9000 - 3900, rel=0.1)
    assert sum(use.market == Market.ON_DEMAND for use in found.uses) == 1
    assert found.gave_up == ""


def test_a_job_gives_up_and_what_it_made_is_what_it_saved():
    config = SpotConfig(nodes=4, min_nodes=4, max_wait_s=100.0)
    strategy = Strategy(name="one", about="", config=config)
    cloud = CloudTimes(start_s=60.0)
    found = replay(made(4, (3600.0, 2)), JOB, strategy, cloud=cloud)
    assert "at least 4 are needed, after 100 s" in found.gave_up
    assert found.seconds == pytest.approx(3700.0, abs=130.0)


def test_a_job_without_nodes_costs_nothing():
    found = replay(made(0), JOB, named("resize"))
    assert (found.uses, found.samples, found.waste) == ((), 0.0, 0.0)


def test_a_job_ends_when_its_samples_are_made():
    found = replay(made(4), JOB, named("resize"), samples=4 * 840 * 1000.0)
    assert found.is_done
    assert found.seconds == pytest.approx(1240.0)
    slower = replay(
        made(4),
        replace(JOB, samples_ratio=1.5),
        named("resize"),
        samples=4 * 840 * 1000.0,
    )
    assert slower.seconds == pytest.approx(1740.0)
    assert slower.samples == pytest.approx(4 * 840 * 1000.0)


def test_idle_nodes_of_the_pool_are_taken_up_to_the_most():
    config = SpotConfig(nodes=2, max_nodes=6, unit=2, max_wait_s=math.inf)
    strategy = Strategy(name="grows", about="", config=config)
    found = replay(made(5, (3600.0, 7)), JOB, strategy)
    assert len(found.uses) == 6
    assert max(use.begin_s for use in found.uses) == 3600.0


def test_ready_nodes_take_over_before_those_with_a_notice_leave():
    notice = Notice(heard_s=100.0, deadline_s=220.0)
    old = [
        Node(
            name=name,
            market=Market.SPOT,
            phase=NodePhase.TRAINING,
            since_s=0.0,
            notice=notice,
        )
        for name in "ab"
    ]
    new = Node(name="c", market=Market.SPOT, phase=NodePhase.READY, since_s=104.0)
    capacity = Capacity(
        nodes=(*old, new), phase=JobPhase.TRAINING, changed_s=90.0, saved_s=100.0
    )
    found = decide(105.0, capacity, SpotConfig(nodes=2))
    (train,) = [one for one in found.actions if isinstance(one, Train)]
    assert sorted(train.nodes) == ["a", "b", "c"]


# ---- a comparison ----


def scenario(name="resize", **fields):
    usual = {
        "profile": PROFILES["resnet50"],
        "strategy": named(name),
        "prices": shipped_prices(),
        "offer": OFFER,
        "traces": SHAPES["busy"],
        "places": 5,
        "days": 2.0,
    }
    return Scenario(**{**usual, **fields})


def test_strategies_see_the_same_traces():
    one, other = scenario(), scenario("restart")
    assert (
        one.trace(3)
        == other.trace(3)
        == draw_trace(SHAPES["busy"], 5, days=2.0, seed=3)
    )
    assert one.trace(3) != one.trace(4)


def test_processes_change_nothing():
    scenarios = [scenario(), scenario("wait-full")]
    done = []
    alone = simulate_all(scenarios, seeds=[0, 1], report=lambda *n: done.append(n))
    both = simulate_all(scenarios, seeds=[0, 1], processes=2)
    for one, other in zip(alone, both, strict=True):
        assert replace(one, scenario=other.scenario) == other
    assert done == [(0, 2), (1, 2), (2, 2)]
    one = alone[0]
    assert one.saving.low <= one.saving.mean <= one.saving.high
    assert sum(one.spent.values()) == pytest.approx(1.0)


@given(st.floats(0.1, 3.0))
@settings(max_examples=20, deadline=None)
def test_a_saving_falls_as_the_price_of_spot_nodes_grows(factor):
    usual = scenario("resize+fallback", traces=SHAPES["hostile"], days=0.5)
    other = changed(usual, "spot_price", factor)
    one, two = simulate(usual, 0), simulate(other, 0)
    assert (one.cost <= two.cost) == (factor >= 1)
    assert one.replay == two.replay
    (summary,) = simulate_all([usual], seeds=[0])
    assert summary.price_factor_for(two.saving) == pytest.approx(factor)


def test_a_saving_that_not_even_free_nodes_give():
    usual = scenario("resize+fallback", traces=SHAPES["hostile"], days=0.5)
    (summary,) = simulate_all([usual], seeds=[0])
    assert summary.on_demand_part > 0
    assert math.isnan(summary.price_factor_for(1 - summary.on_demand_part / 2))


def test_each_input_can_be_another_one():
    effects = sensitivity(scenario("restart"), factors=(0.5, 4.0), seeds=[0])
    assert [(one.name, one.factor) for one in effects] == [
        (name, factor) for name in INPUTS for factor in (0.5, 4.0)
    ]
    found = {(one.name, one.factor): one.summary.saving.mean for one in effects}
    assert len(set(found.values())) > len(INPUTS)
    assert found["up_h", 4.0] > found["up_h", 0.5]
    assert found["spot_price", 0.5] > found["spot_price", 4.0]
    with pytest.raises(KeyError):
        changed(scenario(), "nothing", 1.0)
    read = scenario(traces=made(4))
    assert changed(read, "up_h", 2.0) is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"batch_per_node": 0}, "batch_per_node must be at least 1"),
        ({"sample_s": 0.0}, "sample_s must be more than 0"),
        ({"save_s": math.nan}, "save_s must be more than 0"),
        ({"restore_s": -1.0}, "restore_s must be a number from 0"),
        ({"stall_s": 9.0}, "stall_s 9.0 and save_s 4.0"),
    ],
)
def test_a_profile_that_is_none_is_refused(fields, words):
    with pytest.raises(ProfileError, match=words):
        replace(JOB, **fields)


def test_numbers_of_a_profile_are_replaced_with_a_note():
    job = with_number(PROFILES["resnet50"], "batch_per_node", 64.0)
    assert (job.batch_per_node, job.notes["batch_per_node"]) == (
        64,
        "given by the user",
    )
    with pytest.raises(ProfileError, match="whole number"):
        with_number(job, "batch_per_node", 1.5)
    with pytest.raises(ProfileError, match="has no 'name'; it has batch_per_node"):
        with_number(job, "name", 1.0)


@pytest.mark.parametrize("fields", [{"places": 0}, {"days": 0.0}, {"hours": math.nan}])
def test_a_scenario_needs_something(fields):
    with pytest.raises(ProgramError, match="places, days and hours above 0"):
        scenario(**fields)


def test_a_simulation_of_nothing_and_times_that_are_none():
    with pytest.raises(ProgramError, match="at least one scenario"):
        simulate_all([], seeds=[0])
    with pytest.raises(ProgramError, match="start_s must be"):
        CloudTimes(start_s=-1.0)
    with pytest.raises(ProgramError, match="notice_s must be"):
        CloudTimes(notice_s=math.inf)
