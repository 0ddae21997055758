"""What any file says is text, and memory stays bounded whatever its size."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_health.diagnosis import read_output

END_BYTES = 1 << 18


def test_small_file_is_read_whole(tmp_path):
    file = tmp_path / "log"
    file.write_text("first\nsecond\nthird\n")
    assert read_output(file) == "first\nsecond\nthird\n"


def test_line_that_is_longer_than_all_that_is_kept_is_cut(tmp_path):
    file = tmp_path / "log"
    file.write_bytes(b"x" * 10 * END_BYTES)
    text = read_output(file)
    assert END_BYTES <= len(text) <= 2 * END_BYTES
    assert set(text) == {"x"}


def test_large_file_takes_no_more_than_its_end(tmp_path):
    file = tmp_path / "log"
    with file.open("wb") as opened:
        opened.truncate(1 << 40)  # it is all holes
        opened.seek(1 << 40)
        opened.write(b"\nlast words" * 100_000)
    text = read_output(file, max_bytes=1 << 20)
    assert text.endswith("last words")
    assert "bytes before this were not read" in text
    assert len(text) <= 3 * END_BYTES


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_encodings_with_zeros_or_marks_are_known(tmp_path, encoding):
    file = tmp_path / "log"
    file.write_bytes("CUDA out of memory\nlast".encode(encoding))
    assert read_output(file) == "CUDA out of memory\nlast"


def test_latin_letters_are_replaced(tmp_path):
    file = tmp_path / "log"
    file.write_bytes("Datei für Straße\n".encode("latin-1"))
    assert read_output(file) == "Datei f\ufffdr Stra\ufffde\n"


def test_what_is_no_file_is_empty(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path, pipe, tmp_path / "missing", "/dev/zero", "a\0b"):
        assert read_output(path) == ""


@given(st.binary(max_size=300))
def test_any_bytes_are_text(tmp_path_factory, data):
    file = tmp_path_factory.getbasetemp() / "any"
    file.write_bytes(data)
    read_output(file).encode()
