"""On a GPU a node is measured, and computes the same bits each time."""

import pytest
import torch
from torch.distributed import HashStore

from drivetrain_health.checks import CheckConfig, check_node, probe_bits
from drivetrain_health.checks._gpu_exchange import measure as exchange
from drivetrain_health.checks._task import Task

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def test_node_with_a_gpu_is_measured():
    report = check_node(CheckConfig(measure_s=0.2), node="a")
    assert report.is_good, report
    assert report.measures["gpu0_compute_tflops"] > 0
    assert report.measures["gpu0_from_host_gb_per_s"] > 0
    assert report.measures["gpu0_to_host_gb_per_s"] > 0
    assert any(build.startswith("cuda:0") for build in report.digests)
    if torch.cuda.device_count() < 2:
        assert "it takes 2 GPU" in report.skipped["gpu_all_to_all"]
    else:
        assert report.measures["gpus_all_to_all_gb_per_s"] > 0


def test_gpu_computes_the_same_bits_each_time():
    first, second = probe_bits("cuda:0", repeats=5), probe_bits("cuda:0")
    assert not first.differs
    assert first.digest == second.digest


def test_gpu_exchanges_with_itself():
    task = Task(0.1, 60.0, 1, None, None, 0, 1, lambda _: None, HashStore())
    found = exchange(task)
    assert found.received
    assert set(found.measures) == {
        "network_gpu_all_gather_gb_per_s",
        "network_gpu_all_reduce_gb_per_s",
    }
