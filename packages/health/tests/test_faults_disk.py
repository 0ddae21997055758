"""Disks are full to the last byte and free again; files stop growing."""

import errno
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from drivetrain_core import ProgramError
from drivetrain_health.faults import (
    MissingPrivilegeError,
    TargetGoneError,
    limit_file_size,
    missing_because,
    small_disk,
)

WHY = missing_because("disk")
needs_mount = pytest.mark.skipif(WHY is not None, reason=f"no disk faults: {WHY}")

SIZE = 1 << 20


@needs_mount
def test_full_disk_takes_nothing_more_and_is_free_when_healed():
    with small_disk(SIZE) as disk:
        (disk.path / "mine").write_bytes(bytes(4096))
        with disk.fill():
            assert disk.free_bytes == 0
            with pytest.raises(OSError, match="No space left") as caught:
                (disk.path / "more").write_bytes(b"x")
            assert caught.value.errno == errno.ENOSPC
            assert (disk.path / "mine").read_bytes() == bytes(4096)
        (disk.path / "more").write_bytes(bytes(SIZE // 2))


@needs_mount
@pytest.mark.parametrize("leave_bytes", [1, 4096, 10_000, SIZE])
def test_disk_is_filled_up_to_what_is_to_be_left(leave_bytes):
    with small_disk(SIZE) as disk:
        with disk.fill(leave_bytes):
            assert leave_bytes <= disk.free_bytes < leave_bytes + 4096
            (disk.path / "fits").write_bytes(bytes(leave_bytes))
            with disk.fill():
                assert disk.free_bytes == 0
        with pytest.raises(ProgramError, match="cannot be left"):
            disk.fill(SIZE + 1)


@needs_mount
def test_disk_is_gone_after_an_error_also_with_open_files():
    with suppress(ZeroDivisionError), small_disk(SIZE) as disk:
        file = (disk.path / "open").open("wb")
        disk.fill()
        raise ZeroDivisionError
    file.close()
    assert not disk.path.exists()
    assert str(disk.path) not in Path("/proc/self/mounts").read_text()


def test_disk_needs_a_size_and_the_right_to_mount(monkeypatch):
    with pytest.raises(ProgramError, match="at least 1 byte"), small_disk(0):
        pass
    from drivetrain_health.faults import _privileges

    monkeypatch.setattr(_privileges, "_held_capabilities", lambda: 0)
    with (
        pytest.raises(MissingPrivilegeError, match="needs CAP_SYS_ADMIN"),
        small_disk(SIZE),
    ):
        pass


WRITER = """
import sys
with open(sys.argv[1], "wb", buffering=0) as file:
    for line in sys.stdin:
        try:
            print(file.write(bytes(int(line))), flush=True)
        except OSError as error:
            print(error.strerror, flush=True)
"""


def test_file_grows_no_further_while_its_size_is_limited(tmp_path):
    writer = subprocess.Popen(
        [sys.executable, "-S", "-c", WRITER, str(tmp_path / "file")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def write(size):
        writer.stdin.write(f"{size}\n")
        writer.stdin.flush()
        return writer.stdout.readline().strip()

    assert write(5000) == "5000"
    with suppress(ZeroDivisionError), limit_file_size(writer, 6000):
        assert write(5000) == "1000"
        assert write(1) == os.strerror(errno.EFBIG)
        raise ZeroDivisionError
    assert write(5000) == "5000"
    writer.communicate()
    with pytest.raises(TargetGoneError), limit_file_size(writer, 6000):
        pass
    with pytest.raises(ProgramError, match="at least 0"), limit_file_size(writer, -1):
        pass
