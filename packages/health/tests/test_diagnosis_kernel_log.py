"""The kernel's log is read from now on, and its absence is said once."""

import logging
import os
import sys
import uuid
from pathlib import Path

import pytest

from drivetrain_health.diagnosis import KernelLog


@pytest.fixture
def kernel(tmp_path):
    """A pipe that stands for /dev/kmsg, and a function that writes a record to it."""
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    # Both ends are held, so that opening does not wait and reading does not end.
    held = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def say(record):
        os.write(held, record.encode(errors="surrogateescape"))

    yield path, say
    os.close(held)


def test_log_gives_each_message_once(kernel):
    path, say = kernel
    with KernelLog(path) as log:
        assert log.read() == []
        say("3,812,99123,-;NVRM: Xid (PCI:0000:1b:00): 79, x\n SUBSYSTEM=pci\n")
        say("4,813,99124,-;second; with a semicolon\n")
        found = log.read()
        assert [(one.level, one.text) for one in found] == [
            (3, "NVRM: Xid (PCI:0000:1b:00): 79, x"),
            (4, "second; with a semicolon"),
        ]
        assert log.read() == []
        assert log.recent(60.0) == tuple(one.text for one in found)
        assert log.recent(-1.0) == ()


def test_facility_is_no_level_and_escapes_are_undone(kernel):
    path, say = kernel
    with KernelLog(path) as log:
        say("30,1,1,-;tab\\x09here\n" + "x" * 50 + "\n")
        [found] = log.read()
    assert (found.level, found.text) == (6, "tab\there")


def test_damaged_and_long_records_do_no_harm(kernel):
    path, say = kernel
    with KernelLog(path) as log:
        for record in ("\n", ";;;\n", "x,y,z;no\n", "\udcff\udcfe\n", "1,2\n"):
            say(record)
        say("99999999999999999999,1,1,-;" + "a" * 7000 + "\n")
        [found] = log.read()
    assert len(found.text) == 1000
    assert 0 <= found.level < 8


@pytest.mark.parametrize("name", ["missing/kmsg", "folder"])
def test_log_that_cannot_be_read_says_why_once(tmp_path, caplog, name):
    (tmp_path / "folder").mkdir()
    caplog.set_level(logging.INFO)
    with KernelLog(tmp_path / name) as log:
        assert log.read() == log.read() == []
        assert log.recent() == ()
        assert str(tmp_path) in log.why_missing
    assert len(caplog.records) == 1


def test_closed_log_is_empty(kernel):
    log = KernelLog(kernel[0])
    log.close()
    log.close()
    assert log.read() == []


@pytest.mark.skipif(
    sys.platform != "linux" or not os.access("/dev/kmsg", os.R_OK | os.W_OK),
    reason="needs the right to write to /dev/kmsg",
)
def test_real_log_gives_what_was_said_after_it_was_opened():
    before, after = uuid.uuid4().hex, uuid.uuid4().hex
    try:
        Path("/dev/kmsg").write_text(f"<6>drivetrain {before}\n")
    except OSError as error:
        pytest.skip(f"the kernel takes no messages: {error}")
    with KernelLog() as log:
        Path("/dev/kmsg").write_text(f"<6>drivetrain {after}\n")
        texts = [one.text for one in log.read()]
    assert f"drivetrain {after}" in texts
    assert f"drivetrain {before}" not in texts
