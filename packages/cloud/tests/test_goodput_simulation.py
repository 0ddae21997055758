"""The simulation against formulas, against the master's own function, and itself."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_cloud.goodput import (
    CheckpointPlan,
    FailureMode,
    GoodputConfig,
    Loss,
    RecoveryProfile,
    Sign,
    preset,
    restart_goodput,
    simulate,
    simulate_many,
    survivor_goodput,
    usual_failures,
    young_interval_s,
)
from drivetrain_cloud.goodput._fleet import Fleet
from drivetrain_cloud.goodput._track import CheckpointTrack
from drivetrain_core import ProgramError
from drivetrain_core.services import ClusterSpec
from drivetrain_health.failures import Action, FailureClass

HOUR_S = 3600.0
PROCESS = {
    "failure_class": FailureClass.INTERCONNECT,
    "cause": "nccl-timeout",
    "cure": Action.RESTART_IN_PLACE,
}


def one_mode(mtbf_h, *, recovery, interval_s=3600.0, stall_s=0.0, nodes=16, **rest):
    mode = FailureMode(name="one", mtbf_job_h=mtbf_h, **{**PROCESS, **rest})
    return GoodputConfig(
        num_nodes=nodes,
        modes=(mode,),
        recovery=recovery,
        checkpoint=CheckpointPlan(interval_s=interval_s, stall_s=stall_s),
    )


# Against formulas.


@pytest.mark.parametrize(
    ("mtbf_h", "restart_s", "interval_s", "stall_s"),
    [(2.0, 600.0, 3600.0, 0.0), (8.0, 1800.0, 5400.0, 300.0), (1.0, 60.0, 300.0, 20.0)],
)
def test_simulation_restarts_meet_dalys_formula(mtbf_h, restart_s, interval_s, stall_s):
    recovery = RecoveryProfile(name="restarts", restart_s=restart_s)
    job = one_mode(mtbf_h, recovery=recovery, interval_s=interval_s, stall_s=stall_s)
    found = simulate_many(job, days=100, seeds=range(4)).goodput
    expected = restart_goodput(
        mtbf_s=mtbf_h * HOUR_S,
        recovery_s=restart_s,
        interval_s=interval_s,
        stall_s=stall_s,
    )
    assert found == pytest.approx(expected, abs=0.012)


def test_simulation_survivors_meet_their_formula():
    recovery = RecoveryProfile(name="survivors", keeps_survivors=True, regroup_s=60.0)
    job = replace(one_mode(1.0, recovery=recovery), step_s=120.0)
    found = simulate_many(job, days=100, seeds=range(4)).goodput
    expected = survivor_goodput(mtbf_s=HOUR_S, recovery_s=60.0, step_s=120.0)
    assert found == pytest.approx(expected, abs=0.006)


def test_simulation_youngs_interval_beats_its_neighbours():
    mtbf_s, stall_s = 4 * HOUR_S, 60.0
    recovery = RecoveryProfile(name="restarts", restart_s=300.0)
    best_s = young_interval_s(stall_s=stall_s, mtbf_s=mtbf_s)
    found = {
        factor: simulate_many(
            one_mode(
                4.0, recovery=recovery, interval_s=best_s * factor, stall_s=stall_s
            ),
            days=100,
            seeds=range(4),
        ).goodput
        for factor in (0.25, 1.0, 4.0)
    }
    assert max(found, key=found.get) == 1.0


def test_simulation_job_that_never_fails_loses_only_stalls():
    recovery = RecoveryProfile(name="any")
    job = one_mode(math.inf, recovery=recovery, interval_s=900.0, stall_s=100.0)
    run = simulate(job, days=1)
    assert run.goodput == pytest.approx(0.9)
    assert set(run.lost_s) == {Loss.CHECKPOINT}


# Against the master's own function, of which nothing is left out.


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    copies=st.integers(1, 5),
    unit=st.integers(1, 3),
    share=st.floats(0.0, 1.0),
    moves=st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 14))), max_size=12),
)
def test_fleet_lean_state_decides_as_the_whole_one(copies, unit, share, moves):
    nodes = copies * unit
    made = {
        "num_nodes": nodes,
        "nodes_per_copy": unit,
        "min_nodes": max(1, round(share * nodes)),
        "settle_s": 0.1,
    }
    lean, whole = Fleet(**made), Fleet(**made, is_lean=False)
    for now_s, (is_loss, places) in enumerate(moves):
        places = {one for one in places if one < nodes}
        for fleet in (lean, whole):
            if is_loss:
                fleet.lose(sorted(places))
            else:
                fleet.fill(sorted(places & fleet.missing), float(now_s))
        assert lean.missing == whole.missing
        assert lean.has_state() == whole.has_state()
        assert lean.form(float(now_s)) == whole.form(float(now_s))
        active = [[one.is_active(p) for p in range(nodes)] for one in (lean, whole)]
        assert active[0] == active[1]


def test_fleet_of_many_nodes_keeps_a_small_state():
    fleet = Fleet(num_nodes=1536, nodes_per_copy=8, min_nodes=8)
    for at, place in enumerate(range(0, 1536, 7)):
        fleet.lose([place])
        assert fleet.form(float(at)).num_active == 1528
        fleet.fill([place], float(at))
        assert fleet.form(at + 0.5).num_active == 1536
    assert fleet.num_hidden == 1528


# Against itself.

PROFILES = st.builds(
    RecoveryProfile,
    name=st.just("drawn"),
    exit_s=st.floats(0, 100),
    heartbeat_s=st.floats(0, 5),
    node_timeout_s=st.floats(5, 60),
    hang_timeout_s=st.floats(0, 1000),
    slow_s=st.floats(0, 4000),
    corruption_s=st.floats(0, 4000),
    diagnose_s=st.floats(0, 100),
    manual_share=st.floats(0, 1),
    manual_s=st.floats(0, 4000),
    wrong_share=st.floats(0, 1),
    operator_s=st.floats(0, 4000),
    keeps_survivors=st.booleans(),
    regroup_s=st.floats(0, 100),
    join_s=st.floats(0, 100),
    restart_s=st.floats(0, 1000),
    load_s=st.floats(0, 1000),
    provision_s=st.floats(0, 4000),
    may_resize=st.booleans(),
    resize_s=st.floats(0, 100),
)
PLANS = st.builds(
    CheckpointPlan,
    interval_s=st.floats(60, 10_000),
    stall_s=st.floats(0, 60),
    durable_s=st.floats(0, 1000),
    memory_interval_s=st.none() | st.floats(60, 1000),
    memory_stall_s=st.floats(0, 10),
    has_replicas=st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(
    recovery=PROFILES,
    plan=PLANS,
    copies=st.integers(1, 6),
    per_copy=st.integers(1, 4),
    standbys=st.integers(0, 1),
    spares=st.none() | st.integers(0, 5),
    mtbf_gpu_h=st.floats(20, 5000),
    seed=st.integers(0, 1000),
)
def test_simulation_every_second_is_accounted_for(
    recovery, plan, copies, per_copy, standbys, spares, mtbf_gpu_h, seed
):
    job = GoodputConfig(
        num_nodes=copies * per_copy,
        nodes_per_copy=per_copy,
        num_standbys=standbys,
        num_spares=spares,
        recovery=recovery,
        checkpoint=plan,
        modes=usual_failures(mtbf_gpu_h),
    )
    run = simulate(job, days=3, seed=seed)
    assert all(seconds >= -1e-6 for seconds in run.lost_s.values())
    assert 0 <= run.effective_s <= run.wall_s
    total_s = run.effective_s + sum(run.lost_s.values())
    assert total_s == pytest.approx(run.wall_s, rel=1e-9)


def test_simulation_same_seed_gives_the_same_run():
    job = preset("drivetrain").config(num_nodes=64).rarer(0.1)
    assert simulate(job, days=5, seed=3) == simulate(job, days=5, seed=3)
    assert simulate(job, days=5, seed=3) != simulate(job, days=5, seed=4)


@pytest.mark.parametrize("name", ["drivetrain", "torchrun", "dlrover", "byterobust"])
def test_simulation_rarer_failures_let_more_time_count(name):
    job = preset(name).config(num_nodes=256)
    found = [
        simulate_many(job.rarer(factor), days=20, seeds=range(2)).goodput
        for factor in (0.02, 0.2, 2.0)
    ]
    assert found == sorted(found)


# What each part of the model does.


def test_simulation_silent_node_is_lost_after_its_timeout():
    recovery = RecoveryProfile(
        name="any", heartbeat_s=4.0, node_timeout_s=10.0, keeps_survivors=True
    )
    job = one_mode(
        1.0,
        recovery=recovery,
        failure_class=FailureClass.NODE_LOST,
        cause="node-lost",
        sign=Sign.NODE_LOST,
        cure=Action.REPLACE_NODE,
    )
    run = simulate(job, days=30)
    mean_s = run.lost_s[Loss.DETECTION] / run.num_failures["one"]
    # The last word was up to a heartbeat before the failure.
    assert 7.0 < mean_s < 9.0


def test_simulation_hang_is_found_with_the_age_of_its_step():
    recovery = RecoveryProfile(name="any", hang_timeout_s=100.0, keeps_survivors=True)
    job = one_mode(1.0, recovery=recovery, sign=Sign.HANG)
    run = simulate(job, days=30)
    mean_s = run.lost_s[Loss.DETECTION] / run.num_failures["one"]
    assert 90.0 <= mean_s <= 100.0


def test_simulation_remedy_that_does_not_help_is_followed_by_the_next():
    recovery = RecoveryProfile(
        name="any", hang_timeout_s=100.0, keeps_survivors=True, regroup_s=5.0
    )
    common = {"recovery": recovery, "sign": Sign.HANG}
    light = simulate(one_mode(2.0, **common), days=60)
    heavy = simulate(one_mode(2.0, **common, cure=Action.REPLACE_NODE), days=60)

    def waited_s(run):
        return run.lost_s[Loss.DETECTION] / run.num_failures["one"]

    # In place, the process, the node: noticed three times instead of once.
    assert waited_s(heavy) == pytest.approx(3 * waited_s(light), rel=0.1)


def test_simulation_ladder_that_forgets_too_soon_needs_people():
    recovery = RecoveryProfile(
        name="any", hang_timeout_s=2400.0, operator_s=3000.0, keeps_survivors=True
    )
    job = one_mode(200.0, recovery=recovery, sign=Sign.HANG, cure=Action.REPLACE_NODE)
    run = simulate(job, days=100)
    assert run.lost_s[Loss.PEOPLE] > 0


def test_simulation_program_error_waits_for_people():
    recovery = RecoveryProfile(name="any", operator_s=1000.0)
    job = one_mode(
        5.0, recovery=recovery, failure_class=FailureClass.PROGRAM, cause="error"
    )
    run = simulate(job, days=60)
    assert run.lost_s[Loss.PEOPLE] == pytest.approx(
        1000.0 * run.num_failures["one"], rel=0.1
    )


def test_simulation_standby_spares_the_wait_for_a_node():
    recovery = RecoveryProfile(name="any", provision_s=1800.0)
    node = {"failure_class": FailureClass.NODE_HARDWARE, "cure": Action.REPLACE_NODE}
    job = one_mode(50.0, recovery=recovery, **node)
    without = simulate(job, days=90)
    with_one = simulate(replace(job, num_standbys=1), days=90)
    assert without.lost_s[Loss.NODES] > 1700 * without.num_failures["one"]
    assert with_one.lost_s.get(Loss.NODES, 0.0) < without.lost_s[Loss.NODES] / 5


def test_simulation_job_that_may_shrink_is_slower_but_goes_on():
    recovery = RecoveryProfile(
        name="any", provision_s=86_400.0, keeps_survivors=True, may_resize=True
    )
    node = {"failure_class": FailureClass.NODE_HARDWARE, "cure": Action.REPLACE_NODE}
    job = one_mode(50.0, recovery=recovery, **node)
    shrinks = simulate(job, days=90)
    waits = simulate(
        replace(job, recovery=replace(recovery, may_resize=False)), days=90
    )
    assert shrinks.lost_s[Loss.DEGRADED] > 0
    assert Loss.NODES not in shrinks.lost_s
    assert waits.lost_s[Loss.NODES] > 0
    assert shrinks.goodput > waits.goodput


def test_simulation_last_copy_that_dies_is_loaded_again():
    recovery = RecoveryProfile(
        name="any", keeps_survivors=True, regroup_s=1.0, restart_s=100.0, load_s=200.0
    )
    node = {"failure_class": FailureClass.NODE_HARDWARE, "cure": Action.REPLACE_NODE}
    job = one_mode(20.0, recovery=recovery, nodes=4, **node)
    many = simulate(job, days=90)
    one = simulate(replace(job, nodes_per_copy=4), days=90)
    assert many.lost_s[Loss.RESTART] < 2 * many.num_failures["one"]
    assert one.lost_s[Loss.RESTART] == pytest.approx(
        300.0 * one.num_failures["one"], rel=0.1
    )
    assert one.lost_s[Loss.REMADE] > 20 * many.lost_s[Loss.REMADE]


def test_simulation_switch_takes_neighbours_and_spares_run_out():
    recovery = RecoveryProfile(name="any")
    switch = {
        "failure_class": FailureClass.NODE_LOST,
        "cause": "node-lost",
        "cure": Action.REPLACE_NODE,
        "num_nodes": 4,
        "repair_h": 10.0,
    }
    job = one_mode(100.0, recovery=recovery, nodes=8, **switch)
    short = simulate(replace(job, num_spares=0), days=90)
    # Nothing but the repair brings nodes back, and only the last one ends the wait.
    assert short.lost_s[Loss.NODES] >= 0.9 * 36_000 * (short.num_failures["one"] - 2)
    assert Loss.NODES not in simulate(replace(job, num_spares=None), days=90).lost_s


def test_simulation_slow_node_slows_all_until_it_is_found():
    recovery = RecoveryProfile(name="any", slow_s=3600.0, keeps_survivors=True)
    job = one_mode(
        50.0,
        recovery=recovery,
        failure_class=FailureClass.STRAGGLER,
        cause="slow-node",
        sign=Sign.SLOW,
        slowdown=2.0,
        cure=Action.REPLACE_NODE,
    )
    run = simulate(job, days=90)
    # Half of each hour.
    expected_s = 1800.0 * run.num_failures["one"]
    assert run.lost_s[Loss.DEGRADED] == pytest.approx(expected_s, rel=0.15)


def test_simulation_wrong_numbers_take_back_what_came_after_them():
    recovery = RecoveryProfile(name="any", corruption_s=7200.0)
    job = one_mode(
        200.0,
        recovery=recovery,
        interval_s=600.0,
        failure_class=FailureClass.CORRUPTION,
        cause="silent-data-corruption",
        sign=Sign.CORRUPTION,
        cure=Action.REPLACE_NODE,
    )
    run = simulate_many(job, days=300, seeds=range(3)).runs
    remade_s = sum(one.lost_s[Loss.REMADE] for one in run)
    failures = sum(one.num_failures["one"] for one in run)
    # Two hours, and half an interval to the checkpoint before.
    assert remade_s / failures == pytest.approx(7500.0, rel=0.05)


def test_track_memory_copy_is_newer_but_dies_with_its_host():
    plan = CheckpointPlan(
        interval_s=1000.0, durable_s=300.0, memory_interval_s=50.0, memory_stall_s=0.0
    )
    track = CheckpointTrack(plan)
    track.note(0.0, 0.0)
    track.note(1290.0, 1290.0)
    assert track.newest(1290.0, is_memory_lost=False) == 1250.0
    assert track.newest(1290.0, is_memory_lost=True) == 0.0
    track.note(1310.0, 1310.0)
    assert track.newest(1310.0, is_memory_lost=True) == 1000.0
    assert track.newest(1310.0, is_memory_lost=True, before_s=900.0) == 0.0
    track.roll_back(1310.0, 1000.0)
    assert track.newest(1320.0, is_memory_lost=True) == 1000.0


# Clusters, and what people get wrong.

CLUSTER = """
drivetrain_cluster: 1
name: two
nodes:
  - {name: a, count: 6, devices: {kind: H100, count: 8, memory: 80GB}}
  - {name: b, count: 4, devices: {kind: H200, count: %d, memory: 141GB}}
"""


def test_config_from_a_cluster_leaves_out_those_that_stand_by():
    recovery = RecoveryProfile(name="any")
    job = GoodputConfig.from_cluster(
        ClusterSpec.from_yaml(CLUSTER % 8),
        recovery=recovery,
        checkpoint=CheckpointPlan(interval_s=60.0),
        num_standbys=1,
        nodes_per_copy=4,
    )
    assert (job.num_nodes, job.num_devices, job.num_standbys) == (8, 64, 1)


SWITCHED = """
drivetrain_cluster: 1
name: switched
nodes:
  - name: a
    count: 64
    devices: {kind: H100, count: 8, memory: 80GB}
    nics: {count: 8, bandwidth: 400Gb/s, rails: %s}
    switch: leaf
switches: [{name: leaf, downlinks: 64}]
"""


@pytest.mark.parametrize(("rails", "nodes"), [("false", 8), ("true", 64)])
def test_config_from_a_cluster_knows_what_a_switch_takes(rails, nodes):
    job = GoodputConfig.from_cluster(
        ClusterSpec.from_yaml(SWITCHED % rails),
        recovery=RecoveryProfile(name="any"),
        checkpoint=CheckpointPlan(interval_s=60.0),
        mtbf_gpu_h=1000.0,
    )
    taken = {mode.name: mode.num_nodes for mode in job.modes}
    assert (taken["switch"], taken["gpu"]) == (nodes, 1)
    rate = usual_failures(1000.0)[0].rate_per_s(num_nodes=64, devices_per_node=8)
    assert job.modes[0].rate_per_s(num_nodes=64, devices_per_node=8) == rate


@pytest.mark.parametrize(
    ("devices", "options", "match"),
    [
        (4, {}, "same number of devices"),
        (8, {"nodes_per_copy": 11}, "not enough for one copy"),
        (8, {"num_standbys": 10}, "not enough"),
    ],
)
def test_config_from_a_cluster_that_does_not_fit_is_refused(devices, options, match):
    with pytest.raises(ProgramError, match=match):
        GoodputConfig.from_cluster(
            ClusterSpec.from_yaml(CLUSTER % devices),
            recovery=RecoveryProfile(name="any"),
            checkpoint=CheckpointPlan(interval_s=60.0),
            **options,
        )


NAN = float("nan")


@pytest.mark.parametrize(
    ("make", "options", "match"),
    [
        (RecoveryProfile, {"restart_s": -1.0}, "restart_s .* got -1"),
        (RecoveryProfile, {"restart_s": NAN}, "restart_s .* got nan"),
        (RecoveryProfile, {"restart_s": math.inf}, "restart_s"),
        (RecoveryProfile, {"restart_s": "1"}, "restart_s must be a number"),
        (RecoveryProfile, {"manual_share": 1.5}, "manual_share"),
        (RecoveryProfile, {"heartbeat_s": 3.0, "node_timeout_s": 2.0}, "heartbeat_s"),
        (CheckpointPlan, {"interval_s": 0.0}, "interval_s must be more than 0"),
        (CheckpointPlan, {"interval_s": NAN}, "interval_s"),
        (CheckpointPlan, {"interval_s": math.inf}, "finite"),
        (CheckpointPlan, {"interval_s": 1.0, "memory_interval_s": 0.0}, "memory_int"),
        (CheckpointPlan, {"interval_s": 1.0, "stall_s": -1.0}, "stall_s"),
        (FailureMode, {}, "exactly one of .* got none"),
        (FailureMode, {"mtbf_gpu_h": 1.0, "mtbf_job_h": 1.0}, "exactly one"),
        (FailureMode, {"mtbf_gpu_h": 0.0}, "more than 0"),
        (FailureMode, {"mtbf_gpu_h": NAN}, "mtbf_gpu_h"),
        (FailureMode, {"mtbf_gpu_h": -5.0}, "mtbf_gpu_h"),
        (FailureMode, {"mtbf_gpu_h": 5.0, "num_nodes": 0}, "num_nodes"),
        (FailureMode, {"mtbf_gpu_h": 5.0, "slowdown": 0.5}, "slowdown"),
    ],
)
def test_numbers_that_cannot_be_are_refused(make, options, match):
    name = {} if make is CheckpointPlan else {"name": "any"}
    with pytest.raises(ProgramError, match=match):
        make(**name, **options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"num_nodes": 0}, "num_nodes"),
        ({"num_nodes": 2.5}, "whole number"),
        ({"num_nodes": 9, "nodes_per_copy": 2}, "multiple of nodes_per_copy"),
        ({"num_standbys": 11}, "num_standbys must not be more than num_nodes"),
        ({"num_standbys": -1}, "num_standbys"),
        ({"num_spares": -1}, "num_spares"),
        ({"step_s": 0.0}, "step_s"),
        ({"min_nodes": 11}, "min_nodes must not be more"),
        ({"min_nodes": 5}, "does not go on with fewer nodes"),
        ({"modes": (usual_failures()[0],) * 2}, "name of its own"),
    ],
)
def test_config_that_contradicts_itself_is_refused(options, match):
    with pytest.raises(ProgramError, match=match):
        GoodputConfig(
            **{
                "num_nodes": 10,
                "recovery": RecoveryProfile(name="any"),
                "checkpoint": CheckpointPlan(interval_s=60.0),
                **options,
            }
        )


@pytest.mark.parametrize("days", [0.0, -1.0, NAN, math.inf])
def test_simulation_of_no_time_is_refused(days):
    with pytest.raises(ProgramError, match="days"):
        simulate(preset("drivetrain").config(num_nodes=8), days=days)


def test_simulation_without_seeds_is_refused():
    with pytest.raises(ProgramError, match="seeds"):
        simulate_many(preset("drivetrain").config(num_nodes=8), seeds=[])


@pytest.mark.parametrize("mtbf_gpu_h", [0.0, -1.0, NAN, math.inf])
def test_usual_failures_need_a_time_between_them(mtbf_gpu_h):
    with pytest.raises(ProgramError, match="mtbf_gpu_h"):
        usual_failures(mtbf_gpu_h)
