"""The probes of rates, and of an all-reduce in processes of its own."""

from __future__ import annotations

import json
import time

import pytest
import torch

from drivetrain_search.prediction.probes import alpha_beta, measure_rates
from drivetrain_search.process.spawn import Processes


def test_rates_are_measured_and_threads_put_back():
    torch.set_num_threads(2)
    rates = measure_rates(torch.device("cpu"), num_threads=1, slice_s=0.02)
    assert torch.get_num_threads() == 2
    assert set(rates.flops_per_s) == {"float32", "bfloat16"}
    assert all(rate > 1e6 for rate in rates.flops_per_s.values())
    assert rates.bytes_per_s > 1e6
    assert 0 < rates.overhead_s < 1e-2


def test_alpha_and_beta_explain_both_sizes():
    cost = alpha_beta(1.0, 3.0)
    assert cost.alpha_s + cost.beta_s_per_byte * (1 << 13) == pytest.approx(1.0)
    assert cost.alpha_s + cost.beta_s_per_byte * (1 << 22) == pytest.approx(3.0)


@pytest.mark.slow
def test_all_reduce_is_measured_between_ranks(tmp_path):
    spec = tmp_path / "spec.json"
    fields = {"store": str(tmp_path / "store"), "world_size": 2, "timeout_s": 60.0}
    spec.write_text(json.dumps(fields))
    module = "drivetrain_search.prediction.probes"
    with Processes(module, spec, 2, tmp_path, {}) as processes:
        answers = processes.receive(time.monotonic() + 60.0)
    assert len(answers) == 2
    assert all(a["alpha_s"] + a["beta_s_per_byte"] > 0 for a in answers)
