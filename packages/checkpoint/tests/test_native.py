"""Copies, checksums and writes, in C++ and in Python."""

import ctypes
import errno
import mmap
import os
from array import array

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_checkpoint import _native

SIZES = [0, 1, 7, 4095, 4096, 4097, 300_000, 1 << 20]


@pytest.fixture(params=["native", "python"])
def kind(request, monkeypatch):
    if request.param == "python":
        monkeypatch.setattr(_native, "_extension", None)
    else:
        assert _native.missing_because() is None
    return request.param


def memory(size, fill=None):
    """Page-aligned memory."""
    area = mmap.mmap(-1, max(1, -(-size // 4096)) * 4096)
    if fill is not None:
        area[:size] = fill
    return memoryview(area)[:size]


def test_checksum_is_crc32c(kind):
    assert _native.checksum(b"123456789") == 0xE3069283
    assert _native.checksum(b"") == 0
    assert _native.checksum(bytes(32)) == 0x8A9136AA
    assert _native.checksum(b"\xff" * 32) == 0x62A8AB43


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=3000))
def test_checksums_of_both_kinds_agree(data):
    assert _native.checksum(data) == _native._slow_crc32c(data)


def test_long_checksum_agrees_with_the_slow_one():
    data = os.urandom(100_003)
    assert _native.checksum(data) == _native._slow_crc32c(data)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_copy_moves_every_byte_and_no_other(kind, num_threads):
    blocks, kept, expected = [], [], []
    for size in SIZES:
        data = os.urandom(size)
        source = ctypes.create_string_buffer(data, size + 1)
        target = ctypes.create_string_buffer(b"\xaa" * (size + 128), size + 129)
        offset = 64 + size % 7
        blocks.append(
            (ctypes.addressof(source), ctypes.addressof(target) + offset, size)
        )
        kept.append((source, target))
        expected.append(b"\xaa" * offset + data)
    columns = [array("Q", column) for column in zip(*blocks, strict=True)]
    _native.copy(*columns, num_threads)
    for (_, target), wanted in zip(kept, expected, strict=True):
        assert target.raw[: len(wanted)] == wanted
        assert set(target.raw[len(wanted) : -1]) <= {0xAA}


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_written_file_is_the_memory_and_its_checksums(kind, size, direct, tmp_path):
    data = os.urandom(size)
    area = memory(size, data)
    flags = os.O_RDWR | os.O_CREAT | (os.O_DIRECT if direct else 0)
    try:
        fd = os.open(tmp_path / "file", flags)
    except OSError:
        pytest.skip("this file system has no direct writes")
    try:
        progress = _native.Progress()
        sums, _ = _native.write_file(fd, area, 2, progress)
    finally:
        os.close(fd)
    assert (tmp_path / "file").read_bytes() == data
    assert progress.done == size
    assert sums == ([_native._slow_crc32c(data)] if size else [])
    assert _native.checksums(area, 2) == sums


def test_write_that_fails_has_its_error(kind):
    area = memory(8192, bytes(8192))
    fd = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(OSError, match="No space left") as caught:
            _native.write_file(fd, area, 2, _native.Progress())
    finally:
        os.close(fd)
    assert caught.value.errno == 28


def test_write_that_is_stopped_ends(kind, tmp_path):
    area = memory(8192, bytes(8192))
    with (tmp_path / "file").open("wb") as file:
        progress = _native.Progress(stop=1)
        with pytest.raises(OSError, match="cancel") as caught:
            _native.write_file(file.fileno(), area, 2, progress)
    assert caught.value.errno == errno.ECANCELED


@pytest.mark.parametrize("at", [0, 5, 99_999])
def test_read_gives_the_bytes_and_misses_no_end(kind, tmp_path, at):
    data = os.urandom(9_000_000)
    (tmp_path / "file").write_bytes(data)
    area = memory(len(data) - at)
    with (tmp_path / "file").open("rb") as file:
        _native.read_file(file.fileno(), area, at, 3)
        assert area == data[at:]
        with pytest.raises(OSError, match="Input/output") as caught:
            _native.read_file(file.fileno(), area, at + 1, 3)
    assert caught.value.errno == errno.EIO


def test_populated_memory_keeps_what_it_holds(kind):
    del kind
    area = mmap.mmap(-1, 1 << 20)
    area[:] = b"x" * (1 << 20)
    _native.populate(area)
    assert area[:] == b"x" * (1 << 20)
    assert torch.frombuffer(area, dtype=torch.uint8).eq(ord("x")).all()
