"""Who has no token learns nothing, costs next to nothing, and keeps nobody out."""

import asyncio
import contextlib
import resource
import socket
import threading
import urllib.request

import grpc
import pytest

from drivetrain_elastic._client._master_client import MasterClient
from drivetrain_elastic._client._unauthenticated import UnauthenticatedConnections
from drivetrain_elastic._master._front_proxy import FrontProxy
from drivetrain_elastic.protocol import messages as pb
from drivetrain_elastic.protocol._service import METHODS, credentials


def most():
    """Returns how many strangers may be silent at a port."""
    return min(1024, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)


class Connection:
    def __init__(self):
        self.ended = asyncio.Event()

    def abort(self):
        self.ended.set()


def test_oldest_stranger_makes_room_and_who_is_trusted_stays():
    async def story():
        strangers = UnauthenticatedConnections(most=2)
        a, b, c, d = (Connection() for _ in range(4))
        strangers.add("a", a)
        strangers.add("b", b)
        strangers.trust("a")
        strangers.add("c", c)
        assert not b.ended.is_set()
        strangers.add("d", d)
        return [one.ended.is_set() for one in (a, b, c, d)]

    assert asyncio.run(story()) == [False, True, False, False]


def test_stranger_has_a_time():
    async def story():
        strangers = UnauthenticatedConnections(within_s=0.05)
        late, trusted = Connection(), Connection()
        strangers.add("late", late)
        strangers.add("trusted", trusted)
        strangers.trust("trusted")
        await asyncio.wait_for(late.ended.wait(), 30)
        assert not trusted.ended.is_set()
        last = Connection()
        strangers.add("last", last)
        strangers.close()
        assert last.ended.is_set()

    asyncio.run(story())


async def gated(tmp_path, within_s):
    """Returns a proxy, its port, and the names of those that its server has heard."""
    names = asyncio.Queue()

    async def echo(reader, writer):
        await names.put(writer.get_extra_info("peername").decode())
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(echo, tmp_path / "server")
    proxy = FrontProxy(str(tmp_path / "server"), b"")
    proxy.strangers = UnauthenticatedConnections(within_s=within_s)
    return server, proxy, await proxy.listen("127.0.0.1:0"), names


def test_gate_passes_on_what_comes_and_ends_who_is_not_trusted(tmp_path):
    async def story():
        server, proxy, port, names = await gated(tmp_path, within_s=0.3)
        trusted = await asyncio.open_connection("127.0.0.1", port)
        data = bytes(range(256)) * 20_000
        trusted[1].write(data)
        proxy.hear(await names.get(), is_refused=False)
        assert await trusted[0].readexactly(len(data)) == data
        silent = await asyncio.open_connection("127.0.0.1", port)
        speaks = await asyncio.open_connection("127.0.0.1", port)
        speaks[1].write(b"hello")
        assert await speaks[0].readexactly(5) == b"hello"
        for reader, _ in (silent, speaks):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(reader.readexactly(1), 30)
        trusted[1].write(b"still here")
        assert await trusted[0].readexactly(10) == b"still here"
        proxy.close()
        server.close()
        for _, writer in (trusted, silent, speaks):
            writer.close()
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0.01)

    asyncio.run(story())


def test_end_of_either_side_is_passed_on(tmp_path):
    async def story():
        server, proxy, port, names = await gated(tmp_path, within_s=60)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x")
        await names.get()
        assert await reader.readexactly(1) == b"x"
        writer.close()
        assert await reader.read() == b""
        # A server that is gone leaves nobody waiting.
        server.close()
        (tmp_path / "server").unlink(missing_ok=True)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), 30)
        writer.close()
        proxy.close()
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0.01)

    asyncio.run(story())


def call_that_sends_nothing(address, path, metadata=()):
    """Returns the status of a call whose message never comes."""
    wait = threading.Event()

    def messages():
        wait.wait(60)
        yield b""

    with grpc.insecure_channel(address) as channel:
        try:
            channel.stream_unary(path)(messages(), metadata=metadata, timeout=30)
        except grpc.RpcError as error:
            return error.code()
        finally:
            wait.set()
    return None


def test_token_is_looked_at_before_a_message_has_come(job):
    master = job()
    for method in METHODS.values():
        code = call_that_sends_nothing(master.address, method.path)
        assert code == grpc.StatusCode.UNAUTHENTICATED, method.path
    for path in ("/drivetrain.elastic.v1.Master/Nothing", "/x", "/x/y"):
        code = call_that_sends_nothing(master.address, path)
        assert code == grpc.StatusCode.UNAUTHENTICATED, path
        mine = credentials(master.token)
        code = call_that_sends_nothing(master.address, path, mine)
        assert code == grpc.StatusCode.UNIMPLEMENTED, path


def is_ended(sock):
    sock.settimeout(30)
    with contextlib.suppress(ConnectionError):
        # gRPC begins to speak as soon as it hears something.
        while sock.recv(1 << 10):
            pass
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    "says", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03"]
)
def test_connections_that_prove_nothing_keep_no_owner_out(job, says):
    master = job()
    host, port = master.address.split(":")
    status = pb.StatusRequest()
    with MasterClient(master.address, master.token) as client:
        events = client.stream("WatchEvents", pb.EventsRequest(follow=True))
        next(events)
        strangers = []
        for _ in range(most() + 20):
            strangers.append(socket.create_connection((host, int(port))))
            strangers[-1].sendall(says)
        assert all(is_ended(one) for one in strangers[:20])
        assert client.call("GetStatus", status).incarnation == 1
        with MasterClient(master.address, master.token, patience_s=30) as new:
            assert new.call("GetStatus", status).incarnation == 1
        # What was open before stays so.
        client.call("Stop", pb.StopRequest(reason="it has been seen"))
        assert any(one.kind == "ended" for one in events)
        for one in strangers:
            one.close()


@pytest.mark.slow
@pytest.mark.extra
def test_silent_connections_to_the_metrics_cost_no_threads(job):
    master = job(metrics="127.0.0.1:0")
    host, port = master.metrics.split(":")
    before = threading.active_count()
    strangers = [
        socket.create_connection((host, int(port))) for _ in range(most() + 20)
    ]
    assert all(is_ended(one) for one in strangers[:20])
    assert threading.active_count() <= before
    too_much = socket.create_connection((host, int(port)))
    too_much.sendall(b"x" * (1 << 20))
    assert is_ended(too_much)
    with urllib.request.urlopen(f"http://{master.metrics}/metrics", timeout=60) as page:
        assert "drivetrain_elastic_up 1.0" in page.read().decode()
    with socket.create_connection((host, int(port))) as asks:
        asks.sendall(b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        asks.settimeout(30)
        head = b""
        while data := asks.recv(1 << 16):
            head += data
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert head.endswith(b"\r\n\r\n")
    for one in (*strangers, too_much):
        one.close()


def test_strangers_that_speak_come_in_one_after_the_other():
    async def story():
        strangers = UnauthenticatedConnections()
        strangers._room = asyncio.Semaphore(1)
        for name in "abc":
            strangers.add(name, Connection())
        assert await strangers.enter("a")
        b = asyncio.create_task(strangers.enter("b"))
        c = asyncio.create_task(strangers.enter("c"))
        await asyncio.sleep(0)
        assert not b.done()
        strangers.trust("a")
        assert await b
        # Nobody vouches for it, and another one waits.
        assert await asyncio.wait_for(c, 30)
        strangers.drop("c")
        assert not await strangers.enter("nobody")

    asyncio.run(story())


def test_stranger_that_asks_on_and_on_is_sent_away():
    async def story():
        strangers, one = UnauthenticatedConnections(), Connection()
        strangers.add("one", one)
        assert await strangers.enter("one")
        for _ in range(32):
            strangers.refuse("one")
        assert not one.ended.is_set()
        strangers.refuse("one")
        assert one.ended.is_set()

    asyncio.run(story())
