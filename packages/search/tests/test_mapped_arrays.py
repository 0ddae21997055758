"""Arrays that are mapped from files, on their way to another process."""

from __future__ import annotations

import io
import pickle

import cloudpickle
import numpy as np
import pytest

from drivetrain_search.process.mapped_arrays import reduce_mapped
from drivetrain_search.process.payload import _Pickler

# More than a page, so that maps begin at several.
NUM = 6000


@pytest.fixture
def path(tmp_path):
    (np.arange(NUM, dtype=np.int32) * 3).tofile(tmp_path / "data.bin")
    return tmp_path / "data.bin"


def sent(value):
    """What comes of a value on its way to a trial, and how many bytes it took."""
    written = io.BytesIO()
    _Pickler(written).dump(value)
    return pickle.loads(written.getvalue()), len(written.getvalue())


PARTS = {
    "whole": lambda data: data,
    "slice": lambda data: data[1500:5500],
    "rows": lambda data: data.reshape(60, 100)[3:7],
    "transposed": lambda data: data.reshape(60, 100).T,
    "other type": lambda data: data.view(np.uint16)[5:],
    "one": lambda data: data.reshape(60, 100)[7, 3:4].reshape(()),
}
WITH_GAPS = {
    "every second": lambda data: data[1001::2],
    "reversed": lambda data: data[::-1],
    "columns": lambda data: data.reshape(60, 100)[3:, 5:-7],
    "repeated": lambda data: np.broadcast_to(data, (3, NUM), subok=True),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("offset", [0, 4, 4096 + 8])
def test_any_part_of_a_map_travels_by_the_name_of_its_file(path, part, offset):
    with path.open("r+b") as file:
        file.truncate(offset + 4 * NUM)
    array = PARTS[part](np.memmap(path, np.int32, "r", offset))
    again, num_bytes = sent(array)
    assert num_bytes < 1000
    assert type(again) is np.memmap
    assert (again.dtype, again.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(again, array)
    assert not again.flags.writeable


@pytest.mark.parametrize("order", ["C", "F"])
def test_order_of_a_map_is_kept(path, order):
    data = np.memmap(path, np.int32, "r", shape=(60, 100), order=order)
    again, num_bytes = sent(data)
    assert num_bytes < 1000
    assert again.strides == data.strides
    np.testing.assert_array_equal(again, data)


@pytest.mark.parametrize("part", WITH_GAPS)
def test_part_with_gaps_travels_by_value(path, part):
    array = WITH_GAPS[part](np.memmap(path, np.int32, "r"))
    again, num_bytes = sent(array)
    assert num_bytes > array.nbytes
    np.testing.assert_array_equal(again, array)


def test_what_is_written_there_reaches_nobody(path):
    data = np.memmap(path, np.int32, "r+")
    before = path.read_bytes()
    again, num_bytes = sent(data)
    assert num_bytes < 1000
    again[0] = 77
    assert data[0] == 0
    assert path.read_bytes() == before


def test_change_that_the_file_has_travels_with_it(path):
    data = np.memmap(path, np.int32, "r+")
    data[1] = 77
    again, num_bytes = sent(data)
    assert (again[1], num_bytes < 1000) == (77, True)


def of_memory_alone(path):
    data = np.memmap(path, np.int32, "c")
    data[NUM - 1] = 77
    return data


def without_its_file(path):
    data = np.memmap(path, np.int32, "r")
    path.unlink()
    return data


def of_another_file(path):
    data = np.memmap(path, np.int32, "r")
    (path.parent / "new").write_bytes(bytes(4 * NUM))
    (path.parent / "new").replace(path)
    return data


def copied(path):
    return np.memmap(path, np.int32, "r").copy()


@pytest.mark.parametrize(
    "make", [of_memory_alone, without_its_file, of_another_file, copied]
)
def test_array_that_the_file_does_not_have_travels_by_value(path, make):
    data = make(path)
    assert reduce_mapped(data) is None
    again, num_bytes = sent(data)
    assert num_bytes > 4 * NUM
    np.testing.assert_array_equal(again, data)


def test_array_of_a_file_that_was_cut_does_not_travel_by_its_name(path):
    data = np.memmap(path, np.int32, "r")[:10]
    with path.open("r+b") as file:
        file.truncate(8)
    # Its first page is still there.
    assert reduce_mapped(data) is None


def test_array_without_values_travels(path):
    again, _ = sent(np.memmap(path, np.int32, "r")[:0])
    assert again.shape == (0,)


def test_name_of_a_file_is_that_of_any_folder(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    data = np.memmap(path.name, np.int32, "r")
    written = cloudpickle.dumps(reduce_mapped(data))
    monkeypatch.chdir("/")
    function, arguments = pickle.loads(written)
    np.testing.assert_array_equal(function(*arguments), data)
