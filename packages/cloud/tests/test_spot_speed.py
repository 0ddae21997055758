"""How fast a job is by number of nodes, and what a supervisor makes of it."""

from __future__ import annotations

import pytest

from drivetrain_cloud.spot import JobPhase, Recovery, SpotConfig, Supervisor
from drivetrain_cloud.spot.job_control import JobView
from drivetrain_cloud.spot.measured_speed import SpeedWatch, watch_speed
from drivetrain_cloud.spot.pool import PoolNode
from drivetrain_cloud.spot.worker_count import CountConfig, first_wants, wants
from drivetrain_core import ProgramError


def look(watch, now_s, workers, step, samples=8.0):
    return watch_speed(now_s, watch, workers=workers, step=step, step_samples=samples)


def train(watch, begin, steps, workers, step_s=1.0):
    for step in range(begin, begin + steps + 1):
        watch = look(watch, step * step_s, workers, step)
    return watch


def test_speed_is_the_median_of_windows():
    watch = train(SpeedWatch(window_steps=10), 0, 25, 2)
    watch = train(watch, 25, 100, 2)
    (speed,) = watch.speeds.values()
    assert speed.samples_per_s == pytest.approx(8.0)
    assert speed.steps == 50


def test_one_slow_window_does_not_change_it():
    watch = train(SpeedWatch(window_steps=10), 0, 45, 2)
    watch = look(watch, 1000.0, 2, 55)
    assert watch.windows[2][-1] < 1.0
    assert watch.speeds[2].samples_per_s == pytest.approx(8.0)


def test_a_window_that_a_change_has_torn_does_not_count():
    watch = train(SpeedWatch(window_steps=10), 0, 12, 2)
    watch = look(watch, 13.0, 3, 13)
    assert watch.speeds == {}
    watch = train(watch, 13, 14, 3)
    assert watch.speeds == {}
    watch = train(watch, 27, 3, 3)
    assert set(watch.speeds) == {3}


@pytest.mark.parametrize("known", [{"workers": 0}, {"samples": 0.0}])
def test_nothing_is_known_while_nobody_trains_or_says_how_much(known):
    watch = SpeedWatch(window_steps=5)
    for step in range(40):
        watch = look(watch, float(step), known.get("workers", 2), step, 0.0)
    assert watch.speeds == {}


@pytest.mark.parametrize("samples", [float("nan"), float("inf"), -8.0])
def test_samples_that_are_no_number_measure_nothing(samples):
    watch = SpeedWatch(window_steps=10)
    for step in range(40):
        watch = look(watch, float(step), 2, step, samples)
    assert not watch.speeds


def test_a_job_that_begins_again_is_measured_again():
    watch = train(SpeedWatch(window_steps=10), 100, 30, 2)
    watch = look(watch, 200.0, 2, 3)
    assert (watch.begin_s, watch.begin_step) == (None, 8)
    assert watch.speeds[2].samples_per_s == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("config", "count", "words"),
    [
        ({"recovery": Recovery.WAIT_FULL}, {}, "by resizing only"),
        ({"unit": 2}, {}, "nodes come and go by 2"),
        ({}, {"least": 3, "most": 5, "unit": 2}, "must be a multiple"),
    ],
)
def test_wants_that_no_number_can_follow_are_refused(config, count, words):
    spot = SpotConfig(nodes=4, **config)
    with pytest.raises(ProgramError, match=words):
        first_wants(spot, CountConfig(**{"least": 1, "most": 8, **count}))


def test_first_wants_lie_within_the_bounds():
    count = CountConfig(least=2, most=6, unit=2)
    spot = SpotConfig(nodes=8, max_nodes=8, min_nodes=1, unit=2)
    found = first_wants(spot, count)
    assert (found.nodes, found.most, found.min_nodes) == (6, 6, 1)
    assert wants(SpotConfig(nodes=4, min_nodes=3), 2).min_nodes == 2


class Farm:
    """A pool whose nodes come at once, and a job that is so fast with each number."""

    def __init__(self, speeds):
        self.speeds = speeds
        self.listed, self.admitted, self.num = {}, frozenset(), 0
        self.made, self.now_s = 0.0, 0.0

    def request(self, market, count):
        names = tuple(f"n{self.num + one}" for one in range(count))
        self.num += count
        for name in names:
            self.listed[name] = PoolNode(name=name, market=market, is_running=True)
        return names

    def cancel(self, node):
        self.listed.pop(node, None)

    release = cancel

    def nodes(self, now_s):
        return tuple(self.listed.values())

    def offered(self, now_s):
        return 0

    def look(self):
        training = self.admitted & set(self.listed)
        step_s = 8.0 / self.speeds[len(training)] if training else 0.0
        return JobView(
            present=frozenset(self.listed),
            ready=frozenset(self.listed),
            training=training,
            step=int(self.made),
            step_s=step_s,
            step_samples=8.0 if training else 0.0,
            num_samples=8.0 * int(self.made),
            admitted=self.admitted,
        )

    def admit(self, nodes, reason):
        self.admitted = frozenset(nodes)

    def save(self, request, within_s, reason):
        raise AssertionError

    def leave(self, node, within_s, reason):
        raise AssertionError

    def pass_time(self, seconds):
        training = self.admitted & set(self.listed)
        self.now_s += seconds
        if training:
            self.made += seconds * self.speeds[len(training)] / 8.0


def test_number_of_nodes_follows_what_they_bring():
    farm = Farm({1: 100.0, 2: 190.0, 3: 270.0, 4: 290.0, 5: 295.0})
    config = SpotConfig(nodes=1, max_nodes=5, settle_s=0.0, grow_after_s=0.0)
    count = CountConfig(least=1, most=5)
    supervisor = Supervisor(farm, farm, config, count=count)
    sizes = []
    for _ in range(1200):
        farm.pass_time(0.1)
        supervisor.step(farm.now_s)
        sizes.append(len(farm.admitted))
    # The fourth is tried, found to bring a fifth of one, and given back.
    assert max(sizes) == 4
    assert sizes[-1] == 3
    assert len(farm.listed) == 3
    assert supervisor.capacity.phase == JobPhase.TRAINING
    assert supervisor.num_samples == 8 * int(farm.made)


def test_number_of_nodes_waits_for_those_that_were_taken():
    farm = Farm({1: 100.0, 2: 190.0, 3: 280.0})
    config = SpotConfig(nodes=3, max_nodes=3, settle_s=0.0, grow_after_s=0.0)
    supervisor = Supervisor(
        farm, farm, config, count=CountConfig(least=1, most=3, valid_s=10.0)
    )
    for _ in range(100):
        farm.pass_time(0.1)
        supervisor.step(farm.now_s)
    farm.request = lambda market, count: ()
    del farm.listed["n0"], farm.listed["n1"]
    farm.admitted = frozenset(["n2"])
    for _ in range(100):
        farm.pass_time(0.1)
        supervisor.step(farm.now_s)
    (request,) = {type(one.action).__name__ for one in list(supervisor.done)[-50:]}
    assert request == "Request"
    assert supervisor.done[-1].action.count == 2
