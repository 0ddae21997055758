"""The arithmetic of memory forecasts: depth, micro-batches, ranks, and what fits."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_search.prediction.memory_model import (
    Fits,
    Forecast,
    Layout,
    Pass,
    Peak,
    States,
    Structure,
    along_depth,
    along_size,
    fits,
    predict_memory,
)

STATES = States(
    parameters=100,
    gradients=100,
    optimizer=200,
    buffers=5,
    stepped=100,
    temporaries=10,
    largest_gradient=20,
    block_parameters=80,
    num_blocks=8,
)


def one_pass(size=4, **phases):
    return Pass(size=size, phases={k: Peak(*v) for k, v in phases.items()}, work={})


def structure(*passes, exact=True):
    return Structure(
        states=STATES, passes=passes, optimizer_work={}, batch=7, exact=exact
    )


@pytest.mark.faults
@given(
    a=st.tuples(st.integers(0, 99), st.integers(0, 99)),
    b=st.tuples(st.integers(0, 99), st.integers(0, 99)),
    depth=st.integers(4, 100),
)
def test_depth_is_linear(a, b, depth):
    def at(blocks):
        return one_pass(head=(a[0] + blocks * b[0], a[1] + blocks * b[1]))

    found = along_depth(at(2), at(3), (2, 3), depth).phases["head"]
    assert found == at(depth).phases["head"]


def test_depth_leaves_out_phases_between_the_ends():
    low, high = one_pass(first=(0, 1)), one_pass(first=(0, 1), block=(0, 9))
    assert set(along_depth(low, high, (2, 3), 9).phases) == {"first"}


@pytest.mark.parametrize("size", [1, 3, 4, 8])
def test_size_is_affine(size):
    passes = one_pass(8, head=(50, 180)), one_pass(4, head=(50, 100))
    found = along_size(passes, size)
    assert found.phases["head"] == Peak(50, 20 + 20 * size)
    assert found.size == size


def test_peak_is_the_highest_phase_with_all_states():
    found = predict_memory(
        structure(one_pass(head=(10, 400), start=(0, 90))), 4, Layout()
    )
    assert found.parts == {
        "parameters": 100,
        "gradients": 10,
        "optimizer_state": 200,
        "activations": 400,
        "buffers_and_batch": 12,
    }
    assert found.peak_bytes == 722


def test_optimizer_is_the_peak_of_a_small_batch():
    found = predict_memory(structure(one_pass(head=(0, 1))), 4, Layout())
    assert (found.peak_bytes, found.parts["activations"]) == (422, 10)


def test_foreach_updates_every_weight_at_once():
    small = structure(one_pass(head=(0, 1)))
    found = predict_memory(small, 4, Layout(foreach=True))
    assert found.peak_bytes == 522


def test_ddp_keeps_buckets_of_all_gradients():
    big = structure(one_pass(head=(10, 400)))
    found = predict_memory(big, 4, Layout(world_size=2, data_parallel="ddp"))
    assert found.parts["gradients"] == 120


@pytest.mark.parametrize(("reshard", "gathered"), [(True, 40), (False, 100)])
def test_fsdp_divides_states_and_gathers_blocks(reshard, gathered):
    big = structure(one_pass(head=(10, 400)))
    layout = Layout(world_size=4, data_parallel="fsdp", shards=4, reshard=reshard)
    found = predict_memory(big, 4, layout)
    assert found.parts["parameters"] == 25 + gathered
    assert found.parts["optimizer_state"] == 50
    assert found.parts["gradients"] == 25 + 20


def test_uncertainty_is_that_of_the_weakest_step():
    whole = structure(one_pass(head=(0, 1)))
    truncated = dataclasses.replace(whole, exact=False)
    order = [
        predict_memory(whole, 4, Layout()),
        predict_memory(truncated, 4, Layout()),
        predict_memory(truncated, 4, Layout(foreach=True)),
        predict_memory(whole, 4, Layout(foreach=True, compiled=True)),
    ]
    values = [found.uncertainty for found in order]
    assert values == sorted(set(values))
    assert values[-1] == 0.15


@pytest.mark.parametrize(
    ("peak", "uncertainty", "answer"),
    [
        (92, 0.0, Fits.YES),
        (93, 0.0, Fits.UNCERTAIN),
        (110, 0.0, Fits.UNCERTAIN),
        (111, 0.0, Fits.NO),
        (90, 0.15, Fits.UNCERTAIN),
        (120, 0.15, Fits.UNCERTAIN),
        (None, 0.0, Fits.UNCERTAIN),
    ],
)
def test_fits_within_bounds(peak, uncertainty, answer):
    assert fits(Forecast(peak_bytes=peak, uncertainty=uncertainty), 100) is answer


def test_fits_counts_the_process():
    assert fits(Forecast(peak_bytes=90), 100, overhead_bytes=30) is Fits.NO


def test_structure_comes_back_from_json():
    sent = structure(one_pass(head=(1, 2)))
    fields = dataclasses.asdict(sent)
    fields["passes"] = [
        {"size": 4, "phases": {"head": [1, 2]}, "work": {}} for _ in sent.passes
    ]
    assert Structure.from_dict(fields) == sent
