"""An exception outlives the process that it ends; a file of anybody's does no harm."""

import json
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_health.diagnosis import read_error_record, write_error_record
from drivetrain_health.failures import ErrorRecord, Evidence, diagnose

PROGRAM = """
import sys
from drivetrain_health.diagnosis import install_error_record
install_error_record(sys.argv[1])
def step():
    raise {error}
step()
"""


def run(tmp_path, error, path):
    (tmp_path / "train.py").write_text(PROGRAM.format(error=error))
    command = [sys.executable, "-P", tmp_path / "train.py", path]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class OddError(RuntimeError):
    """An error of a program, which something else has caused."""


def full_disk():
    raise OSError(28, "No space left on device")


def save():
    try:
        full_disk()
    except OSError as error:
        raise OddError("x" * 100_000 + "\udcff end") from error


def overrun():
    raise IndexError("row 7 of 7")


def test_exception_that_ends_a_process_is_on_disk_and_on_standard_error(tmp_path):
    path = tmp_path / "error.json"
    done = run(tmp_path, "KeyError('lr')", path)
    assert done.returncode == 1
    assert "KeyError: 'lr'" in done.stderr
    found = read_error_record(path)
    assert (found.type, found.message) == ("KeyError", "'lr'")
    diagnosis = diagnose(Evidence(worker="a", node="n", exit_code=1, error=found))
    assert (diagnosis.cause, diagnosis.place) == ("key-error", "train.py:6 in step")
    assert {one.name for one in tmp_path.iterdir()} == {"error.json", "train.py"}


def test_disk_that_takes_nothing_does_not_hide_the_error(tmp_path):
    done = run(tmp_path, "ValueError('no rate')", tmp_path / "no" / "error.json")
    assert done.returncode == 1
    assert "ValueError: no rate" in done.stderr
    assert "FileNotFoundError" not in done.stderr


def test_interrupt_is_recorded_as_well(tmp_path):
    path = tmp_path / "error.json"
    done = run(tmp_path, "KeyboardInterrupt", path)
    assert done.returncode == -signal.SIGINT
    assert read_error_record(path).type == "KeyboardInterrupt"


def test_cause_and_class_are_kept_and_texts_are_limited(tmp_path):
    path = tmp_path / "error.json"

    with pytest.raises(OddError) as raised:
        save()
    write_error_record(path, raised.value)
    found = read_error_record(path)
    assert found.type.endswith("OddError")
    assert len(found.message) < 9_000
    assert found.message.endswith(" end")
    assert "No space left on device" in found.traceback
    assert len(found.traceback) < 65_000
    assert path.stat().st_size < 1 << 20


def test_exception_that_cannot_be_printed_is_recorded(tmp_path):
    class MuteError(Exception):
        def __str__(self):
            raise ValueError

    write_error_record(tmp_path / "error.json", MuteError())
    assert "cannot be printed" in read_error_record(tmp_path / "error.json").message


def test_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "error.json"
    write_error_record(path, ValueError("first"))

    monkeypatch.setattr(json, "dump", lambda *_: full_disk())
    with pytest.raises(OSError, match="No space"):
        write_error_record(path, ValueError("second"))
    assert read_error_record(path).message == "first"
    assert len(list(tmp_path.iterdir())) == 1


def test_file_of_torchelastic_is_understood(tmp_path, monkeypatch):
    from torch.distributed.elastic.multiprocessing.errors import ErrorHandler

    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    handler = ErrorHandler()
    handler.initialize()
    try:
        overrun()
    except IndexError as error:
        handler.record_exception(error)
    found = read_error_record(path)
    assert (found.type, found.message) == ("IndexError", "row 7 of 7")
    assert "row 7 of 7" in found.traceback


def test_message_without_a_type_is_kept(tmp_path):
    path = tmp_path / "error.json"
    path.write_text(json.dumps({"message": "it went wrong: badly"}))
    assert read_error_record(path) == ErrorRecord(
        "RuntimeError", "it went wrong: badly"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        "null",
        '"x"',
        "{}",
        '{"message": 7}',
        '{"message": {"message": ["x"]}}',
        '{"format": "drivetrain-error", "type": "", "message": "x"}',
        '{"format": "drivetrain-error", "type": 3, "message": "x"}',
        '{"format": "drivetrain-error", "type": "E"}',
        "[" * 100_000,
        '{"a":' * 50_000,
        "\udcff",
        "1" * 900_000,
    ],
)
def test_hostile_file_is_no_record(tmp_path, text):
    path = tmp_path / "error.json"
    path.write_text(text, errors="surrogateescape")
    assert read_error_record(path) is None


def test_what_is_no_file_or_too_large_is_no_record(tmp_path):
    pipe, large = tmp_path / "pipe", tmp_path / "large"
    os.mkfifo(pipe)
    large.write_text('{"message": "' + "x" * (1 << 20) + '"}')
    for path in (tmp_path, pipe, large, tmp_path / "missing"):
        assert read_error_record(path) is None


@settings(max_examples=40, deadline=None)
@given(st.recursive(st.none() | st.integers() | st.text(), lambda s: st.lists(s) | (
    st.dictionaries(st.sampled_from(
        ["format", "type", "message", "traceback", "extraInfo", "py_callstack"]), s)
)))  # fmt: skip
def test_any_json_is_a_record_or_none(tmp_path_factory, found):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(found))
    record = read_error_record(path)
    assert record is None or all(isinstance(one, str) for one in record)
