"""The training steps that traces are recorded from, in a small form."""

import numpy as np
import pytest
from recordings.models import LanguageModel
from recordings.workloads import _language_model, record_workload

from drivetrain_memory import smallest_capacity
from drivetrain_memory.trace import WORKLOADS, Operation, workload

SMALL = {"dim": 256, "depth": 3, "heads": 4, "vocab": 1024, "batch": 8, "length": 512}


def recorded(**options):
    return _language_model("small", LanguageModel(**SMALL, steps=3, **options))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lora_rank": 4},
        {"varies": True},
        {"math_attention": True},
        {"experts": 4},
        {"shards": 4, "recompute": True},
    ],
    ids=["full", "lora", "varlen", "math", "moe", "zero3"],
)
def test_steps_are_recorded_and_fit_where_they_are_live(options):
    trace = recorded(**options)
    assert trace.num_steps == 3
    # A small model has as much in parts of chunks as a large one.
    spare = smallest_capacity(trace, "ours") - trace.peak_live_bytes
    assert spare <= 16 * 2**20


@pytest.mark.slow
def test_recomputed_blocks_keep_less():
    usual, recomputed = (recorded(recompute=r).peak_live_bytes for r in (False, True))
    assert recomputed < 0.7 * usual


@pytest.mark.slow
def test_gathered_weights_come_on_a_stream_of_their_own():
    trace = recorded(shards=4, recompute=True)
    allocated = trace.events["operation"] == Operation.ALLOCATE
    assert set(trace.events["stream"][allocated].tolist()) == {0, 1}
    assert (trace.events["operation"] == Operation.RECORD_STREAM).sum() > 0


@pytest.mark.slow
def test_shipped_trace_is_what_is_recorded():
    shipped, recorded_anew = workload("resnet-50"), record_workload("resnet-50")
    assert np.array_equal(shipped.events, recorded_anew.events)
    assert shipped.batch == recorded_anew.batch == 192


@pytest.mark.parametrize("name", WORKLOADS)
def test_shipped_traces_know_their_batch(name):
    trace = workload(name)
    assert trace.at_batch(trace.batch + 1).peak_live_bytes > trace.peak_live_bytes
