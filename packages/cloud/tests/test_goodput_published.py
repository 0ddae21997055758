"""Published figures, presets with their sources, formulas, sweeps and plots."""

import math
import sys
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_goodput import published_cases

from drivetrain_cloud.goodput import (
    PRESETS,
    CheckpointPlan,
    Loss,
    Origin,
    Preset,
    RecoveryProfile,
    Sourced,
    break_even,
    check_plot_path,
    daly_interval_s,
    get_input,
    input_names,
    plot_losses,
    plot_sensitivity,
    plot_sweep,
    preset,
    restart_goodput,
    sensitivity,
    simulate_many,
    survivor_goodput,
    sweep,
    with_input,
    young_interval_s,
)
from drivetrain_core import MissingLibraryError, ProgramError

CASES = {case.name: case for case in published_cases()}


# Published figures. The benchmark takes more seeds.


@pytest.mark.parametrize("name", CASES)
def test_published_figure_is_met(name):
    outcome = CASES[name].run(range(2))
    assert abs(outcome.error_points) <= 4.0
    assert outcome.error_points == pytest.approx(
        (outcome.goodput - CASES[name].figure) * 100
    )


def num_fitted(case):
    return sum(one.origin == Origin.FITTED for one in case.inputs.values())


def test_published_tests_are_apart_from_fits():
    fits = {name for name, case in CASES.items() if case.is_own_fit}
    assert all(num_fitted(CASES[name]) for name in fits)
    # Each fit has another figure of the same source that it was not fitted to.
    for name in fits:
        partner = CASES[name.replace("before", "after")]
        assert partner.is_test
        assert num_fitted(partner)
    free = [case for case in CASES.values() if not num_fitted(case)]
    assert {"byterobust", "megascale", "rsc-hourly"} <= {case.name for case in free}
    assert all(case.is_test for case in free)


def test_published_inputs_say_where_they_are_from():
    for case in CASES.values():
        assert case.inputs
        assert all(isinstance(one.origin, Origin) for one in case.inputs.values())
        assert all(one.note for one in case.inputs.values())


# Presets.


@pytest.mark.parametrize("name", PRESETS)
def test_preset_has_a_source_for_each_number(name):
    system = preset(name)
    given_ = {**system.recovery, **system.checkpoint, **system.job}
    assert all(one.note for one in given_.values())
    # What is not zero was given.
    profile, plain = system.profile(), RecoveryProfile(name=name)
    for one in fields(RecoveryProfile):
        if one.name not in system.recovery:
            assert getattr(profile, one.name) == getattr(plain, one.name)


def test_preset_measured_by_us_says_on_what():
    for system in PRESETS.values():
        for one in (*system.recovery.values(), *system.checkpoint.values()):
            if one.origin == Origin.MEASURED:
                assert "cpu-gloo" in one.note


def test_preset_unknown_name_is_refused_with_a_hint():
    with pytest.raises(ProgramError, match="did you mean 'drivetrain'"):
        preset("drivetrian")


def test_preset_with_a_field_that_does_not_exist_is_refused():
    number = Sourced(1.0, Origin.ASSUMED, "none")
    with pytest.raises(ProgramError, match="RecoveryProfile has no field 'pause'"):
        Preset(name="mine", recovery={"pause": number}, checkpoint={}, job={})


# Formulas.


@given(
    mtbf_s=st.floats(1e3, 1e6), stall_s=st.floats(0.1, 100), factor=st.floats(0.2, 5)
)
def test_formula_dalys_interval_is_the_best(mtbf_s, stall_s, factor):
    common = {"mtbf_s": mtbf_s, "recovery_s": 60.0, "stall_s": stall_s}
    best_s = daly_interval_s(stall_s=stall_s, mtbf_s=mtbf_s)
    best = restart_goodput(**common, interval_s=best_s)
    other = restart_goodput(**common, interval_s=best_s * factor)
    assert best >= other - 1e-3


def test_formula_youngs_interval_is_dalys_where_failures_are_rare():
    young = young_interval_s(stall_s=1.0, mtbf_s=1e8)
    assert daly_interval_s(stall_s=1.0, mtbf_s=1e8) == pytest.approx(young, rel=1e-3)


def test_formula_stalls_longer_than_failures_are_apart():
    assert daly_interval_s(stall_s=100.0, mtbf_s=10.0) == 10.0
    common = {"mtbf_s": 1.0, "recovery_s": 1e5}
    assert restart_goodput(**common, interval_s=1.0) == 0.0


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan")])
def test_formula_times_that_cannot_be_are_refused(bad):
    with pytest.raises(ProgramError, match="mtbf_s"):
        restart_goodput(mtbf_s=bad, recovery_s=1.0, interval_s=1.0)
    with pytest.raises(ProgramError, match="mtbf_s"):
        survivor_goodput(mtbf_s=bad, recovery_s=1.0, step_s=1.0)
    with pytest.raises(ProgramError, match="mtbf_s"):
        young_interval_s(stall_s=1.0, mtbf_s=bad)
    with pytest.raises(ProgramError, match="mtbf_s"):
        daly_interval_s(stall_s=1.0, mtbf_s=bad)


# Sweeps.


def job():
    return preset("torchrun").config(num_nodes=64).rarer(0.1)


@pytest.mark.parametrize("name", input_names())
def test_sweep_each_input_can_be_changed(name):
    value = get_input(job(), name)
    new = 2.0 if not math.isfinite(value) else min(value * 0.5 + 0.25, 1.0)
    new = float(round(new)) if name == "num_standbys" else new
    if name == "heartbeat_s":
        new = 1.0
    assert get_input(with_input(job(), name, new), name) == pytest.approx(new)


def test_sweep_of_two_inputs_takes_all_combinations():
    seen = []
    points = sweep(
        job(),
        {"mtbf_h": [1.0, 5.0], "restart_s": [10.0, 1000.0]},
        days=5,
        seeds=[0],
        report=lambda done, total: seen.append((done, total)),
    )
    assert [tuple(point.inputs.values()) for point in points] == [
        (1.0, 10.0),
        (1.0, 1000.0),
        (5.0, 10.0),
        (5.0, 1000.0),
    ]
    assert seen == [(at, 4) for at in range(4)]
    assert points[1].summary.goodput < points[2].summary.goodput


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("restart", 1.0, "no input is called 'restart'.*did you mean 'restart_s'"),
        ("mtbf_h", 0.0, "mtbf_h"),
        ("mtbf_h", float("nan"), "mtbf_h"),
        ("mtbf_h", math.inf, "mtbf_h"),
        ("restart_s", -1.0, "restart_s"),
        ("interval_s", 0.0, "interval_s"),
        ("num_standbys", math.inf, "num_standbys"),
        ("num_standbys", 1000.0, "num_standbys"),
        ("wrong_share", 2.0, "wrong_share"),
    ],
)
def test_sweep_over_what_cannot_be_is_refused(name, value, match):
    with pytest.raises(ProgramError, match=match):
        sweep(job(), {name: [value]}, days=1, seeds=[0])


def test_sweep_without_values_is_refused():
    with pytest.raises(ProgramError, match="at least one value"):
        sweep(job(), {"restart_s": []}, days=1, seeds=[0])


def test_sensitivity_has_each_input_that_is_not_zero():
    found = sensitivity(job(), factors=(0.5, 2.0), days=1, seeds=[0])
    wanted = {
        name
        for name in input_names()
        if get_input(job(), name) and math.isfinite(get_input(job(), name))
    }
    assert set(found) == wanted
    spans = [max(shares) - min(shares) for shares in found.values()]
    assert spans == sorted(spans, reverse=True)


def test_break_even_is_where_the_target_is_met():
    options = {"days": 30, "seeds": [0]}
    small = preset("megascale").config(num_nodes=64)
    factor = break_even(small, "diagnose_s", target=0.95, **options)
    assert factor > 1

    def goodput(by):
        value = get_input(small, "diagnose_s") * by
        return simulate_many(with_input(small, "diagnose_s", value), **options).goodput

    assert goodput(factor) >= 0.95 > goodput(factor * 1.2)


def test_break_even_of_what_does_not_matter_is_none():
    small = preset("drivetrain").config(num_nodes=8)
    options = {"target": 0.5, "days": 5, "seeds": [0]}
    assert break_even(small, "regroup_s", most=10.0, **options) is None
    with pytest.raises(ProgramError, match="locate_s is 0"):
        break_even(small, "locate_s", **options)


# Plots.


@pytest.mark.slow
@pytest.mark.extra
def test_plots_are_written_and_do_not_change(tmp_path):
    points = sweep(
        job(), {"mtbf_h": [1.0, 5.0], "restart_s": [0.0, 9.0]}, days=1, seeds=[0]
    )
    line = sweep(job(), {"mtbf_h": [1.0, 5.0]}, days=1, seeds=[0, 1])
    found = {"mine": line[0].summary, "other": line[1].summary}
    for name in ("one.svg", "two.svg"):
        plot_losses(tmp_path / f"losses-{name}", found)
        plot_sweep(tmp_path / f"map-{name}", points)
        plot_sweep(tmp_path / f"line-{name}", line)
        plot_sensitivity(
            tmp_path / f"inputs-{name}",
            {"restart_s": [0.9, 0.8]},
            factors=(0.5, 2.0),
            usual=0.85,
        )
    for kind in ("losses", "map", "line", "inputs"):
        one = (tmp_path / f"{kind}-one.svg").read_text()
        assert one == (tmp_path / f"{kind}-two.svg").read_text()
        assert "time" in one
    assert any(loss.value in (tmp_path / "losses-one.svg").read_text() for loss in Loss)


def test_plot_of_three_inputs_is_refused(tmp_path):
    values = {"mtbf_h": [1.0], "restart_s": [1.0], "load_s": [1.0]}
    points = sweep(job(), values, days=1, seeds=[0])
    with pytest.raises(ProgramError, match="one or two inputs, got 3"):
        plot_sweep(tmp_path / "a.svg", points)
    with pytest.raises(ProgramError, match="got 0"):
        plot_sweep(tmp_path / "a.svg", [])


@pytest.mark.parametrize("name", ["plot.gif", "plot", "missing/plot.svg"])
def test_plot_path_that_cannot_be_is_refused(tmp_path, name):
    with pytest.raises(ProgramError, match="a plot's"):
        check_plot_path(tmp_path / name)


def test_plot_without_matplotlib_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingLibraryError, match=r"drivetrain-cloud\[plot\]"):
        check_plot_path(tmp_path / "plot.svg")


def test_stall_share_counts_both_kinds():
    plan = CheckpointPlan(
        interval_s=100.0, stall_s=1.0, memory_interval_s=10.0, memory_stall_s=0.1
    )
    assert plan.stall_share == pytest.approx(0.02)
