"""Objectives: named, by price, and the user's own."""

from __future__ import annotations

import pytest

from drivetrain_core import Measurement
from drivetrain_core._errors import ProgramError
from drivetrain_core.objective import (
    read_objective,
    samples_per_cost,
    throughput,
)
from drivetrain_core.services import ClusterSpec

MEASURED = Measurement(step_times_s=(0.5, 0.4, 0.6), samples_per_step=8)


def cluster(price):
    text = """
drivetrain_cluster: 1
name: small
nodes:
  - name: gpu
    count: 2
    devices: {kind: H100, count: 8, memory: 80GB}
"""
    return ClusterSpec.from_yaml(text + price)


PRICE = "    price: {currency: USD, on_demand_per_hour: 80, spot_per_hour: 20}"


def test_throughput_is_the_default():
    assert read_objective("throughput") is throughput
    assert throughput(MEASURED) == 16.0


def test_samples_per_cost_counts_every_node():
    assert samples_per_cost(cluster(PRICE))(MEASURED) == 16.0 * 3600 / 160
    assert samples_per_cost(cluster(PRICE), spot=True)(MEASURED) == 16.0 * 3600 / 40


def test_samples_per_cost_without_a_price_is_an_error():
    with pytest.raises(ProgramError, match="'gpu' of the cluster have no on-demand"):
        samples_per_cost(cluster(""))
    no_spot = "    price: {currency: USD, on_demand_per_hour: 80}"
    with pytest.raises(ProgramError, match="no spot price"):
        samples_per_cost(cluster(no_spot), spot=True)


@pytest.mark.parametrize("given", ["speed", 3, None])
def test_objective_that_is_neither_a_name_nor_a_function_is_an_error(given):
    with pytest.raises(ProgramError, match="objective must be 'throughput' or"):
        read_objective(given)
