"""Traces in other batches than the one that was recorded."""

import numpy as np
import pytest
from recordings.models import LanguageModel
from recordings.workloads import _language_model, _record_language_model

from drivetrain_memory import (
    MemoryUseError,
    Trace,
    compare,
    largest_batch,
    record,
    scalable,
)
from drivetrain_memory.trace import Builder, workload

MIB = 2**20
SMALL = {"dim": 256, "depth": 2, "heads": 4, "vocab": 1024, "length": 256, "steps": 2}


def built(batch, *, extra=0, rest=0):
    builder = Builder("built")
    builder.allocate(40 * MIB)
    first = builder.allocate(3 * MIB * batch)
    builder.free(first)
    for _ in range(extra):
        builder.allocate(512)
    builder.allocate(100 * MIB + rest * batch)
    return builder.trace()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"varies": True}, {"experts": 4}, {"lora_rank": 4, "recompute": True}],
    ids=["full", "varlen", "moe", "lora"],
)
def test_trace_of_another_batch_is_what_would_be_recorded(options):
    marked = _language_model("small", LanguageModel(**SMALL, batch=4, **options))
    again = _record_language_model("small", LanguageModel(**SMALL, batch=6, **options))
    scaled = marked.at_batch(6)
    for field in ("operation", "stream", "id"):
        assert np.array_equal(scaled.events[field], again.events[field])
    assert scaled.peak_live_bytes == pytest.approx(again.peak_live_bytes, rel=0.005)
    # What is routed at random alone is rounded otherwise.
    if "experts" not in options:
        assert np.array_equal(scaled.events["size"], again.events["size"])


def test_own_batch_changes_nothing():
    trace = workload("llm-lora")
    assert np.array_equal(trace.at_batch(trace.batch).events, trace.events)


def test_file_keeps_the_batch(tmp_path):
    scalable(built(2), 2, built(4), 4).save(tmp_path / "x.dtm")
    assert Trace.load(tmp_path / "x.dtm").at_batch(5).peak_live_bytes == 140 * MIB
    built(2).save(tmp_path / "y.dtm")
    with pytest.raises(MemoryUseError, match="the batch of built is not known"):
        Trace.load(tmp_path / "y.dtm").at_batch(5)


def test_largest_batch_is_the_last_that_finishes():
    trace = scalable(built(2), 2, built(4), 4)
    # What is freed before the last request has its place there.
    assert largest_batch(trace, "ours", capacity_bytes=140 * MIB) == 33
    assert largest_batch(trace, "native", capacity_bytes=140 * MIB) == 33
    assert largest_batch(trace, "ours", capacity_bytes=138 * MIB) == 0


def test_recorded_programs_have_their_largest_batch_in_the_comparison():
    with record("sums") as first:
        _sums(4)
    with record("sums") as second:
        _sums(8)
    trace = scalable(first.trace(), 4, second.trace(), 8)
    row, *_ = compare(trace, ["ours"], device_bytes=64 * MIB)
    # Three of a mebibyte a sample at a time.
    assert row.batch == 21
    row, *_ = compare(first.trace(), ["ours"])
    assert row.batch is None


def _sums(batch):
    import torch

    kept = torch.empty(batch, MIB // 4).add(1)
    return kept.mul(kept).mul(2).sum()


@pytest.mark.parametrize(
    ("make", "because"),
    [
        (lambda: scalable(built(2), 2, built(2), 2), "two batches"),
        (lambda: scalable(built(2), 0, built(4), 4), "two batches"),
        (lambda: scalable(built(2), 2, built(4, extra=1), 4), "5 and 6 events|events"),
        (
            lambda: scalable(built(2, rest=50 * MIB), 2, built(4, rest=50 * MIB), 4),
            "neither of one size nor proportional",
        ),
        (lambda: scalable(built(2), 2, workload("llm-lora"), 4), "events"),
        (lambda: scalable(built(2), 2, built(4), 4).at_batch(0), "at least 1"),
        (lambda: largest_batch(built(2), "ours", capacity_bytes=1), "not known"),
    ],
    ids=["same", "none", "longer", "affine", "other", "zero", "unmarked"],
)
def test_what_is_not_two_recordings_of_one_program_is_refused(make, because):
    with pytest.raises(MemoryUseError, match=because):
        make()


def test_programs_that_differ_within_are_refused():
    def freed(order):
        builder = Builder("two")
        blocks = [builder.allocate(512), builder.allocate(512)]
        for index in order:
            builder.free(blocks[index])
        return builder.trace()

    with pytest.raises(MemoryUseError, match="differ from event 2 on"):
        scalable(freed((0, 1)), 1, freed((1, 0)), 2)
