import signal
import subprocess
import sys
import time

import pytest

from drivetrain_elastic._observability._flight_record import (
    FlightRecord,
    read_flight_record,
)
from drivetrain_elastic.decisions.flight import LastOperation, find_silent

WAITS = LastOperation(3, 120, 17, "all-reduce", 9.0, True)
COMPUTES = LastOperation(3, 120, 16, "computing", 12.0, False)


def test_who_has_not_entered_the_collective_is_silent():
    found = find_silent({"a": WAITS, "b": COMPUTES, "c": WAITS})
    assert found.silent == ("b",)
    assert "collective 17" in found.reason
    assert "2 others wait" in found.reason


def test_several_silent_ranks_are_all_named_the_furthest_back_first_in_words():
    far = COMPUTES._replace(collective=12, name="data")
    found = find_silent({"a": WAITS, "b": COMPUTES, "c": far})
    assert set(found.silent) == {"b", "c"}
    assert found.reason.startswith("c is in 'data'")


def test_one_that_says_nothing_is_silent():
    assert find_silent({"a": WAITS, "b": None}).silent == ("b",)
    assert find_silent({"a": None, "b": None}).silent == ()


def test_one_in_an_earlier_world_is_silent():
    found = find_silent({"a": WAITS, "b": WAITS._replace(epoch=2)})
    assert found.silent == ("b",)


def test_if_all_wait_in_the_same_collective_it_is_the_network():
    found = find_silent({"a": WAITS, "b": WAITS})
    assert found.silent == ()
    assert "network" in found.reason


def test_if_all_compute_nobody_is_to_blame():
    found = find_silent({"a": COMPUTES, "b": COMPUTES})
    assert found == ((), "all ranks compute, and none waits")


def test_one_that_has_left_the_collective_that_others_are_in_is_named():
    done = WAITS._replace(name="applying", is_waiting=False)
    assert find_silent({"a": WAITS, "b": done, "c": WAITS}).silent == ("b",)


def test_record_keeps_the_last_operations_in_order(tmp_path):
    path = tmp_path / "flight"
    with FlightRecord(path) as record:
        for step in range(200):
            record.write(1, step, step * 2, f"op {step}", is_waiting=bool(step % 2))
        found = read_flight_record(path)
    assert [one.step for one in found] == list(range(136, 200))
    assert found[-1].name == "op 199"
    assert found[-1].is_waiting
    assert found[-1].began_s <= time.monotonic()


@pytest.mark.parametrize("content", [None, b"", b"DTFLIGHT", b"x" * 100_000])
def test_what_is_no_record_holds_no_operations(tmp_path, content):
    path = tmp_path / "flight"
    if content is not None:
        path.write_bytes(content)
    assert read_flight_record(path) == []


def test_names_of_any_length_and_kind_are_cut(tmp_path):
    with FlightRecord(tmp_path / "flight") as record:
        record.write(1, 1, 1, "ä" * 100, is_waiting=False)
        record.write(1, 1, 1, "\udcff", is_waiting=False)
    first, second = read_flight_record(tmp_path / "flight")
    assert first.name.startswith("ä" * 15)
    assert second.name == "?"


WRITES_AND_HANGS = """
import signal, sys
from drivetrain_elastic._observability._flight_record import FlightRecord
record = FlightRecord(sys.argv[1])
record.write(2, 7, 3, "computing", is_waiting=False)
print("ready", flush=True)
signal.pause()
"""


def test_record_of_a_stopped_and_of_a_dead_process_can_be_read(tmp_path):
    path = tmp_path / "flight"
    command = [sys.executable, "-c", WRITES_AND_HANGS, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(signal.SIGSTOP)
            (stopped,) = read_flight_record(path)
        finally:
            process.kill()
    assert stopped.step == 7
    assert read_flight_record(path) == [stopped]


def test_record_is_its_owners_alone(tmp_path):
    with FlightRecord(tmp_path / "flight"):
        assert (tmp_path / "flight").stat().st_mode & 0o777 == 0o600
