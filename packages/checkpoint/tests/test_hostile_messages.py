"""What strangers and odd clients send to the sockets, and what becomes of the daemon."""

import contextlib
import errno
import json
import os
import socket
import struct
import threading
import tracemalloc
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_checkpoint import Checkpointer, DaemonError
from drivetrain_checkpoint._arena import Arena
from drivetrain_checkpoint._daemon.client import visit
from drivetrain_checkpoint._daemon.listener import Listener
from drivetrain_checkpoint._daemon.messages import check_message
from drivetrain_checkpoint._daemon.service import Daemon
from drivetrain_checkpoint._fields import check_fields
from drivetrain_checkpoint._layout.manifest import RankManifest
from drivetrain_checkpoint._native import BLOCK_BYTES, checksums
from drivetrain_checkpoint._peers import strangers
from drivetrain_checkpoint._peers.connection import (
    Connection,
    ProtocolError,
    address_of,
    socket_path,
)
from drivetrain_checkpoint._peers.nodes import Node, NodeTable
from drivetrain_checkpoint._peers.peer_server import PeerServer, connect_to
from drivetrain_checkpoint._peers.replica_store import ReplicaStore
from drivetrain_checkpoint._peers.strangers import Strangers

SMALL = {"w": torch.ones(10)}

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
NAMES = [
    "op",
    "save_id",
    "run",
    "secret",
    "source",
    "url",
    "under",
    "error",
    "rank",
    "step",
    "sequence",
    "start",
    "size_bytes",
    "record_bytes",
    "image_bytes",
    "num_replicas",
    "drop",
    "at_once",
    "options",
    "settings",
    "nodes",
    "entry",
    "ranks",
    "timeout_s",
    "bytes_per_s",
    "port",
    "what",
]
OPERATIONS = [
    "hello",
    "join",
    "arm",
    "lend",
    "adopt",
    "attach",
    "claim",
    "release",
    "drop",
    "saved",
    "persist",
    "wait",
    "settle",
    "status",
    "what",
]


def frame(text):
    return struct.pack("<I", len(text)) + text


def pair(most_bytes=1 << 24):
    one, two = socket.socketpair()
    one.settimeout(60)
    return Connection(one, most_bytes), two


@pytest.fixture
def place(tmp_path):
    """A folder of checkpoints whose daemon runs in this process, and its socket."""
    path = socket_path("odd", f"{tmp_path}")
    daemon = Daemon(Listener(path))
    serving = threading.Thread(target=daemon.serve, daemon=True)
    serving.start()
    yield tmp_path, path, daemon
    daemon.stop()
    serving.join(60)


def connected(path):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(60)
    with address_of(path) as address:
        sock.connect(address)
    return sock


def asked(path, message):
    connection = Connection(connected(path))
    with contextlib.closing(connection):
        return connection.ask(message)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60) | st.binary(max_size=60).map(frame))
def test_bytes_that_are_no_message_end_the_conversation(data):
    connection, other = pair()
    with other:
        other.sendall(data)
        other.shutdown(socket.SHUT_WR)
        received = iter(lambda: connection.receive()[0], None)
        with pytest.raises((EOFError, ProtocolError)):
            assert all(isinstance(message, dict) for message in received)
    connection.close()


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"7",
        b'"x"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"op":' + b"9" * 10_000 + b"}",
    ],
)
def test_what_is_no_message_is_told_as_such(text):
    connection, other = pair()
    with other:
        threading.Thread(target=other.sendall, args=(frame(text),)).start()
        with pytest.raises(ProtocolError, match="no message"):
            connection.receive()
    connection.close()


@pytest.mark.parametrize("most", [4096, 1 << 24])
def test_announced_length_takes_no_memory(most):
    connection, other = pair(most)
    with other:
        other.sendall(struct.pack("<I", most) + b"{")
        other.shutdown(socket.SHUT_WR)
        tracemalloc.start()
        with pytest.raises(EOFError):
            connection.receive()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1 << 20
    connection.close()


def test_message_that_is_too_long_is_refused_on_both_ends():
    connection, other = pair(1000)
    with other:
        other.sendall(struct.pack("<I", 1001))
        with pytest.raises(ProtocolError, match="1,001 bytes, where 1,000 may come"):
            connection.receive()
    with pytest.raises(DaemonError, match="at most 16,777,216 bytes"):
        connection.send({"error": "x" * (1 << 24)})
    connection.close()


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), plain))
def test_fields_that_pass_are_of_their_kinds(message):
    with contextlib.suppress(ValueError):
        check_message(message)
        for name in ("rank", "step", "start", "port", "num_replicas"):
            assert type(message.get(name, 0)) is int
            assert message.get(name, 0) >= 0
        assert hash(message.get("save_id", "")) is not None


@pytest.mark.parametrize("value", [-1, True, 1 << 63, 0.0, "1", None, [], {}])
def test_field_that_is_no_count_is_named(value):
    with pytest.raises(ValueError, match="'rank' must not be"):
        check_message({"op": "claim", "rank": value})
    with pytest.raises(ValueError, match="'x' must not be"):
        check_fields({"x": value}, {})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "1", True, 1e300])
def test_time_that_cannot_be_waited_for_is_refused(value):
    with pytest.raises(ValueError, match="'timeout_s' must not be"):
        check_message({"timeout_s": value})


def test_odd_messages_are_refused_and_the_owner_is_served(tmp_path, daemon_of):
    owner = Checkpointer(tmp_path, job="odd")
    assert owner.save(1, SMALL).wait(60)
    pid, path = daemon_of(), owner._job.client._path

    @settings(max_examples=150, deadline=None)
    @given(
        st.fixed_dictionaries(
            {"op": st.sampled_from(OPERATIONS)},
            optional={name: plain for name in NAMES if name not in {"op", "timeout_s"}},
        )
    )
    def send(message):
        text = json.dumps(message).encode()
        with connected(path) as sock:
            sock.sendall(frame(text))
            assert len(sock.recv(4)) == 4  # an answer

    send()
    for odd in (
        {"op": "join", "nodes": 5},
        {"op": "adopt", "rank": {}},
        {"op": "arm", "rank": 0},
        {},
    ):
        assert "refused" in asked(path, odd)
    assert owner.save(2, SMALL).wait(60)
    assert daemon_of() == pid
    assert "Traceback" not in path.with_suffix(".log").read_text()
    owner.stop_daemon()


@pytest.mark.parametrize(
    "odd",
    [
        {"idle_s": "x"},
        {"idle_s": float("nan")},
        {"limit_s": None},
        {"keep": {"last": "x"}},
        {"keep": {"what": 1}},
        {"local": 7},
        {"local": [7, 7]},
        None,
    ],
)
def test_odd_first_message_leaves_nothing_behind(place, odd):
    folder, path, daemon = place
    owner = Checkpointer(folder, job="odd")
    hello = owner._job.settings.hello()
    settings_ = {} if odd is None else {**hello["settings"], **odd}
    assert "refused" in asked(path, {**hello, "url": "x", "settings": settings_})
    assert daemon._persister is None
    assert owner.save(1, SMALL).wait(60)
    assert daemon._url == f"{folder}"


def test_connection_that_ends_oddly_is_not_counted_any_more(place):
    folder, path, daemon = place
    owner = Checkpointer(folder, job="odd")
    assert owner.save(1, SMALL).wait(60)
    for text in (b"[]", b"{", b'{"op":"status"}', b'{"op":"adopt","rank":-1}'):
        with connected(path) as sock:
            sock.sendall(frame(b'{"op":"status"}') + frame(text))
            while sock.recv(1 << 16):
                if text.startswith(b'{"'):
                    break
    assert visit("odd", f"{folder}", {"op": "status"})["ranks"]
    owner._job.client.close()
    for _ in range(3000):
        if not daemon._connections:
            break
        threading.Event().wait(0.02)
    assert not daemon._connections


def test_descriptors_that_nobody_asked_for_are_closed(tmp_path, daemon_of):
    owner = Checkpointer(tmp_path, job="odd")
    assert owner.save(1, SMALL).wait(60)
    path, opened = owner._job.client._path, Path(f"/proc/{daemon_of()}/fd")
    reader, writer = os.pipe()
    pipe = Path(f"/proc/self/fd/{reader}").readlink()
    for text in (b'{"op":"status"}', b"[]", b'{"op":"arm","rank":0}', b"{") * 10:
        with connected(path) as sock:
            socket.send_fds(sock, [struct.pack("<I", len(text))], [reader])
            sock.sendall(text)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 16):
                pass
    # The daemon hangs up after it has closed what came.
    assert pipe not in [one.readlink() for one in opened.iterdir() if one.is_fifo()]
    os.close(reader)
    os.close(writer)
    owner.stop_daemon()


@pytest.mark.parametrize("size", [0, 10, 24, 5000, 4096 * 3])
def test_memory_that_is_no_arena_is_refused(size):
    fd = os.memfd_create("odd")
    os.write(
        fd, (b"dtckptA1" + struct.pack("<QQ", 1, 1 << 40)).ljust(size, b"\0")[:size]
    )
    with pytest.raises(ValueError, match=r"is not an arena|empty file"):
        Arena(fd)


def test_save_that_goes_beyond_its_memory_is_none():
    arena = Arena.create(8192, 100)
    record = b"{}"
    for size in (8193, 1 << 60):
        arena.publish(0, 1, record, 100, size)
        assert arena.generations() == []
    arena.publish(0, 1, record, 100, 8192)
    assert len(arena.generations()) == 1


def test_silent_connections_keep_nobody_out(place, monkeypatch):
    folder, path, daemon = place
    monkeypatch.setattr(strangers, "_BUSY_PATIENCE_S", 0.05)
    owner = Checkpointer(folder, job="odd")
    assert owner.save(1, SMALL).wait(60)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connected(path)) for _ in range(200)]
        assert owner.save(2, SMALL).wait(60)
        assert asked(path, {"op": "status"})["ranks"]
        assert len(daemon._strangers._since) <= strangers._MOST
        assert silent[0].recv(1) == b""
        monkeypatch.setattr(strangers, "_PATIENCE_S", 0.0)
        assert silent[-1].recv(1) == b""


def test_too_many_open_files_end_no_daemon(place, monkeypatch):
    folder, *_ = place
    failed = threading.Event()
    accept = Listener.accept

    def fails_once(listener):
        if not failed.is_set():
            failed.set()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(listener)

    monkeypatch.setattr(Listener, "accept", fails_once)
    assert failed.wait(60)
    assert Checkpointer(folder, job="odd").save(1, SMALL).wait(60)


def test_strangers_that_get_no_thread_are_hung_up_on(monkeypatch, caplog):
    def fails(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fails)
    one, two = socket.socketpair()
    with two:
        found = Strangers(1000)
        found.welcome(one, "here", lambda _: None)
        assert two.recv(1) == b""
    assert not found._since
    assert "can't start new thread" in caplog.text


@pytest.fixture
def server(monkeypatch):
    def answer(connection):
        while True:
            message, _ = connection.receive()
            connection.send({"ok": len(message["text"])})

    found = PeerServer("127.0.0.1", 0, answer)
    found.admit("the secret")
    monkeypatch.setattr(strangers, "_BUSY_PATIENCE_S", 0.05)
    yield found
    found.close()


def node_of(server):
    return Node(id="a", host="127.0.0.1", port=server.port, domain="a", ranks=())


def stranger_at(server):
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    challenge = b""
    while not challenge.endswith(b"}"):
        challenge += sock.recv(4096)
    return sock


@pytest.mark.parametrize(
    "reply",
    [
        b"[]",
        b"GET / HTTP/1.1",
        b"[" * 4096,
        b'{"proof":"\xc3\xa4","challenge":"x"}',
        b'{"proof":"\\ud800"}',
        b'{"proof":' + b"9" * 4000 + b"}",
        b"{}",
    ],
)
def test_odd_proof_is_turned_away_with_a_line(server, reply, caplog):
    with stranger_at(server) as sock:
        sock.sendall(frame(reply))
        while sock.recv(4096):
            pass
    with contextlib.closing(connect_to(node_of(server), "the secret")) as peer:
        assert peer.ask({"text": "x" * 100_000}) == {"ok": 100_000}
    assert caplog.text.count("was turned away") == 1
    assert "127.0.0.1:" in caplog.text


def test_nothing_long_comes_before_a_proof(server, caplog):
    with stranger_at(server) as sock:
        sock.sendall(struct.pack("<I", 4097))
        assert sock.recv(1) == b""
    assert "4,097 bytes, where 4,096 may come" in caplog.text


def test_strangers_keep_no_peer_out_and_fill_no_log(server, caplog):
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", server.port)
        for _ in range(200):
            stack.enter_context(socket.create_connection(address, timeout=60))
        with contextlib.closing(connect_to(node_of(server), "the secret")) as peer:
            assert peer.ask({"text": ""}) == {"ok": 0}
        assert len(server._strangers._since) <= strangers._MOST
    assert caplog.text.count("was turned away") == 1


def test_server_that_says_too_much_before_its_proof_is_left():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        node = Node(
            id="a",
            host="127.0.0.1",
            port=listener.getsockname()[1],
            domain="",
            ranks=(),
        )

        def lie():
            sock, _ = listener.accept()
            with sock:
                sock.sendall(struct.pack("<I", 1 << 24))
                sock.recv(1)

        liar = threading.Thread(target=lie)
        liar.start()
        with pytest.raises(ProtocolError, match="where 4,096 may come"):
            connect_to(node, "the secret")
        liar.join(60)


_ODD = (OSError, ValueError, LookupError, RecursionError, TypeError)

RECORD = {
    "manifest": {
        "job": "odd",
        "step": 1,
        "save_id": "x",
        "rank": 3,
        "world_size": 4,
        "size_bytes": 100,
        "header_bytes": 8,
        "block_bytes": BLOCK_BYTES,
        "crc32c": [],
    }
}


@pytest.mark.parametrize(
    ("record", "is_kept"),
    [
        (json.dumps(RECORD).encode(), True),
        (b"[" * 3000, False),
        (b"7", False),
        (b"{}", False),
        (json.dumps({"manifest": {**RECORD["manifest"], "rank": 2}}).encode(), False),
        (json.dumps({"manifest": {**RECORD["manifest"], "rank": []}}).encode(), False),
    ],
)
def test_replica_with_an_odd_record_is_not_kept(record, is_kept):
    connection, other = pair()
    image = bytes(100)
    about = {"rank": 3, "source": "a", "sequence": 1}
    about |= {"record_bytes": len(record), "image_bytes": len(image)}
    text = json.dumps({"crc32c": checksums(memoryview(image), 1)}).encode()
    other.sendall(record + image + frame(text))
    store = ReplicaStore()
    with contextlib.nullcontext() if is_kept else pytest.raises(_ODD):
        store.receive(connection, about)
    assert [replica.rank for replica in store.all()] == [3] * is_kept
    other.close()
    connection.close()


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(["here", "nodes"]), plain) | plain)
def test_table_of_nodes_is_one_or_refused(said):
    with pytest.raises(ValueError, match=r"not a table of nodes|must not be"):
        NodeTable.from_plain(said)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(RECORD["manifest"])), plain)
def test_manifest_in_memory_is_one_or_refused(name, value):
    fields = {**RECORD["manifest"], name: value}
    with contextlib.suppress(OSError):  # as all errors of the package are
        found = RankManifest.from_fields(fields, "it")
        assert found.rank < found.world_size
        assert found.num_blocks == 1 or found.size_bytes != 100


def test_log_of_the_daemon_has_no_traceback(tmp_path, runtime):
    owner = Checkpointer(tmp_path, job="odd")
    assert owner.save(1, SMALL).wait(60)
    path = owner._job.client._path
    for _ in range(50):
        with connected(path) as sock:
            sock.sendall(frame(b"[" * 10_000))
            assert sock.recv(1) == b""
    assert owner.save(2, SMALL).wait(60)
    text = Path(path).with_suffix(".log").read_text()
    assert "Traceback" not in text
    assert 0 < text.count("was turned away") < 5
    owner.stop_daemon()
