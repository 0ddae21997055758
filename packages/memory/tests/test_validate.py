"""Models of PyTorch's allocator held against snapshots."""

import json
import pickle

import pytest

from drivetrain_memory import TraceError, validate
from drivetrain_memory.cli import main

MIB = 2**20


class History:
    """What PyTorch's allocator writes down."""

    def __init__(self):
        """Begins empty."""
        self.entries = []
        self._next = 2**40

    def add(self, action, addr, size, stream=0):
        """Adds an entry as it is."""
        self.entries.append(
            {"action": action, "addr": addr, "size": size, "stream": stream}
        )

    def segment(self, size, stream=0, action="segment_alloc"):
        """Takes memory of the device."""
        self._next += 2**36
        self.add(action, self._next, size, stream)
        return self._next

    def free(self, addr, size, stream=0):
        """Frees a block."""
        self.add("free_requested", addr, size, stream)
        self.add("free_completed", addr, size, stream)

    def save(self, path, **settings):
        """Writes a snapshot."""
        held = {
            "segments": [],
            "device_traces": [self.entries],
            "allocator_settings": settings,
        }
        path.write_bytes(pickle.dumps(held))
        return path


@pytest.fixture
def history():
    return History()


def filled(history, large=20 * MIB):
    """Small and large blocks on two streams, and a flush for the last one."""
    at = history.segment(2 * MIB)
    history.add("alloc", at, 600)
    history.add("alloc", at + 1024, 512)
    at = history.segment(large)
    history.add("alloc", at, 3 * MIB)
    history.add("alloc", at + 3 * MIB, 15 * MIB)
    at = history.segment(38 * MIB, stream=7)
    history.add("alloc", at, 37 * MIB, 7)
    history.free(at, 37 * MIB, 7)
    history.add("segment_free", at, 38 * MIB, 7)
    at = history.segment(36 * MIB)
    history.add("alloc", at, 35 * MIB + 512)
    return history


def test_model_does_as_was_recorded(history, tmp_path):
    found = validate(filled(history).save(tmp_path / "run.pickle"))
    assert found.holds
    assert (found.model, found.recorded, found.same) == ("native", 5, 5)


def test_first_difference_is_told(history, tmp_path):
    found = validate(filled(history, large=24 * MIB).save(tmp_path / "run.pickle"))
    assert not found.holds
    assert found.same == 1
    assert found.difference == (
        f"number 2: recorded {24 * MIB} bytes taken on stream 0, "
        f"by the model {20 * MIB} bytes taken on stream 0"
    )


def test_settings_choose_the_model(history, tmp_path):
    at = history.segment(20 * MIB, action="segment_map")
    history.add("alloc", at, 3 * MIB)
    history.add("segment_map", at + 20 * MIB, 40 * MIB)
    history.add("alloc", at + 3 * MIB, 50 * MIB)
    found = validate(history.save(tmp_path / "run.pickle", expandable_segments=True))
    assert found.model == "expandable"
    assert found.holds, found.difference


def test_order_in_which_a_flush_gives_back_does_not_matter(history, tmp_path):
    sizes = (30, 24)
    at = [history.segment(size * MIB) for size in sizes]
    for block, size in zip(at, sizes, strict=True):
        history.add("alloc", block, size * MIB)
    for block, size in zip(at, sizes, strict=True):
        history.free(block, size * MIB)
    for size in sizes:
        history.add("segment_free", 0, size * MIB)
    at = history.segment(54 * MIB)
    history.add("alloc", at, 54 * MIB)
    assert validate(history.save(tmp_path / "run.pickle")).holds


def test_history_that_begins_too_late_is_refused(history, tmp_path):
    history.free(100, 512)
    at = history.segment(2 * MIB)
    history.add("alloc", at, 512)
    with pytest.raises(TraceError, match="blocks lived before its history began"):
        validate(history.save(tmp_path / "late.pickle"))


def test_history_without_a_segment_is_refused(history, tmp_path):
    history.add("alloc", 5, 512)
    with pytest.raises(TraceError, match="no segment"):
        validate(history.save(tmp_path / "none.pickle"))


@pytest.mark.parametrize("entry", [{"addr": 1}, {"addr": 1, "action": "segment_alloc"}])
def test_entry_that_lacks_something_is_refused(history, tmp_path, entry):
    history.entries.append(entry)
    with pytest.raises(TraceError, match="not as a snapshot is"):
        validate(history.save(tmp_path / "odd.pickle"))


def test_command(history, tmp_path, capsys):
    path = str(filled(history).save(tmp_path / "run.pickle"))
    assert main(["validate", path]) == 0
    assert capsys.readouterr().out == "native: 5 of 5 segments as recorded\n"
    assert main(["validate", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["same"] == 5


def test_command_fails_when_the_model_differs(history, tmp_path, capsys):
    path = filled(history, large=24 * MIB).save(tmp_path / "run.pickle")
    assert main(["validate", str(path)]) == 1
    assert "1 of 5 segments as recorded; number 2:" in capsys.readouterr().out
