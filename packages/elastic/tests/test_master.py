"""Masters serve whom they should, one at a time, and forget nothing."""

import contextlib
import json
import random
import shutil
import socket
import subprocess
import threading
import time

import grpc
import pytest
from fake_agent import FakeAgent

from drivetrain_core import ProgramError
from drivetrain_elastic import Master, MasterError, RefusedError
from drivetrain_elastic._client._master_client import MasterClient
from drivetrain_elastic._client._token import write_token
from drivetrain_elastic.cli import main
from drivetrain_elastic.journal import JournalError, Record, SqliteJournal
from drivetrain_elastic.protocol import messages as pb
from drivetrain_elastic.protocol._service import METHODS, credentials


def test_next_master_goes_on_where_the_last_one_was(job, client):
    first = job()
    worker = client(master=first)
    it = iter(worker)
    for _ in range(6):
        next(it)
    worker.commit()
    first.stop()
    second = job()
    assert second.incarnation == 2
    # The worker has noticed nothing: it holds what it held.
    rest = list(it)
    worker.commit()
    assert rest == list(range(6, 20))
    with MasterClient(second.address, second.token) as raw:
        (status,) = raw.call("GetStatus", pb.StatusRequest()).datasets
    assert (status.num_samples_done, status.finished) == (20, True)


@pytest.mark.slow
def test_master_that_was_replaced_gives_way_and_decides_nothing_more(job, client):
    first = job()
    worker = client(master=first)
    it = iter(worker)
    next(it)
    second = job(address="127.0.0.1:0")
    with MasterClient(first.address, first.token, patience_s=0.0) as raw:
        request = pb.LeaseRequest(dataset="d", worker="other", num_shards=1)
        with pytest.raises(MasterError, match="claimed by master 2; this is master 1"):
            raw.call("LeaseShards", request)
    assert first.wait(60)
    assert second.incarnation == 2
    assert first.wait(60)
    # Whoever is at its address next has the worker's leases.
    assert job().incarnation == 3
    worker.give_back()


class FullDisk(SqliteJournal):
    """A journal that takes no record for a while."""

    is_full = False

    def append(self, records):
        if self.is_full:
            raise JournalError("the disk is full")
        super().append(records)


@pytest.mark.slow
def test_master_that_could_not_write_once_writes_no_more_and_ends(tmp_path):
    journal = FullDisk(tmp_path / "job.db")
    with Master(journal) as master:
        with MasterClient(master.address, master.token, patience_s=0.0) as raw:
            journal.is_full = True
            request = pb.Dataset(name="d", num_samples=9, shard_size=3, shuffle="none")
            with pytest.raises(MasterError, match="the disk is full"):
                raw.call("OpenDataset", request)
            # What it decides from now on would stand on what nobody has.
            journal.is_full = False
            request = pb.LeaseRequest(dataset="d", worker="w", num_shards=1)
            with pytest.raises(MasterError):
                raw.call("LeaseShards", request)
        assert master.wait(60)
    with contextlib.closing(SqliteJournal(tmp_path / "job.db")) as found:
        assert [record.kind for record in found.records()] == ["event"]


def test_journal_is_made_shorter_and_says_the_same(job, client, monkeypatch, tmp_path):
    first = job()
    worker = client(master=first, max_failures=0)
    it = iter(worker)
    for _ in range(6):
        next(it)
    worker.commit(5)
    worker.give_back(failed=True, reason="it crashed")
    holder = client(master=first, max_failures=0)
    next(iter(holder))
    with MasterClient(first.address, first.token) as raw:
        before = raw.call("GetStatus", pb.StatusRequest()).datasets
        events = list(raw.stream("WatchEvents", pb.EventsRequest()))
        first.stop()
        monkeypatch.setattr("drivetrain_elastic._master._master._MOST_RECORDS", 2)
        short = job()
        assert raw.call("GetStatus", pb.StatusRequest()).datasets == before
        short.stop()
        journal = SqliteJournal(tmp_path / "job.db")
        assert len(journal.records()) < 5
        journal.close()
        job()
        assert raw.call("GetStatus", pb.StatusRequest()).datasets == before
        assert list(raw.stream("WatchEvents", pb.EventsRequest()))[:1] == events
    (dead,) = before[0].dead
    assert (dead.start, dead.end, dead.reason) == (5, 8, "it crashed")


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ((), "no token"),
        (credentials("wrong"), "a wrong token"),
        (credentials(""), "a wrong token"),
        ((("authorization", "{token}"), ("drivetrain-api", "1")), "a wrong token"),
        ((("authorization", "Bearer {token}"),), "speaks version None"),
        (
            (("authorization", "Bearer {token}"), ("drivetrain-api", "9")),
            "speaks version 9 of the service, the master 1",
        ),
    ],
)
def test_no_call_is_answered_without_token_and_version(job, metadata, says):
    master = job()
    filled = [(key, value.format(token=master.token)) for key, value in metadata]
    channel = grpc.insecure_channel(master.address)
    for name, method in METHODS.items():
        with pytest.raises(grpc.RpcError) as caught:
            _call(channel, method, method.request(), filled)
        is_served = caught.value.code() != grpc.StatusCode.UNIMPLEMENTED
        assert not is_served or says in caught.value.details(), name
    channel.close()


def _call(channel, method, request, metadata):
    """Makes a call, and returns its reply or the first one."""
    call = getattr(channel, method.kind)(
        method.path,
        request_serializer=_as_bytes,
        response_deserializer=method.reply.FromString,
    )
    sent = iter([request]) if method.sends_many else request
    found = call(sent, metadata=metadata, timeout=2)
    return next(found, None) if method.gets_many else found


def _as_bytes(message):
    return message if isinstance(message, bytes) else message.SerializeToString()


@pytest.mark.slow
def test_malformed_and_oversized_messages_end_nothing(job):
    master = job()
    dice = random.Random(0)
    channel = grpc.insecure_channel(master.address)
    refused = set()
    for method in METHODS.values():
        for size in (0, 1, 7, 100, 20 << 20):
            junk = dice.randbytes(size) if size < 1000 else bytes(size)
            try:
                _call(channel, method, junk, credentials(master.token))
            except grpc.RpcError as error:
                refused.add(error.code())
    channel.close()
    assert grpc.StatusCode.RESOURCE_EXHAUSTED in refused
    assert grpc.StatusCode.UNAVAILABLE not in refused
    with socket.create_connection(master.address.split(":")) as raw:
        raw.sendall(dice.randbytes(1000))
    with MasterClient(master.address, master.token) as client:
        assert client.call("GetStatus", pb.StatusRequest()).incarnation == 1


@pytest.mark.slow
def test_master_says_that_a_port_is_in_use(job, tmp_path):
    first = job()
    with pytest.raises(ProgramError, match="is the port in use"):
        Master(tmp_path / "other.db", address=first.address)


def test_master_does_not_open_itself_to_others_without_tls(tmp_path):
    with pytest.raises(ProgramError, match=r"0\.0\.0\.0:0 can be reached"):
        Master(tmp_path / "job.db", address="0.0.0.0:0")


def test_master_refuses_a_journal_that_it_does_not_understand(tmp_path):
    for records, says in (
        ([Record("strange", 1)], "record 1: .*kind unknown here: strange"),
        ([Record("committed", ["d", 1, 2])], "record 1: KeyError: 'd'"),
    ):
        path = tmp_path / records[0].kind
        journal = SqliteJournal(path)
        journal.append(records)
        journal.close()
        with pytest.raises(JournalError, match=says):
            Master(path)


def test_call_without_a_master_ends_with_its_address():
    with (
        MasterClient("127.0.0.1:1", "token", patience_s=0.2) as client,
        pytest.raises(MasterError, match=r"127\.0\.0\.1:1 has not answered GetStatus"),
    ):
        client.call("GetStatus", pb.StatusRequest())


def test_keys_are_set_waited_for_and_counted(job):
    master = job()
    with MasterClient(master.address, master.token) as client:

        def get(*keys, wait_s=0.0):
            request = pb.KeysRequest(keys=keys, timeout_s=wait_s)
            reply = client.call("GetKeys", request, wait_s=wait_s)
            return list(reply.values) if reply.found else None

        assert get("a") is None
        later = threading.Timer(
            0.1, client.call, ("SetKey", pb.KeyValue(key="a", value=b"1"))
        )
        later.start()
        assert get("a", wait_s=10) == [b"1"]
        later.join()
        started = time.monotonic()
        assert get("a", "b", wait_s=0.2) is None
        assert time.monotonic() - started < 5
        add = pb.Addition(key="n", amount=5, call=b"once")
        assert [client.call("AddToKey", add).number for _ in range(2)] == [5, 5]
        client.call("SetKey", pb.KeyValue(key="x", value=b"text"))
        with pytest.raises(RefusedError, match="key 'x' holds no number"):
            client.call("AddToKey", pb.Addition(key="x", amount=1))
        compare = pb.Comparison(key="c", expected=b"", desired=b"mine")
        assert client.call("CompareKey", compare).value == b"mine"
        compare = pb.Comparison(key="c", expected=b"other", desired=b"theirs")
        assert client.call("CompareKey", compare).value == b"mine"
        assert client.call("CountKeys", pb.Key(key="")).number == 4
        assert client.call("DeleteKey", pb.Key(key="c")).number == 1
        assert client.call("DeleteKey", pb.Key(key="c")).number == 0


def test_events_are_told_as_they_come(job):
    master = job()
    with MasterClient(master.address, master.token) as client:
        (event,) = client.stream("WatchEvents", pb.EventsRequest())
        assert (event.number, event.kind, event.subject) == (1, "master", "1")
        follow = client.stream("WatchEvents", pb.EventsRequest(follow=True))
        assert next(follow).number == 1
        follow.close()
    master.stop()
    second = job()
    with MasterClient(second.address, second.token) as client:
        events = list(client.stream("WatchEvents", pb.EventsRequest()))
    assert [(e.number, e.subject) for e in events] == [(1, "1"), (2, "2")]


def test_commands_show_the_job(job, client, tmp_path, capsys):
    worker = client()
    next(iter(worker))
    address, token = worker._client.address, tmp_path / "token"
    token.write_text(worker._client._metadata[0][1].removeprefix("Bearer "))
    words = ["--address", address, "--token-file", str(token)]
    assert main(["status", *words]) == 1
    assert "chmod 600" in capsys.readouterr().err
    token.chmod(0o600)
    assert main(["status", *words]) == 0
    text = capsys.readouterr().out
    assert "d: 0 of 20 samples done, 1 shards leased, 0 came back" in text
    assert main(["shards", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_leased"] == "1"
    assert main(["events", *words]) == 0
    assert "master 1: it has begun to serve" in capsys.readouterr().out
    assert main(["status", "--address", address]) == 2
    assert "DRIVETRAIN_ELASTIC_TOKEN" in capsys.readouterr().err


def test_master_that_ends_says_so_to_all_who_wait_and_writes_no_traceback(
    tmp_path, capfd
):
    master = Master(tmp_path / "job.db")
    agent = FakeAgent(master, min_workers=1)
    agent.next("welcome")
    raw = MasterClient(master.address, master.token, patience_s=0.0)
    events = raw.stream("WatchEvents", pb.EventsRequest(follow=True))
    assert next(events).kind == "master"
    errors = []

    def wait(name, request):
        try:
            raw.call(name, request, wait_s=60.0)
        except MasterError as error:
            errors.append(str(error))

    spec = pb.Dataset(
        name="d", num_samples=3, shard_size=3, num_epochs=1, shuffle="none"
    )
    raw.call("OpenDataset", spec)
    lease = pb.LeaseRequest(dataset="d", worker="w", num_shards=1)
    raw.call("LeaseShards", lease)
    lease = pb.LeaseRequest(dataset="d", worker="v", num_shards=1, timeout_s=60.0)
    calls = {
        "GetKeys": pb.KeysRequest(keys=["none"], timeout_s=60.0),
        "LeaseShards": lease,
    }
    waiting = [threading.Thread(target=wait, args=call) for call in calls.items()]
    for one in waiting:
        one.start()
    assert next(events).kind == "node-joined"
    # Nothing tells that a call has come to the master and waits there.
    time.sleep(0.3)
    master.stop()
    with pytest.raises(MasterError, match="the master ends"):
        list(events)
    for one in waiting:
        one.join()
    assert len(errors) == 2
    assert all("the master ends" in one for one in errors)
    with pytest.raises(grpc.RpcError, match="the master ends"):
        agent.next("nothing")
    raw.close()
    agent.hang_up()
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.slow
def test_master_over_tls_serves_other_machines(tmp_path, capsys):
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    words += " -addext subjectAltName=DNS:localhost -keyout key.pem -out cert.pem"
    if not shutil.which("openssl"):
        pytest.skip("no openssl")
    subprocess.run(words.split(), cwd=tmp_path, check=True, capture_output=True)
    from drivetrain_elastic._client._tls import server_context

    certificate, key = (tmp_path / name for name in ("cert.pem", "key.pem"))
    tls = server_context(str(certificate), str(key))
    trusted = grpc.ssl_channel_credentials(certificate.read_bytes())
    with Master(tmp_path / "job.db", address="0.0.0.0:0", tls=tls) as master:
        port = master.address.rsplit(":", 1)[1]
        with MasterClient(f"localhost:{port}", master.token, tls=trusted) as client:
            assert client.call("GetStatus", pb.StatusRequest()).incarnation == 1
        write_token(tmp_path / "token", master.token)
        words = ["--address", f"localhost:{port}", "--token-file", tmp_path / "token"]
        words = [str(one) for one in words]
        for command in ("status", "nodes", "shards", "ledger", "events"):
            assert main([command, *words, "--tls-ca", str(certificate)]) == 0
        ends = [["leave", "nobody"], ["readmit", "nobody"], ["stop"]]
        for end in ends:
            main([*end, *words, "--tls-ca", str(certificate)])
        said = capsys.readouterr()
        assert "Socket closed" not in said.err
        assert main(["status", *words]) == 1
        assert "--tls-ca FILE, or DRIVETRAIN_ELASTIC_TLS_CA" in capsys.readouterr().err


@pytest.mark.parametrize("pair", [("cert.pem", None), (None, "key.pem")])
def test_tls_needs_both_files(pair):
    from drivetrain_elastic._client._tls import server_context

    with pytest.raises(ProgramError, match="both a certificate and its key"):
        server_context(*pair)
    with pytest.raises(ProgramError, match=r"TLS: .*No such file"):
        server_context("none.pem", "none.pem")


@pytest.mark.extra
def test_what_python_has_of_the_protocol_is_what_the_file_says(tmp_path):
    pytest.importorskip("grpc_tools")
    import importlib.util
    from pathlib import Path

    from drivetrain_elastic import protocol

    here = Path(__file__).parents[1] / "proto" / "generate.py"
    if not here.exists():
        pytest.skip("this is no checkout")
    spec = importlib.util.spec_from_file_location("generate", here)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.generate(tmp_path)
    kept = Path(protocol.__file__).parent
    for name in ("elastic.desc", "messages.pyi"):
        assert (tmp_path / name).read_bytes() == (kept / name).read_bytes(), name
