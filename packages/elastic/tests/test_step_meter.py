import pytest
import torch

from drivetrain_elastic._observability._flight_record import (
    FlightRecord,
    read_flight_record,
)
from drivetrain_elastic._observability._step_meter import StepMeter


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s

    def pass_by(self, seconds):
        self.now_s += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def meter(clock):
    return StepMeter(torch.device("cpu"), window_steps=2, told_s=0.0, clock=clock)


def make_step(meter, clock, number, *, compute=0.1, wait=0.02):
    meter.begin_step(number)
    clock.pass_by(compute)
    meter.wait()
    clock.pass_by(wait)
    meter.apply()
    clock.pass_by(0.01)
    meter.end_step()


def test_time_of_a_world_is_told_apart(meter, clock):
    meter.find_world()
    clock.pass_by(3.0)
    meter.enter_world(1, 0)
    make_step(meter, clock, 1)
    clock.pass_by(0.5)
    make_step(meter, clock, 2)
    account = meter.times().accounts[1]
    assert account.forming_s == pytest.approx(3.0)
    assert (account.first_step, account.last_step) == (0, 2)
    assert account.steps_s == pytest.approx(0.26)
    assert account.outside_s == pytest.approx(0.5)


def test_waiting_is_no_section_of_ones_own(meter, clock):
    meter.find_world()
    meter.enter_world(1, 0)
    for number in (1, 2):
        make_step(meter, clock, number, compute=0.1, wait=7.0)
    window = meter.times().window
    assert window.sections_s["compute"] == pytest.approx(0.1)
    assert window.step_s == pytest.approx(7.11)
    assert "wait" not in window.sections_s


def test_named_sections_are_taken_off_what_is_around_them(meter, clock):
    meter.find_world()
    meter.enter_world(1, 0)
    for number in (1, 2):
        with meter.section("log"):
            clock.pass_by(0.05)
        clock.pass_by(0.01)
        meter.begin_step(number)
        with meter.section("data"):
            clock.pass_by(0.2)
        clock.pass_by(0.1)
        meter.wait()
        meter.end_step()
    sections = meter.times().window.sections_s
    assert sections["data"] == pytest.approx(0.2)
    assert sections["compute"] == pytest.approx(0.1)
    assert sections["log"] == pytest.approx(0.05)
    # Of one step only: before the first one the world forms.
    assert sections["outside"] == pytest.approx(0.005)


def test_step_that_did_not_count_is_made_again(meter, clock):
    meter.find_world()
    meter.enter_world(1, 0)
    make_step(meter, clock, 1)
    meter.begin_step(2)
    clock.pass_by(2.0)
    meter.leave_world()
    clock.pass_by(0.3)
    meter.find_world()
    meter.enter_world(2, 1)
    meter.begin_step(2)
    account = meter._accounts[2]
    assert account.redone_s == pytest.approx(2.0)
    assert account.forming_s == pytest.approx(0.3)
    assert (account.first_step, account.last_step) == (1, 1)


def test_step_that_counts_though_its_world_broke_is_not(meter, clock):
    meter.find_world()
    meter.enter_world(1, 0)
    make_step(meter, clock, 1)
    meter.begin_step(2)
    clock.pass_by(2.0)
    meter.leave_world()
    meter.enter_world(2, 2)
    meter.begin_step(3)
    account = meter._accounts[2]
    assert account.redone_s == 0.0
    assert (account.first_step, account.last_step) == (2, 2)
    # Longer than a step takes: the rest went to noticing.
    assert account.steps_s + account.forming_s == pytest.approx(2.0)
    assert account.steps_s == pytest.approx(0.13)


def test_a_worker_that_stood_by_has_lost_nothing_by_it(meter, clock):
    clock.pass_by(600.0)
    meter.find_world()
    clock.pass_by(0.2)
    meter.enter_world(7, 50)
    meter.begin_step(51)
    assert meter._accounts[7].forming_s == pytest.approx(0.2)


def test_windows_hold_the_same_steps_on_all_ranks(meter, clock):
    meter.find_world()
    # It has come in the middle of a window, which it does not tell of.
    meter.enter_world(1, 1)
    make_step(meter, clock, 2)
    assert meter.times().window is None
    make_step(meter, clock, 3)
    make_step(meter, clock, 4)
    assert meter.times().window.number == 1


def test_of_short_steps_the_same_windows_are_told_by_ranks_that_differ(clock):
    told = []
    for compute in (0.01, 0.018):
        meter = StepMeter(torch.device("cpu"), window_steps=2, told_s=0.5, clock=clock)
        meter.find_world()
        meter.enter_world(1, 0)
        numbers = set()
        for number in range(1, 401):
            make_step(meter, clock, number, compute=compute, wait=0.0)
            if meter.times().window is not None:
                numbers.add(meter.times().window.number)
        told.append(numbers)
    assert len(told[0] & told[1]) >= 10
    assert max(len(one) for one in told) <= 40


def test_samples_of_a_window_are_counted(meter, clock):
    meter.find_world()
    meter.enter_world(1, 0)
    for number in (1, 2, 3, 4):
        meter.begin_step(number)
        meter.add_samples(number)
        meter.wait()
        meter.end_step()
    assert meter.times().window.num_samples == pytest.approx(3.5)


def test_only_the_last_worlds_are_kept(meter, clock):
    for epoch in range(1, 10):
        meter.find_world()
        meter.enter_world(epoch, epoch - 1)
        make_step(meter, clock, epoch)
        meter.leave_world()
    assert sorted(meter.times().accounts) == [6, 7, 8, 9]


def test_each_operation_is_noted(tmp_path, clock):
    entered = [40]
    with FlightRecord(tmp_path / "flight") as record:
        meter = StepMeter(
            torch.device("cpu"), count=lambda: entered[0], record=record, clock=clock
        )
        meter.find_world()
        meter.enter_world(2, 10)
        meter.begin_step(11)
        entered[0] += 3
        meter.wait()
        last = read_flight_record(tmp_path / "flight")[-1]
    assert last[:4] == (2, 11, 3, "all-reduce")
    assert last.is_waiting
