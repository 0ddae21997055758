import math

import pytest

from drivetrain_core import ProgramError
from drivetrain_elastic.decisions.alerts import (
    AlertConfig,
    NodeReading,
    judge_node,
    news_of,
)
from drivetrain_elastic.decisions.progress import ProgressConfig, judge_progress
from drivetrain_health.failures import GpuReading, NicReading

CONFIG = AlertConfig()


def test_a_healthy_node_has_no_alert():
    reading = NodeReading(
        0.5, 0.1, [GpuReading(temperature_c=60.0)], [NicReading(name="a")]
    )
    assert judge_node(reading, {}, CONFIG) == {}


def test_what_is_not_known_is_no_alert():
    reading = NodeReading(math.nan, math.nan, [GpuReading(missing="no driver")])
    assert judge_node(reading, {}, CONFIG) == {}


@pytest.mark.parametrize(
    ("reading", "kind"),
    [
        (NodeReading(memory_share=0.99), "memory"),
        (NodeReading(shared_memory_share=1.0), "shared-memory"),
        (NodeReading(gpus=[GpuReading(index=3, temperature_c=95.0)]), "gpu-3-hot"),
        (NodeReading(gpus=[GpuReading(index=3, is_throttled=True)]), "gpu-3-throttled"),
        (
            NodeReading(network=[NicReading(name="eth0", was_up=True, is_up=False)]),
            "link-eth0-down",
        ),
        (
            NodeReading(network=[NicReading(name="mlx5_0/1", num_link_downs=2)]),
            "link-mlx5_0/1-flaps",
        ),
        (NodeReading(traffic="nothing is sent"), "traffic"),
    ],
)
def test_each_kind_is_told(reading, kind):
    assert list(judge_node(reading, {}, CONFIG)) == [kind]


def test_a_port_that_was_never_up_is_no_alert():
    reading = NodeReading(network=[NicReading(name="eth1", was_up=False, is_up=False)])
    assert judge_node(reading, {}, CONFIG) == {}


def test_what_hovers_at_its_limit_is_told_once():
    known, told = {}, 0
    for share in (0.951, 0.949, 0.951, 0.940, 0.951, 0.92, 0.949):
        now = judge_node(NodeReading(memory_share=share), known, CONFIG)
        told += len(news_of(known, now).begun)
        known = now
    assert told == 1
    assert known == {}


@pytest.mark.parametrize(
    "fields",
    [{"memory_share": 0}, {"shared_memory_share": math.nan}, {"temperature_c": -1}],
)
def test_limits_out_of_range_are_refused(fields):
    with pytest.raises(ProgramError):
        AlertConfig(**fields)


def test_a_training_hangs_after_many_times_its_step():
    config = ProgressConfig(factor=10, floor_s=5)
    assert not judge_progress(104.0, 100.0, 0.1, config).is_hanging
    assert judge_progress(105.0, 100.0, 0.1, config).is_hanging
    assert not judge_progress(150.0, 100.0, 10.0, config).is_hanging
    assert judge_progress(200.0, 100.0, 10.0, config).is_hanging


def test_a_training_without_any_step_is_not_judged():
    assert not judge_progress(1e6, 0.0, 0.0, ProgressConfig()).is_hanging


@pytest.mark.parametrize(
    "fields", [{"factor": 1}, {"floor_s": 0}, {"factor": math.nan}]
)
def test_progress_limits_out_of_range_are_refused(fields):
    with pytest.raises(ProgramError):
        ProgressConfig(**fields)
