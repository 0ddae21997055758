"""Writes to a device that copies late: what it reads then is still what was sent."""

import pytest
import torch

from drivetrain_checkpoint._restore import write_blocks
from drivetrain_checkpoint._restore.read_plan import BlockCopy
from drivetrain_checkpoint._restore.write_blocks import BlockWriter

PIECE_BYTES = 64


class Queue:
    """Copies that a device has not made yet, in order; an event stands among them."""

    def __init__(self):
        self.waiting = []

    def until(self, mark):
        while mark in self.waiting:
            first = self.waiting.pop(0)
            if callable(first):
                first()


@pytest.fixture
def queue(monkeypatch):
    found = Queue()

    class Event:
        def __init__(self, device):
            found.waiting.append(self)

        def synchronize(self):
            found.until(self)

    monkeypatch.setattr(write_blocks, "_event", Event)
    monkeypatch.setattr(write_blocks, "_PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr(write_blocks, "can_overlap", lambda device: True)
    monkeypatch.setattr(
        write_blocks, "_page_locked", lambda n: torch.empty(n, dtype=torch.uint8)
    )
    monkeypatch.setattr(
        write_blocks,
        "_begin_copy",
        lambda target, source: found.waiting.append(lambda: target.copy_(source)),
    )
    return found


def rows_of(tensor, ours=None, theirs=None):
    everything = tuple(slice(0, size) for size in tensor.shape)
    return BlockCopy(
        target=0,
        source=0,
        start=0,
        dtype={torch.float32: "F32", torch.int64: "I64"}[tensor.dtype],
        shape=tuple(tensor.shape),
        theirs=theirs or everything,
        ours=ours or everything,
    )


def data_of(tensor):
    return memoryview(bytearray(tensor.contiguous().numpy().tobytes()))


def test_pieces_are_not_filled_again_before_they_are_copied(queue):
    saved = [torch.randn(n) for n in (100, 3, 16, 33)] + [torch.tensor(7)]
    found = [torch.zeros_like(one) for one in saved]
    writer = BlockWriter(2)
    for one, into in zip(saved, found, strict=True):
        data = data_of(one)
        writer.write(rows_of(one), data, into)
        data[:] = bytes(len(data))  # it is read into again
    assert queue.waiting, "the last pieces are on their way"
    writer.end()
    for one, into in zip(saved, found, strict=True):
        assert torch.equal(one, into)


def test_rows_that_are_no_run_of_bytes_or_of_another_dtype_are_converted(queue):
    saved = torch.randn(4, 6)
    turned, halves = torch.zeros(6, 4).T, torch.zeros(4, 6, dtype=torch.float64)
    writer = BlockWriter(1)
    for into in (turned, halves):
        writer.write(rows_of(saved), data_of(saved), into)
        assert torch.equal(into.float(), saved)
    assert queue.waiting == []


def test_part_of_a_block_is_written_to_its_place(queue):
    saved, into = torch.randn(4, 6), torch.zeros(8, 6)
    part = (slice(1, 3), slice(0, 6))
    writer = BlockWriter(1)
    place = (slice(5, 7), slice(0, 6))
    writer.write(rows_of(saved, place, part), data_of(saved), into)
    writer.end()
    assert torch.equal(into[5:7], saved[1:3])
    assert not into[:5].any()
    assert not into[7:].any()
