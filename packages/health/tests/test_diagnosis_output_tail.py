"""The end of any file is text."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_health.diagnosis import read_output_tail


def test_tail_begins_with_a_line(tmp_path):
    file = tmp_path / "log"
    file.write_text("first\nsecond\nthird\n")
    assert read_output_tail(file, max_bytes=12) == "third\n"
    assert read_output_tail(file, max_bytes=13) == "third\n"
    assert read_output_tail(file, max_bytes=100) == "first\nsecond\nthird\n"


def test_line_that_is_longer_than_the_tail_is_cut(tmp_path):
    file = tmp_path / "log"
    file.write_bytes(b"x" * 100_000)
    assert read_output_tail(file, max_bytes=1000) == "x" * 1000
    file.write_bytes(b"x" * 100_000 + b"\n")
    assert read_output_tail(file, max_bytes=1000) == "x" * 999 + "\n"


def test_large_file_takes_no_more_than_its_end(tmp_path):
    file = tmp_path / "log"
    with file.open("wb") as opened:
        opened.truncate(1 << 40)  # it is all holes
        opened.seek(1 << 40)
        opened.write(b"\nlast words" * 1000)
    assert read_output_tail(file, max_bytes=100).endswith("last words")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_encodings_with_zeros_or_marks_are_known(tmp_path, encoding):
    file = tmp_path / "log"
    file.write_bytes("CUDA out of memory\nlast".encode(encoding))
    assert read_output_tail(file) == "CUDA out of memory\nlast"
    if encoding.startswith("utf-16"):
        assert read_output_tail(file, max_bytes=15).endswith("last")


def test_latin_letters_are_replaced(tmp_path):
    file = tmp_path / "log"
    file.write_bytes("Datei für Straße\n".encode("latin-1"))
    assert read_output_tail(file) == "Datei f\ufffdr Stra\ufffde\n"


def test_what_is_no_file_is_empty(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path, pipe, tmp_path / "missing", "/dev/zero", "a\0b"):
        assert read_output_tail(path) == ""


@given(st.binary(max_size=300), st.integers(1, 400))
def test_any_bytes_are_text(tmp_path_factory, data, max_bytes):
    file = tmp_path_factory.getbasetemp() / "any"
    file.write_bytes(data)
    text = read_output_tail(file, max_bytes=max_bytes)
    assert len(text) <= max_bytes
    text.encode()
