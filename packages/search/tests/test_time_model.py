"""The arithmetic of step times: rooflines, fusion, collectives."""

from __future__ import annotations

import dataclasses

import pytest

from drivetrain_search.prediction.time_model import (
    Collective,
    Operations,
    Rates,
    between,
    collective_time_s,
    predict_time,
)

RATES = Rates(
    flops_per_s={"float32": 100.0, "bfloat16": 400.0}, bytes_per_s=10.0, overhead_s=0.5
)


def ops(kind="matmul", dtype="float32", **amounts):
    return {f"{kind}/{dtype}": Operations(kind=kind, dtype=dtype, **amounts)}


@pytest.mark.parametrize(
    ("dtype", "flops", "num_bytes", "seconds"),
    [
        ("float32", 1000.0, 10.0, 10.0),
        ("bfloat16", 1000.0, 10.0, 2.5),
        ("float32", 100.0, 50.0, 5.0),
        ("float64", 100.0, 0.0, 1.0),
    ],
)
def test_time_is_the_longer_of_arithmetic_and_traffic(dtype, flops, num_bytes, seconds):
    work = ops(dtype=dtype, flops=flops, bytes=num_bytes)
    assert predict_time(work, {}, RATES).likely_s == pytest.approx(seconds)


def test_time_counts_calls_and_micro_batches():
    work = ops("pointwise", bytes=10.0, calls=4)
    update = ops("pointwise", bytes=20.0, calls=2)
    found = predict_time(work, update, RATES, num_micro_batches=3, collective_s=1.0)
    assert found.likely_s == pytest.approx(3 * 3.0 + 3.0 + 1.0)


@pytest.mark.parametrize("options", [{}, {"compiled": True}, {"fused": True}])
def test_optimistic_time_is_a_lower_bound(options):
    work = {**ops(flops=1000.0, calls=3), **ops("pointwise", bytes=100.0, calls=50)}
    update = ops("pointwise", bytes=20.0, calls=9)
    found = predict_time(work, update, RATES, collective_s=1.0, **options)
    assert 0 < found.optimistic_s < found.likely_s


def test_compiling_saves_pointwise_work_and_not_products():
    pointwise = ops("pointwise", bytes=100.0, calls=50)
    eager = predict_time(pointwise, {}, RATES)
    compiled = predict_time(pointwise, {}, RATES, compiled=True)
    assert compiled.optimistic_s < 0.2 * eager.optimistic_s
    product = ops(flops=1000.0)
    assert (
        predict_time(product, {}, RATES, compiled=True).optimistic_s
        == predict_time(product, {}, RATES).optimistic_s
    )


def test_between_adds_classes_that_only_one_has():
    one, other = ops(flops=2.0), ops("pointwise", bytes=4.0)
    mixed = between(one, other, 0.5)
    assert mixed["matmul/float32"].flops == 1.0
    assert mixed["pointwise/float32"].bytes == 2.0


@pytest.mark.parametrize(
    ("data_parallel", "reshard", "seconds"),
    [("", True, 0.0), ("ddp", True, 3.0), ("fsdp", True, 5.5), ("fsdp", False, 3.5)],
)
def test_collectives_of_a_step(data_parallel, reshard, seconds):
    found = collective_time_s(
        Collective(alpha_s=0.5, beta_s_per_byte=0.01),
        world_size=2,
        data_parallel=data_parallel,
        gradient_bytes=100,
        parameter_bytes=200,
        calls=4,
        reshard=reshard,
    )
    assert found == pytest.approx(seconds)


def test_rates_come_back_from_json():
    whole = dataclasses.replace(
        RATES, all_reduce=Collective(alpha_s=1.0, beta_s_per_byte=2.0)
    )
    assert Rates.from_dict(dataclasses.asdict(whole)) == whole
    assert Rates.from_dict(dataclasses.asdict(RATES)) == RATES
