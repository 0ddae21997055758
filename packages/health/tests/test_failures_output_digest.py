"""What speaks of a failure is kept of any output, and memory stays bounded."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from drivetrain_health.diagnosis import read_output
from drivetrain_health.failures import Evidence, OutputDigest, diagnose

TRACEBACK = """\
[rank5]: Traceback (most recent call last):
[rank5]:   File "/job/fit.py", line 31, in fit
[rank5]:     batch = shards[at]
[rank5]: IndexError: shard 9 of 8
"""
FRAMES = "".join(
    f"[rank{rank}]: frame #{at}: c10d::watchdogHandler() + 0x890 (0x7f5a4441d7d0)\n"
    for rank in range(8)
    for at in range(3_000)
)
LOST = "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4)\n"


def cause_of(output):
    return diagnose(Evidence(worker="a", node="n", exit_code=1, output=output)).cause


def test_cause_before_the_end_of_a_long_output_is_found(tmp_path):
    file = tmp_path / "stderr.log"
    file.write_text(TRACEBACK + FRAMES + LOST)
    text = read_output(file)
    assert len(text) < len(FRAMES) / 3
    assert cause_of(text) == "index-error"
    # What was survived far before the end is none.
    steps = "".join(f"step {at} loss 2.1\n" for at in range(50))
    file.write_text(TRACEBACK + steps + FRAMES + LOST)
    assert cause_of(read_output(file)) == "nccl-timeout"


def test_short_output_is_kept_whole(tmp_path):
    file = tmp_path / "stderr.log"
    text = "".join(f"line {at}\n" for at in range(1_000))
    file.write_text(text)
    assert read_output(file) == text
    digest = OutputDigest()
    digest.write(text.encode())
    assert digest.text() == text


def test_flood_of_failures_keeps_the_first_and_the_last_and_says_what_is_left_out():
    digest = OutputDigest(end_bytes=1_000, most_bytes=10_000)
    tracemalloc.start()
    for at in range(100_000):
        digest.write(b"error %d: no answer\n" % at)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20
    text = digest.text()
    assert len(text) < 13_000
    assert text.startswith("error 0: no answer\n")
    assert text.endswith("error 99999: no answer\n")
    assert "lines were left out here]" in text


def test_part_of_a_file_that_is_not_read_is_told(tmp_path):
    file = tmp_path / "stderr.log"
    file.write_text(TRACEBACK + FRAMES + LOST)
    size = file.stat().st_size
    text = read_output(file, max_bytes=600_000)
    assert f"[{size - 600_000} bytes before this were not read]" in text
    assert cause_of(text) == "nccl-timeout"


@given(st.lists(st.binary(max_size=60), max_size=30), st.integers(1, 50))
def test_any_bytes_are_taken_and_their_end_is_kept(chunks, end_bytes):
    digest = OutputDigest(end_bytes=end_bytes, most_bytes=100)
    for chunk in chunks:
        digest.write(chunk)
    data = b"".join(chunks)
    assert digest.data().endswith(data[-end_bytes:])
