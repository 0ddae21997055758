"""Clients find the candidate that serves."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from drivetrain_core import ProgramError
from drivetrain_elastic import Master, MasterError, RefusedError
from drivetrain_elastic._client._master_client import MasterClient
from drivetrain_elastic.protocol import messages as pb


@pytest.fixture
def closed():
    """An address at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{free.getsockname()[1]}"


def incarnation(client):
    return client.call("GetStatus", pb.StatusRequest()).incarnation


def test_client_finds_the_candidate_that_serves(job, closed):
    master = job()
    for address in (f"{closed},{master.address}", f"{master.address}, {closed}"):
        with MasterClient(address, master.token) as client:
            assert incarnation(client) == 1
            events = list(client.stream("WatchEvents", pb.EventsRequest()))
            assert [event.subject for event in events] == ["1"]


def test_client_follows_the_master_to_another_address(job, tmp_path):
    first = job()
    second = job(address="127.0.0.1:0")
    address = f"{first.address},{second.address}"
    with MasterClient(address, first.token) as client:
        first.stop()
        assert [incarnation(client) for _ in range(3)] == [2, 2, 2]
        second.stop()
        third = Master(tmp_path / "job.db", address=first.address, token=first.token)
        assert [incarnation(client) for _ in range(3)] == [3, 3, 3]
        third.stop()


def test_call_that_waits_when_a_master_ends_goes_on_with_the_next(job):
    first = job()
    with (
        MasterClient(first.address, first.token) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        keys = pb.KeysRequest(keys=["a"], timeout_s=30)
        waiting = pool.submit(client.call, "GetKeys", keys, wait_s=30)
        # There is nothing to see of a call that waits.
        time.sleep(0.3)
        first.stop()
        job()
        client.call("SetKey", pb.KeyValue(key="a", value=b"1"))
        assert list(waiting.result(30).values) == [b"1"]


class CancelledError(grpc.RpcError):
    def code(self):
        return grpc.StatusCode.CANCELLED

    def details(self):
        return "the server has ended"


def test_call_that_a_master_cancels_is_made_again_unless_its_client_is_closed(job):
    master = job()
    with MasterClient(master.address, master.token) as client:
        real, asked = client._calls[0]["GetStatus"], []

        def cancelled_once(*arguments, **options):
            asked.append(arguments)
            if len(asked) == 1:
                raise CancelledError
            return real(*arguments, **options)

        client._calls[0]["GetStatus"] = cancelled_once
        assert incarnation(client) == 1
        assert len(asked) == 2
        asked.clear()
        client.close()
        with pytest.raises(RefusedError, match="the server has ended"):
            incarnation(client)


def test_call_that_waits_ends_when_its_client_is_closed(job):
    master = job()
    client = MasterClient(master.address, master.token)
    with ThreadPoolExecutor(1) as pool:
        keys = pb.KeysRequest(keys=["a"], timeout_s=30)
        waiting = pool.submit(client.call, "GetKeys", keys, wait_s=30)
        time.sleep(0.2)
        client.close()
        with pytest.raises((RefusedError, ValueError)):
            waiting.result(20)


def test_client_asks_all_candidates_before_it_gives_up(job):
    master = job()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        # It takes connections and never says a word, as a master that hangs.
        address = f"127.0.0.1:{silent.getsockname()[1]},{master.address}"
        with MasterClient(address, master.token, patience_s=0.0) as client:
            reply = client.call("GetStatus", pb.StatusRequest(), timeout_s=1.0)
    assert reply.incarnation == 1


def test_client_of_candidates_that_all_are_away_says_where_it_has_looked(closed):
    address = f"{closed},{closed}"
    with MasterClient(address, "token", patience_s=0.2) as client:
        for call in (client.call, client.stream):
            with pytest.raises(MasterError, match=f"at {address} has not answered"):
                list(call("GetStatus", pb.StatusRequest()))


def test_events_of_a_master_that_goes_end_with_an_error(job):
    master = job()
    with MasterClient(master.address, master.token) as client:
        events = client.stream("WatchEvents", pb.EventsRequest(follow=True))
        assert next(events).kind == "master"
        master.stop()
        with pytest.raises(MasterError, match=r"the master at .* is gone"):
            list(events)


@pytest.mark.parametrize(
    "address", [",", "a:1,", " ", "a:65536", "127.0.0.1:99999", "a:1,b:70000", "a:1 b"]
)
def test_address_that_is_none_is_refused(address):
    with pytest.raises(ProgramError, match="several with commas between them, got"):
        MasterClient(address, "token")
