"""What forecasts rule out before a trial, and in which order the rest is asked."""

from __future__ import annotations

import pytest

from drivetrain_core import Choice, Code, Measurement, Slot
from drivetrain_search.prediction.memory_model import Forecast
from drivetrain_search.prediction.predictor import Predictor
from drivetrain_search.prediction.time_model import Rates
from drivetrain_search.report.record import TrialRecord
from drivetrain_search.space import SlotSpace

GIB = 1 << 30
SMALL = (Choice("micro_batch", {"num": 4}),)
LOW = (Choice("precision", {"dtype": "bf16_autocast"}),)
PARAMS = (Choice("precision", {"dtype": "bf16_params"}),)


class Table:
    """Stands in for a `Forecaster`: answers from a table."""

    overhead_bytes = 0
    rates = None
    timeout_s = 30.0

    def __init__(self, found):
        self.found, self.asked = found, []

    def calibrate(self, choices, measurement):
        self.calibrated = (choices, measurement)

    def forecast(self, choices):
        self.asked.append(choices)
        return self.found.get(choices, Forecast(because="unknown"))


def predictor(found, capacity=10 * GIB, on_cpu=True, limit_s=60.0):
    return Predictor(Table(found), capacity, on_cpu=on_cpu, limit_s=limit_s)


@pytest.mark.parametrize(
    ("size", "on_cpu", "code"),
    [
        (8 * GIB, True, None),
        (10 * GIB, True, None),  # Uncertain: a trial tells.
        (12 * GIB, True, Code.MEMORY),
        (12 * GIB, False, None),  # Fake runs are a CPU's.
        (16 * GIB, False, Code.MEMORY),
    ],
)
def test_plan_that_would_not_fit_is_not_tried(size, on_cpu, code):
    seer = predictor({SMALL: Forecast(peak_bytes=size)}, on_cpu=on_cpu)
    reject = seer.skip_reason(SMALL, best_s=1.0)
    assert (reject and reject.code) == code
    if reject:
        assert f"{size // GIB}.00 GiB of the 10.00 GiB" in reject.because


@pytest.mark.parametrize(("at_best", "skipped"), [(1.9, False), (2.1, True)])
def test_plan_that_is_far_behind_even_at_best_is_not_tried(at_best, skipped):
    seer = predictor({SMALL: Forecast(optimistic_step_time_s=at_best)})
    reject = seer.skip_reason(SMALL, best_s=1.0)
    assert (reject is not None) is skipped
    if reject:
        assert reject.code == Code.SLOWER


def test_nothing_foreseen_rules_nothing_out():
    seer = predictor({})
    assert seer.skip_reason(SMALL, best_s=1e-9) is None
    assert seer.mildest_first([SMALL, LOW]) == [SMALL, LOW]
    assert seer.shortfall((), [SMALL]) == ""


def test_plans_are_foreseen_once():
    seer = predictor({SMALL: Forecast(peak_bytes=1)})
    for _ in range(3):
        seer.skip_reason(SMALL, best_s=1.0)
    assert seer._forecaster.asked == [SMALL]


def test_foresight_ends_with_its_time():
    seer = predictor({SMALL: Forecast(peak_bytes=99 * GIB)}, limit_s=0.0)
    assert seer.skip_reason(SMALL, best_s=1.0) is None
    assert seer._forecaster.asked == []


def test_calibration_makes_what_was_foreseen_anew():
    seer = predictor({SMALL: Forecast(peak_bytes=1)})
    seer.skip_reason(SMALL, best_s=1.0)
    seer.calibrate((), Measurement(step_times_s=(1.0,), samples_per_step=1))
    seer.skip_reason(SMALL, best_s=1.0)
    assert seer._forecaster.asked == [SMALL, SMALL]


def test_mildest_plan_that_may_fit_takes_the_baselines_place():
    found = {
        SMALL: Forecast(peak_bytes=30 * GIB),
        LOW: Forecast(peak_bytes=9 * GIB),
        PARAMS: Forecast(peak_bytes=5 * GIB),
    }
    assert predictor(found).mildest_first([SMALL, LOW, PARAMS]) == [LOW, PARAMS]
    nothing = predictor({plan: Forecast(peak_bytes=30 * GIB) for plan in found})
    assert nothing.mildest_first([SMALL, LOW]) == [LOW]


def test_shortfall_says_by_how_much_and_what_is_smallest():
    found = {
        (): Forecast(peak_bytes=30 * GIB),
        SMALL: Forecast(peak_bytes=20 * GIB),
        LOW: Forecast(peak_bytes=25 * GIB),
    }
    assert predictor(found).shortfall((), [LOW, SMALL]) == (
        "; it needs about 30.00 GiB for its tensors, and 10.00 GiB are free; the "
        "smallest plan, micro_batch(num=4), needs 20.00 GiB"
    )


def test_likely_fastest_candidate_is_asked_first():
    found = {
        LOW: Forecast(step_time_s=2.0),
        PARAMS: Forecast(step_time_s=1.0),
    }
    precision = SlotSpace(
        slot=Slot.PRECISION, candidates=(*LOW, *PARAMS), monotone=False
    )
    mild = SlotSpace(
        slot=Slot.MICRO_BATCH,
        candidates=(Choice("micro_batch", {"num": 2}), *SMALL),
        monotone=True,
    )
    first, second = predictor(found).in_order((precision, mild), ())
    assert first.candidates == (*PARAMS, *LOW)
    assert second == mild


def test_forecasts_stand_by_the_trials():
    seer = predictor({SMALL: Forecast(peak_bytes=7)})
    seer.skip_reason(SMALL, best_s=1.0)
    records = [
        TrialRecord(name="t01", choices=(), seconds=1.0),
        TrialRecord(name="t02", choices=SMALL, seconds=1.0),
    ]
    assert seer.of_trials(records) == {"t02": Forecast(peak_bytes=7)}


@pytest.mark.parametrize(("slower", "skipped"), [(1.5, False), (20.0, True)])
def test_format_that_the_device_is_slow_at_is_not_tried_unforeseen(slower, skipped):
    seer = predictor({})
    seer._forecaster.rates = Rates(
        flops_per_s={"float32": 1e12, "bfloat16": 1e12 / slower},
        bytes_per_s=1e10,
        overhead_s=1e-6,
    )
    for plan in (LOW, PARAMS):
        reject = seer.skip_reason(plan, best_s=1.0)
        assert (reject is not None) is skipped
        if reject:
            assert (reject.code, "20 times as long" in reject.because) == (
                Code.SLOWER,
                True,
            )
    assert seer.skip_reason(SMALL, best_s=1.0) is None


def test_slot_that_is_expected_to_gain_most_comes_first():
    threads = (Choice("cpu_threads", {"num": 1}),)
    seer = predictor(
        {
            (): Forecast(step_time_s=1.0),
            LOW: Forecast(step_time_s=0.6),
            SMALL: Forecast(step_time_s=0.97),
            threads: Forecast(step_time_s=1.4),
        }
    )

    def entry(slot, choices):
        return SlotSpace(slot=slot, candidates=choices, monotone=False)

    space = [
        entry(Slot.CPU_THREADS, threads),
        entry(Slot.MICRO_BATCH, SMALL),
        entry(Slot.PRECISION, LOW),
    ]
    found = [one.slot for one in seer.in_order(space, ())]
    # What little is expected of says nothing: these keep their order.
    assert found == [Slot.PRECISION, Slot.CPU_THREADS, Slot.MICRO_BATCH]
