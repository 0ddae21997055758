"""Whatever workers and drivers say, the master hears of failures, and in valid messages."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from drivetrain_elastic._agent import _node_watch
from drivetrain_elastic._agent._agent import Agent
from drivetrain_elastic._agent._diagnostician import Diagnostician, failure_message
from drivetrain_elastic._agent._fork_server import _run
from drivetrain_elastic._agent._node_watch import NodeWatch
from drivetrain_elastic._agent._output import Output
from drivetrain_elastic._agent._worker import LocalWorker
from drivetrain_elastic.protocol import messages as pb
from drivetrain_health.diagnosis import read_error_record, write_error_record
from drivetrain_health.failures import Diagnosis, FailureClass


@pytest.fixture
def diagnostician(tmp_path):
    one = Diagnostician("n", str(tmp_path), Output(None))
    yield one
    one.close()


def worker(name):
    return LocalWorker(name=name, slot=0, copy=0, is_spare=False)


def test_texts_of_any_kind_and_length_fit_a_message():
    evil = "a\udcff" * 50_000
    found = Diagnosis(FailureClass.PROGRAM, evil, "n", evil, "n/0", evil)
    message = pb.Failure.FromString(failure_message(found, evil).SerializeToString())
    assert len(message.evidence) == 2_000
    assert len(message.traceback) == 20_000
    assert message.evidence.startswith("a?")
    assert message.evidence.endswith("a?")


def test_gpus_are_read_by_one_at_a_time_and_readings_are_shared(diagnostician):
    busy, overlaps, reads = threading.Lock(), [], []

    def read():
        reads.append(1)
        if not busy.acquire(blocking=False):
            overlaps.append(1)
            return ()
        busy.release()
        return ()

    one = diagnostician

    async def main():
        one._gpus = SimpleNamespace(read=read, close=one._gpus.close)
        await asyncio.gather(*(one.read_gpus() for _ in range(8)))

    asyncio.run(main())
    assert len(reads) == 1
    assert not overlaps


def test_sibling_that_says_what_was_wrong_is_heard_instead_of_an_echo(diagnostician):
    one = diagnostician

    async def main():
        reset = RuntimeError("Connection closed by peer [127.0.0.1]:1234")
        write_error_record(one.error_path("n/a-0"), reset)
        write_error_record(one.error_path("n/a-1"), ValueError("no such rate"))
        return await one.examine(*(worker("n/a-0"), 1), siblings=[worker("n/a-1")])

    who, failure = asyncio.run(main())
    assert who.name == "n/a-1"
    assert (failure.failure_class, failure.is_echo) == ("program", False)
    assert "no such rate" in failure.evidence


def test_what_a_worker_has_left_is_removed(tmp_path, diagnostician):
    names = ["error-a-0", "flight-7", "stacks-7", "flight-8"]
    for name in names:
        (tmp_path / name).touch()
    gone = worker("n/a-0")
    gone.process = SimpleNamespace(pid=7)
    diagnostician.forget(gone)
    assert [one.name for one in tmp_path.iterdir()] == ["flight-8"]


def watch(diagnostician, alerts=None):
    return NodeWatch(
        diagnostician, alert=(alerts or []).append, is_training=lambda: False
    )


def test_node_that_cannot_be_read_is_said_once_and_ends_nothing(
    diagnostician, monkeypatch, caplog
):
    def fail(*_, **__):
        message = "no /proc here"
        raise OSError(message)

    monkeypatch.setattr(_node_watch.psutil, "virtual_memory", fail)
    monkeypatch.setattr(_node_watch.psutil, "net_io_counters", fail)
    one = watch(diagnostician)
    for _ in range(3):
        hardware = one.hardware()
    assert hardware.memory_total == 0
    assert len(caplog.records) == 2

    async def main():
        for name in ("_TRAFFIC_S", "_NODE_S", "_GPUS_S"):
            monkeypatch.setattr(_node_watch, name, 0.0)
        looks = asyncio.Event()
        monkeypatch.setattr(one, "_look_at_traffic", looks.set)
        running = asyncio.create_task(one.run())
        for _ in range(3):
            looks.clear()
            waiting = asyncio.create_task(looks.wait())
            await asyncio.wait(
                {running, waiting}, return_when=asyncio.FIRST_COMPLETED, timeout=10.0
            )
            assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())


def test_what_was_found_broken_is_among_the_alerts_for_a_new_master(diagnostician):
    one = watch(diagnostician)
    failure = pb.Failure(failure_class="gpu-hardware", evidence="xid 79")

    async def look():
        return [("gpu-hardware", failure)]

    one._diagnostician.look = look
    one._alerts = {"memory": "it is \udcff full"}
    asyncio.run(one._look_at_devices())
    memory, gpu = one.alerts()
    assert (memory.kind, memory.reason) == ("memory", "it is ? full")
    assert gpu.failure == failure


@pytest.mark.parametrize(
    ("code", "says"), [("'no license'", "no license"), ("3", None), ("None", None)]
)
def test_exit_with_a_text_is_an_error_and_with_a_number_is_not(
    tmp_path, monkeypatch, code, says
):
    (tmp_path / "train.py").write_text(f"import sys; sys.exit({code})")
    monkeypatch.setenv("DRIVETRAIN_ELASTIC_ERROR_FILE", str(tmp_path / "error"))
    monkeypatch.setattr("sys.argv", ["x"])
    monkeypatch.setattr("sys.path", ["x"])
    program = [str(tmp_path / "train.py")]
    with pytest.raises(SystemExit):
        _run({"program": program, "is_module": False, "folder": str(tmp_path)})
    record = read_error_record(tmp_path / "error")
    assert (record.message if record else None) == says


@pytest.mark.parametrize(
    ("address", "expects"), [("127.0.0.1:29400", False), ("a.example:29400", True)]
)
def test_traffic_is_expected_where_the_job_leaves_its_machine(address, expects):
    agent, worker = object.__new__(Agent), SimpleNamespace(phase="computing")
    agent._address = address
    agent._worker_group = SimpleNamespace(workers={"a": worker})
    assert agent._sends() is expects
    worker.phase = "starting"
    assert agent._sends() is False
