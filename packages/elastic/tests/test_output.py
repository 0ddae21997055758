"""What workers write reaches its places, and no failure of these reaches the workers."""

import asyncio
import contextlib
import os

from drivetrain_elastic._agent._output import Output, _Sink

WRITTEN = "Grüße\n10 %\r20 %\nhalf".encode()


def pump(output, name, data):
    """Writes as a worker does."""

    async def run():
        with output.open(name) as descriptors:
            ends = [os.dup(one) for one in descriptors]
        for end in ends:
            await asyncio.to_thread(os.write, end, data)
            os.close(end)
        await output.close()

    asyncio.run(run())


def test_output_is_shown_in_bytes_with_names_before_its_lines(tmp_path, capfdbinary):
    pump(Output(str(tmp_path), tee=True), "a/0", WRITTEN)
    wanted = "[a/0] Grüße\n[a/0] 10 %\r20 %\n[a/0] half".encode()
    assert capfdbinary.readouterr() == (wanted, wanted)
    for name in ("stdout", "stderr"):
        assert (tmp_path / "a" / "0" / f"{name}.log").read_bytes() == WRITTEN


@contextlib.contextmanager
def closed_output():
    """Makes the standard output of this process a pipe that nobody reads."""
    kept = os.dup(1)
    read_end, write_end = os.pipe()
    os.close(read_end)
    os.dup2(write_end, 1)
    os.close(write_end)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def test_output_that_cannot_be_shown_is_read_and_kept(tmp_path, caplog):
    # More than a pipe holds: a worker would hang, or get SIGPIPE.
    data = b"x" * 99 + b"\n"
    with closed_output():
        pump(Output(str(tmp_path), tee=True), "a", data * 5_000)
    assert (tmp_path / "a" / "stdout.log").stat().st_size == 500_000
    (record,) = caplog.records
    assert "lost: the agent's standard output: [Errno 32]" in record.getMessage()


def test_output_that_cannot_be_kept_is_read_and_shown(tmp_path, capfdbinary, caplog):
    (tmp_path / "a").mkdir()
    for name in ("stdout", "stderr"):
        (tmp_path / "a" / f"{name}.log").symlink_to("/dev/full")
    pump(Output(str(tmp_path), tee=True), "a", b"1\n2\n" * 100_000)
    assert capfdbinary.readouterr().out == b"[a] 1\n[a] 2\n" * 100_000
    assert len(caplog.records) == 2
    assert "No space left" in caplog.text


def test_output_that_nobody_reads_for_a_time_keeps_nobody_waiting(tmp_path, caplog):
    lines, num = b"x" * 99 + b"\n", 120_000  # more than a pipe and the queue hold
    kept, (read_end, write_end) = os.dup(1), os.pipe()

    def read_all():
        with os.fdopen(read_end, "rb") as reader:
            return reader.read()

    async def run():
        output = Output(str(tmp_path), tee=True)
        with output.open("a") as descriptors:
            out = os.dup(descriptors[0])

        def write():
            with os.fdopen(out, "wb") as writer:
                writer.write(lines * num)

        # It ends although nothing is read, and the loop goes on meanwhile.
        await asyncio.wait_for(asyncio.to_thread(write), 30.0)
        while (tmp_path / "a" / "stdout.log").stat().st_size < 100 * num:
            await asyncio.sleep(0.01)
        reading = asyncio.create_task(asyncio.to_thread(read_all))
        await output.close()
        os.dup2(kept, 1)
        return await reading

    os.dup2(write_end, 1)
    os.close(write_end)
    try:
        shown = asyncio.run(run())
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    assert shown.startswith(b"[a] " + lines)
    assert 8 << 20 <= len(shown) < 104 * num
    (record,) = caplog.records
    assert f"{104 * num - len(shown)} bytes of the output" in record.getMessage()


def test_output_to_a_descriptor_that_does_not_block_is_whole_and_in_order():
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    wanted = b"".join(b"%d\n" % one for one in range(100_000))
    sink = _Sink(write_end, "a pipe", lambda: os.close(write_end))
    for at in range(0, len(wanted), 1000):
        sink.write(wanted[at : at + 1000])
    sink.close()
    with os.fdopen(read_end, "rb") as reader:
        assert reader.read() == wanted
