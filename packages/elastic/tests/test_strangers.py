"""Who has no token learns nothing, costs next to nothing, and keeps nobody out."""

import asyncio
import contextlib
import resource
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import urllib.request
from pathlib import Path

import grpc
import pytest
from hpack import Decoder, Encoder
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, SettingsFrame
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_elastic._client._master_client import MasterClient, RefusedError
from drivetrain_elastic._client._tls import server_context
from drivetrain_elastic._client._unauthenticated import UnauthenticatedConnections
from drivetrain_elastic._master._first_call import first_call
from drivetrain_elastic._master._front_proxy import FrontProxy
from drivetrain_elastic._master._master import Master
from drivetrain_elastic.protocol import messages as pb
from drivetrain_elastic.protocol._service import API, METHODS, credentials

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


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
        strangers.add(a)
        strangers.add(b)
        assert strangers.trust(a)
        assert not strangers.trust(a)
        strangers.add(c)
        assert not b.ended.is_set()
        strangers.add(d)
        return [one.ended.is_set() for one in (a, b, c, d)]

    assert asyncio.run(story()) == [False, True, False, False]


def test_stranger_has_a_time():
    async def story():
        strangers = UnauthenticatedConnections(within_s=0.05)
        late, trusted = Connection(), Connection()
        strangers.add(late)
        strangers.add(trusted)
        strangers.trust(trusted)
        await asyncio.wait_for(late.ended.wait(), 30)
        assert not trusted.ended.is_set()
        last = Connection()
        strangers.add(last)
        strangers.close()
        assert last.ended.is_set()

    asyncio.run(story())


def opening(token, api=API):
    """Returns what a client says until its first call's head has been sent."""
    fields = [(":method", "POST"), (":path", "/x/y"), ("drivetrain-api", api)]
    if token is not None:
        fields.append(("authorization", f"Bearer {token}"))
    answer = SettingsFrame(0, flags=["ACK"]).serialize()
    head = HeadersFrame(1, Encoder().encode(fields), flags=["END_HEADERS"])
    return PREFACE + SettingsFrame(0).serialize() + answer + head.serialize()


def frames(data):
    """Returns the frames that a client has been sent."""
    found = []
    while data:
        frame, length = Frame.parse_frame_header(memoryview(data[:9]))
        frame.parse_body(memoryview(data[9 : 9 + length]))
        found.append(frame)
        data = data[9 + length :]
    return found


@contextlib.asynccontextmanager
async def proxied(tmp_path, within_s=60, tls=None):
    """A server that says back what it hears, behind a proxy; gives that and its port."""

    async def echo(reader, writer):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(echo, tmp_path / "server")
    proxy = FrontProxy(str(tmp_path / "server"), "secret", tls)
    proxy.strangers = UnauthenticatedConnections(within_s=within_s)
    try:
        yield proxy, await proxy.listen("127.0.0.1:0"), server
    finally:
        proxy.close()
        server.close()
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0.01)


async def greeted(port, said, **options):
    """Opens a connection, says something, and returns it after the proxy's settings."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, **options)
    writer.write(said)
    assert frames(await reader.readexactly(9))[0].type == SettingsFrame.type
    return reader, writer


async def is_cut(reader):
    try:
        return await asyncio.wait_for(reader.read(), 30) == b""
    except ConnectionError:
        return True


def without_answer(said):
    return said.replace(SettingsFrame(0, flags=["ACK"]).serialize(), b"")


def test_owner_reaches_the_server_which_greets_again(tmp_path):
    async def story():
        async with proxied(tmp_path, within_s=0.3) as (_, port, _):
            said = opening("secret")
            reader, writer = await greeted(port, said[:30])
            for at in range(30, len(said), 7):
                writer.write(said[at : at + 7])
                await writer.drain()
            heard = without_answer(said)
            assert await reader.readexactly(len(heard)) == heard
            silent, other = await asyncio.open_connection("127.0.0.1", port)
            assert await is_cut(silent)
            data = bytes(range(256)) * 20_000
            writer.write(data)
            assert await reader.readexactly(len(data)) == data
            writer.close()
            other.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("token", "api", "status", "reason"),
    [
        (None, API, "16", "the call carries no token"),
        ("secreT", API, "16", "the call carries a wrong token"),
        ("secret", "0", "9", "the caller speaks version 0"),
    ],
)
def test_stranger_hears_why_and_reaches_nobody(tmp_path, token, api, status, reason):
    async def story():
        async with proxied(tmp_path) as (_, port, _):
            reader, writer = await greeted(port, opening(token, api))
            head = await reader.readexactly(9)
            length = int.from_bytes(head[:3], "big")
            [refused] = frames(head + await reader.readexactly(length))
            fields = dict(Decoder().decode(refused.data))
            assert fields["grpc-status"] == status
            assert fields["grpc-message"].startswith(reason)
            assert "END_STREAM" in refused.flags
            [away] = frames(await reader.readexactly(17))
            assert (away.type, away.last_stream_id) == (GoAwayFrame.type, 1)
            # It is heard no more, and not for ever.
            with contextlib.suppress(ConnectionError):
                for _ in range(100):
                    writer.write(bytes(1 << 16))
                    await writer.drain()
            assert await is_cut(reader)
            writer.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(100),
        PREFACE[:10] + b"x",
        PREFACE + DataFrame(1, b"x").serialize(),
        PREFACE + b"\xff\xff\xff\x04\x00" + bytes(4),
        PREFACE + HeadersFrame(1, b"\xff" * 40, flags=["END_HEADERS"]).serialize(),
        PREFACE + HeadersFrame(1, Encoder().encode([("a", "b")])).serialize(),
        PREFACE + SettingsFrame(0).serialize() * 6_000,
        PREFACE + SettingsFrame(0).serialize() * 32,
    ],
)
def test_who_speaks_otherwise_is_cut(tmp_path, said):
    async def story():
        async with proxied(tmp_path) as (_, port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            left = await asyncio.wait_for(reader.read(), 30)
            assert left in (b"", SettingsFrame(0).serialize())
            writer.close()

    asyncio.run(story())


def test_end_of_either_side_is_passed_on(tmp_path):
    async def story():
        async with proxied(tmp_path) as (_, port, server):
            said = opening("secret")
            reader, writer = await greeted(port, said)
            await reader.readexactly(len(without_answer(said)))
            writer.write_eof()
            assert await is_cut(reader)
            writer.close()
            # A server that is gone leaves nobody waiting.
            server.close()
            (tmp_path / "server").unlink(missing_ok=True)
            reader, writer = await greeted(port, said)
            assert await is_cut(reader)
            writer.close()

    asyncio.run(story())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Returns the files of a certificate for localhost, and of its key."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl")
    folder = tmp_path_factory.mktemp("certificate")
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    words += " -addext subjectAltName=DNS:localhost -keyout key.pem -out cert.pem"
    subprocess.run(words.split(), cwd=folder, check=True, capture_output=True)
    return str(folder / "cert.pem"), str(folder / "key.pem")


def test_tls_is_looked_through(tmp_path, certificate):
    async def story():
        options = {"ssl": ssl.create_default_context(cafile=certificate[0])}
        options["server_hostname"] = "localhost"
        tls = server_context(*certificate)
        async with proxied(tmp_path, within_s=1.5, tls=tls) as (_, port, _):
            said = opening("secret")
            reader, writer = await greeted(port, said, **options)
            heard = without_answer(said)
            assert await reader.readexactly(len(heard)) == heard
            data = bytes(range(256)) * 40_000
            writer.write(data)
            assert await reader.readexactly(len(data)) == data
            refused, other = await greeted(port, opening(None), **options)
            assert b"the call carries" in await refused.readuntil(b"no token")
            other.close()
            for garbage in (b"", b"\x16\x03\x01\x02\x00\x01", PREFACE):
                plain, end = await asyncio.open_connection("127.0.0.1", port)
                end.write(garbage)
                # TLS may say what it did not like.
                with contextlib.suppress(ConnectionError):
                    await asyncio.wait_for(plain.read(), 30)
                end.close()
            writer.write(b"still here")
            assert await reader.readexactly(10) == b"still here"
            writer.close()

    asyncio.run(story())


@pytest.mark.slow
def test_calls_of_any_size_go_through_tls(certificate):
    tls = server_context(*certificate)
    trusted = grpc.ssl_channel_credentials(Path(certificate[0]).read_bytes())
    with (
        tempfile.TemporaryDirectory() as folder,
        Master(f"{folder}/job.db", address="127.0.0.1:0", tls=tls) as master,
    ):
        address = f"localhost:{master.address.rsplit(':', 1)[1]}"
        with MasterClient(address, master.token, tls=trusted) as client:
            large = bytes(range(256)) * 40_000
            client.call("SetKey", pb.KeyValue(key="large", value=large))
            found = client.call("GetKeys", pb.KeysRequest(keys=["large"]))
            assert list(found.values) == [large]
        with (
            MasterClient(address, "wrong", tls=trusted, patience_s=5) as client,
            pytest.raises(RefusedError, match="a wrong token"),
        ):
            client.call("GetStatus", pb.StatusRequest())


@given(
    st.lists(
        st.tuples(st.integers(24, 200), st.integers(0, 4), st.binary(max_size=5)),
        max_size=5,
    )
)
def test_broken_opening_is_an_error_or_waited_for(breaks):
    said = opening("secret")
    for at, length, instead in breaks:
        said = said[:at] + instead + said[at + length :]
    with contextlib.suppress(ValueError):
        call = first_call(said)
        assert call is None or call.said in (said, without_answer(said))
    assert first_call(said[:20]) is None


def test_frames_before_a_call_are_few():
    settings = SettingsFrame(0).serialize()
    call = opening("secret").removeprefix(PREFACE)
    assert first_call(PREFACE + settings * 20 + call).stream == 1
    with pytest.raises(ValueError, match="have come without a call"):
        first_call(PREFACE + settings * 40 + call)


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
