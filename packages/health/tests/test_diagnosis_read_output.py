"""What any file says is text, and memory stays bounded whatever its size."""

import os
import threading
from contextlib import suppress

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


ENCODINGS = ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "utf-32", "utf-32-be"]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_encodings_with_zeros_or_marks_are_known(tmp_path, encoding):
    file = tmp_path / "log"
    file.write_bytes("CUDA out of memory\nlast".encode(encoding))
    assert read_output(file) == "CUDA out of memory\nlast"


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_line_that_tells_is_kept_in_every_encoding(tmp_path, encoding):
    file = tmp_path / "log"
    steps = "a frame\n" * 60_000
    file.write_bytes(f"{steps}KeyError: 'lr'\n{steps}last".encode(encoding))
    text = read_output(file)
    assert text.startswith("KeyError: 'lr'\n")
    assert text.endswith("a frame\nlast")
    assert len(text) <= 3 * END_BYTES


def test_mark_tells_the_encoding_of_text_with_few_zeros(tmp_path):
    file = tmp_path / "log"
    for mark, encoding in (("\ufeff", "utf-16-le"), ("\ufeff", "utf-16-be")):
        file.write_bytes(f"{mark}{'内存不足' * 9}\n".encode(encoding))
        assert read_output(file) == f"{'内存不足' * 9}\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("num_zeros", [4096, 3 << 20])
def test_holes_of_a_file_that_was_truncated_end_a_line(tmp_path, encoding, num_zeros):
    file = tmp_path / "log"
    hole = bytes(num_zeros)
    line = "KeyError: 'lr'\n".encode(encoding)
    file.write_bytes(hole + line + hole + line)
    lines = [line for line in read_output(file).splitlines() if line]
    assert lines == ["KeyError: 'lr'"] * 2


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("more", [1, 2, 3])
def test_cut_of_a_large_file_may_be_within_a_character(tmp_path, encoding, more):
    file = tmp_path / "log"
    file.write_bytes(("a frame\n" * 200_000 + "last").encode(encoding))
    text = read_output(file, max_bytes=(1 << 20) + more)
    assert text.endswith("a frame\nlast")
    assert "bytes before this were not read" in text


def test_pipe_that_is_open_is_read_to_its_end(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    said = b"KeyError: 'lr'\n" + 200_000 * b"a frame\n"
    for most, ends in ((1 << 31, "a frame\n"), (1 << 20, "[what comes after this")):
        writer = threading.Thread(target=write, args=(pipe, said))
        writer.start()
        with pipe.open("rb") as file:
            text = read_output(file, max_bytes=most)
        writer.join()
        assert text.startswith("KeyError: 'lr'\n")
        assert ends in text[-60:]


def write(pipe, said):
    with suppress(BrokenPipeError):
        pipe.write_bytes(said)


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
