"""Checksums of tensors and of samples."""

from __future__ import annotations

import pytest
import torch

from drivetrain_core.search.numerics.checksum import (
    gathered,
    row_checksums,
    tensor_checksum,
)


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.complex64],
)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 5)])
def test_checksum_of_equal_tensors_is_equal(dtype, shape):
    tensor = torch.randn(shape).mul(9).to(dtype)
    assert tensor_checksum(tensor) == tensor_checksum(tensor.clone())
    if tensor.numel():
        assert tensor_checksum(tensor) != tensor_checksum(tensor + 1)


def test_checksum_sees_one_bit_and_the_order():
    tensor = torch.randn(1000)
    for index in (0, 499, 999):
        other = tensor.clone()
        other[index] = torch.nextafter(other[index], torch.tensor(99.0))
        assert tensor_checksum(other) != tensor_checksum(tensor)
    assert tensor_checksum(tensor.flip(0)) != tensor_checksum(tensor)


def test_checksum_ignores_the_memory_format():
    images = torch.randn(2, 3, 4, 5)
    last = images.to(memory_format=torch.channels_last)
    assert tensor_checksum(images) == tensor_checksum(last)


def test_row_checksums_follow_the_samples():
    batch = {"x": torch.randn(6, 3), "y": torch.arange(6), "scale": torch.tensor(2.0)}
    sums = row_checksums(batch)
    assert len(set(sums.tolist())) == 6
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    moved = {"x": batch["x"][order], "y": batch["y"][order], "scale": batch["scale"]}
    assert row_checksums(moved).equal(sums[order])
    mispaired = {**batch, "y": batch["y"].roll(1)}
    assert not set(row_checksums(mispaired).tolist()) & set(sums.tolist())


def test_row_checksums_ignore_the_precision():
    x, y = torch.randn(4, 3), torch.tensor([True, False, True, True])
    assert row_checksums((x, y)).equal(row_checksums((x.bfloat16(), y.int())))


def test_row_checksums_do_not_depend_on_the_chunks(monkeypatch):
    x = torch.randn(5, 40)
    whole = row_checksums(x)
    monkeypatch.setattr("drivetrain_core.search.numerics.checksum._CHUNK", 20)
    assert row_checksums(x).equal(whole)


def test_gathered_is_the_value_of_a_process_alone():
    assert gathered({"a": 1}) == [{"a": 1}]
