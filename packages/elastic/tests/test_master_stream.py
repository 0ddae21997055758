"""An agent's stream: how a master is looked for that is not there."""

import asyncio
import math
import socket

import pytest

from drivetrain_core import ProgramError
from drivetrain_elastic import Master, MasterError
from drivetrain_elastic._agent import _master_stream
from drivetrain_elastic._agent._master_stream import MasterStream
from drivetrain_elastic._client._master_client import RefusedError, split_addresses
from drivetrain_elastic._client._token import make_token
from drivetrain_elastic.protocol import messages as pb


@pytest.fixture(autouse=True)
def short_times(monkeypatch):
    monkeypatch.setattr(_master_stream, "_SILENT_S", 0.05)
    monkeypatch.setattr(_master_stream, "_LEAST_PATIENCE_S", 0.2)


@pytest.fixture
def address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def stream_to(address, token, patience_s):
    terms = pb.Terms(min_workers=1, max_workers=1, unit=1, patience_s=60)
    return MasterStream(
        address,
        token,
        hello=lambda: pb.Hello(node="a", terms=terms),
        heartbeat=pb.Heartbeat,
        heard=lambda _: None,
        patience_s=patience_s,
    )


def test_line_says_that_no_master_answers_and_gives_up(address, caplog):
    async def run():
        await stream_to(f"{address},{address}", make_token(), 0.0).run()

    with pytest.raises(MasterError, match=r"has not answered for 0\.2 s: .*; start it"):
        asyncio.run(run())
    (said,) = [one.getMessage() for one in caplog.records]
    assert f"the master at {address}, {address} does not answer: " in said
    assert said.endswith("; this agent looks for it for 0.2 s")


def test_line_without_end_of_patience_finds_a_master_that_comes_late(
    address, caplog, tmp_path
):
    token = make_token()
    stream = stream_to(address, token, math.inf)

    async def run():
        running = asyncio.create_task(stream.run())
        while not caplog.records:
            await asyncio.sleep(0.01)
        with Master(tmp_path / "job.db", address=address, token=token):
            while not stream.is_open:
                await asyncio.sleep(0.01)
            stream.close()
            await running

    asyncio.run(run())
    said = caplog.records[0].getMessage()
    assert said.endswith("; this agent looks for it until there is one")


def test_line_that_is_refused_for_another_agent_has_found_a_master(
    job, agent, monkeypatch, caplog
):
    monkeypatch.setattr(_master_stream, "_DUPLICATE_S", 0.4)
    master = job(node_timeout_s=30.0)
    terms = {"min_workers": 1, "max_workers": 1, "last_call_s": 0.0}
    agent("a", master=master, **terms).next("welcome")

    async def run():
        await stream_to(master.address, master.token, 0.0).run()

    with pytest.raises(RefusedError, match="node 'a' is there already"):
        asyncio.run(run())
    assert "does not answer" not in caplog.text


@pytest.mark.parametrize(
    "address", ["", "a", "a:", ":1", "a:b", "a:1,", "a:1,b", "::1", "http://a:1"]
)
def test_address_without_a_host_or_a_port_is_refused(address):
    with pytest.raises(ProgramError, match="the address of a master is HOST:PORT"):
        split_addresses(address)
