"""Checksums of tensors and of samples."""

from __future__ import annotations

import pytest
import torch

from drivetrain_core.numerics.checksum import (
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
    monkeypatch.setattr("drivetrain_core.numerics.checksum._CHUNK", 20)
    assert row_checksums(x).equal(whole)


def test_gathered_is_the_value_of_a_process_alone():
    assert gathered({"a": 1}) == [{"a": 1}]


LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_row_checksums_of_sparse_tensors_follow_the_samples(layout):
    dense = torch.randn(6, 5) * (torch.rand(6, 5) < 0.5)
    # No row is like another.
    dense[:, 0] = torch.arange(1.0, 7.0)
    found = row_checksums(dense.to_sparse(layout=layout))
    assert len(set(found.tolist())) == 6
    order = torch.tensor([3, 0, 5, 1, 2, 4])
    assert found[order].equal(row_checksums(dense[order].to_sparse(layout=layout)))
    changed = dense.clone()
    changed[2, 0] += 1.0
    apart = found != row_checksums(changed.to_sparse(layout=layout))
    assert apart.tolist() == [False, False, True, False, False, False]


@pytest.mark.filterwarnings("ignore:Sparse")
def test_row_checksums_of_a_sparse_tensor_see_the_place_of_a_value():
    one, other = torch.zeros(2, 3, 4), torch.zeros(2, 3, 4)
    one[0, 1, 2] = other[0, 2, 1] = 5.0
    assert not row_checksums(one.to_sparse()).equal(row_checksums(other.to_sparse()))
    # Rows of values, and entries that are stored twice, are the same tensor.
    hybrid = one.to_sparse(sparse_dim=2)
    assert row_checksums(hybrid).shape == (2,)
    twice = torch.sparse_coo_tensor([[0, 0], [1, 1]], [2.0, 3.0], (2, 4))
    once = torch.sparse_coo_tensor([[0], [1]], [5.0], (2, 4))
    assert row_checksums(twice).equal(row_checksums(once))


def test_row_checksums_of_nested_tensors_follow_the_samples():
    samples = [torch.randn(n, 2) for n in (3, 1, 2)]

    def found(order):
        parts = [samples[i] for i in order]
        return row_checksums(torch.nested.nested_tensor(parts, layout=torch.jagged))

    assert found([0, 1, 2])[[2, 0, 1]].equal(found([2, 0, 1]))


def test_row_checksums_of_samples_that_lie_in_lists():
    images = [torch.randn(3, 8 + i, 8) for i in range(4)]
    labels = [{"label": torch.tensor([i])} for i in range(4)]
    sums = row_checksums((images, labels))
    assert sums.unique().shape == (4,)
    assert row_checksums((images[::-1], labels[::-1])).flip(0).equal(sums)
    other = [images[0] + 1, *images[1:]]
    assert (row_checksums((other, labels)) != sums).tolist() == [True, *[False] * 3]
