"""Of several masters one serves; the next takes over, and nothing is lost."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from drivetrain_core import ProgramError
from drivetrain_elastic import Master, MasterError, ShardClient
from drivetrain_elastic._client._master_client import MasterClient
from drivetrain_elastic._client._token import make_token, write_token
from drivetrain_elastic.cli import main
from drivetrain_elastic.protocol import messages as pb
from drivetrain_testing import check_wrong_use, exit_status

ending = partial(exit_status, main)
wrong_use = partial(check_wrong_use, "drivetrain-elastic")

# Only so that a test which fails ends.
LONG_S = 60


class Candidate:
    """A master in a process of its own, at an address that is known before it serves."""

    def __init__(self, url, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self._errors = folder / f"errors-{self.address}"
        self._token = folder / "token"
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "drivetrain_elastic.cli", "master"),
                    *("--address", self.address, "--token-file", self._token),
                ],
                env={**os.environ, "DRIVETRAIN_ELASTIC_JOURNAL": url},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    @property
    def token(self):
        return self._token.read_text()

    def says(self):
        """Returns its next line."""
        return self.process.stdout.readline().strip()

    def errors(self):
        return self._errors.read_text()

    def send(self, number):
        os.kill(self.process.pid, number)

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def pair(redis_server, tmp_path):
    """Starts a master, and another one that stands ready."""
    candidates = []

    def start(lease_s):
        url = redis_server().url(f"lease_s={lease_s}")
        candidates.append(Candidate(url, tmp_path))
        assert candidates[0].says() == f"master 1 at {candidates[0].address}"
        candidates.append(Candidate(url, tmp_path))
        ready = f"ready; the master serves at {candidates[0].address}"
        assert candidates[1].says() == ready
        return candidates

    yield start
    for candidate in candidates:
        candidate.end()


def both(pair):
    return ",".join(candidate.address for candidate in pair)


@pytest.mark.slow
@pytest.mark.extra
def test_candidate_takes_over_from_a_master_that_was_killed(pair):
    lease_s = 1.0
    first, second = candidates = pair(lease_s)
    read = []
    options = {"address": both(candidates), "token": first.token}
    with ShardClient("d", 300, shard_size=3, shuffle="none", **options) as client:
        for index in client:
            client.commit()
            read.append(index)
            if len(read) == 100:
                first.send(signal.SIGKILL)
                killed_s = time.monotonic()
    assert read == list(range(300))
    assert second.says() == f"master 2 at {second.address}"
    assert time.monotonic() - killed_s < lease_s + LONG_S
    with MasterClient(second.address, first.token) as raw:
        events = list(raw.stream("WatchEvents", pb.EventsRequest()))
        (status,) = raw.call("GetStatus", pb.StatusRequest()).datasets
    assert [(e.number, e.subject) for e in events] == [(1, "1"), (2, "2")]
    assert (status.num_samples_done, status.finished) == (300, True)


@pytest.mark.slow
@pytest.mark.extra
def test_master_that_was_paused_writes_nothing_and_gives_way(pair):
    first, second = candidates = pair(1.0)
    spec = pb.Dataset(name="d", num_samples=9, shard_size=3, shuffle="none")
    lease = pb.LeaseRequest(dataset="d", worker="w", num_shards=1)
    commit = pb.CommitRequest(dataset="d", worker="w")
    with MasterClient(both(candidates), first.token) as raw:
        raw.call("OpenDataset", spec)
        (shard,) = raw.call("LeaseShards", lease).shards
        first.send(signal.SIGSTOP)
        assert second.says() == f"master 2 at {second.address}"
        commit.commits.add(fence=shard.fence, upto=shard.end)
        assert list(raw.call("CommitShards", commit, timeout_s=1.0).refusals) == [""]
        # Asked while it sleeps, the first one decides when it wakes, and must not tell.
        with MasterClient(first.address, first.token, patience_s=0.0) as late:
            answers = []

            def ask():
                other = pb.LeaseRequest(dataset="d", worker="late", num_shards=1)
                try:
                    answers.append(late.call("LeaseShards", other, timeout_s=LONG_S))
                except MasterError as error:
                    answers.append(error)

            asking = threading.Thread(target=ask)
            asking.start()
            first.send(signal.SIGCONT)
            assert first.process.wait(LONG_S) == 1
            asking.join(LONG_S)
        assert isinstance(answers[0], MasterError)
        assert "this master gives way: " in first.errors()
        assert "the master has given way to another one" in first.errors()
        status = raw.call("GetStatus", pb.StatusRequest())
        (dataset,) = status.datasets
        found = (dataset.num_samples_done, dataset.num_leased, status.incarnation)
        assert found == (3, 0, 2)


@pytest.mark.slow
@pytest.mark.extra
def test_master_that_stops_hands_over_at_once(pair):
    # Nobody waits for the end of this lease.
    first, second = pair(3600)
    first.send(signal.SIGTERM)
    assert second.says() == f"master 2 at {second.address}"
    assert first.process.wait(LONG_S) == 0
    second.send(signal.SIGTERM)
    assert second.process.wait(LONG_S) == 0
    assert (first.errors(), second.errors()) == ("", "")


@pytest.mark.slow
@pytest.mark.extra
def test_candidate_that_stands_ready_ends_with_a_signal(pair):
    _, second = pair(3600)
    second.send(signal.SIGTERM)
    assert second.process.wait(LONG_S) == 0


@pytest.mark.slow
@pytest.mark.extra
def test_masters_of_a_url_wait_for_each_other(redis_server):
    url = redis_server().url("lease_s=3600")
    with ThreadPoolExecutor(1) as pool:
        first = Master(url)
        second = pool.submit(Master, url, token=first.token)
        first.stop()
        with second.result(LONG_S) as master:
            assert master.incarnation == 2
            with pytest.raises(ProgramError, match="is the port in use"):
                Master(redis_server().url(), address=master.address)


@pytest.mark.slow
@pytest.mark.extra
def test_master_that_cannot_serve_lets_the_next_one_in(redis_server):
    url = redis_server().url("lease_s=3600")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ProgramError, match="is the port in use"):
            Master(url, address=address)
    with Master(url) as master:
        assert master.incarnation == 2


@pytest.mark.extra
def test_master_outlives_a_server_that_is_started_again(redis_server):
    server = redis_server()
    url = server.url("lease_s=60", "patience_s=60")
    with Master(url) as master, MasterClient(master.address, master.token) as raw:
        spec = pb.Dataset(name="d", num_samples=9, shard_size=3, shuffle="none")
        raw.call("OpenDataset", spec)
        server.kill()
        server.start()
        lease = pb.LeaseRequest(dataset="d", worker="w", num_shards=2)
        assert len(raw.call("LeaseShards", lease).shards) == 2
    with Master(url) as master, MasterClient(master.address, master.token) as raw:
        (dataset,) = raw.call("GetStatus", pb.StatusRequest()).datasets
        assert (master.incarnation, dataset.num_leased) == (2, 2)


@pytest.mark.extra
def test_master_gives_way_when_its_lease_cannot_be_renewed(redis_server, caplog):
    server = redis_server()
    master = Master(server.url("lease_s=0.5", "patience_s=0.2"))
    server.kill()
    assert master.wait(LONG_S)
    master.stop()
    assert "gives way: the lease of 0.5 s was last renewed" in caplog.text
    assert "ends by itself" in caplog.text


# Nobody listens there, and nobody is asked: all is found out before.
NOWHERE = "redis://127.0.0.1:1/0?job=x&patience_s=1"


@pytest.mark.parametrize("journal", [NOWHERE, "job.db"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--address", "203.0.113.7:29443"],
            "--tls-certificate FILE and --tls-key FILE",
        ),
        (["--address", "127.0.0.1"], "a port to 65535, got '127.0.0.1'"),
        (["--address", "127.0.0.1:x"], "a port to 65535, got '127.0.0.1:x'"),
        (["--address", "127.0.0.1:65536"], "a port to 65535, got '127.0.0.1:65536'"),
        (["--metrics", "127.0.0.1:99999"], "a port to 65535, got '127.0.0.1:99999'"),
        (["--patience-s", "nan"], "--patience-s: must be a number, got 'nan'"),
        (["--tls-key", "key"], "--tls-certificate FILE and --tls-key FILE go together"),
    ],
)
def test_master_that_is_called_wrongly_does_not_stand_ready(
    capsys, tmp_path, monkeypatch, journal, options, words
):
    monkeypatch.chdir(tmp_path)
    status = ending(["master", "--token-file", "token", "--journal", journal, *options])
    wrong_use(status, *capsys.readouterr(), words)


@pytest.mark.parametrize("journal", [NOWHERE, "job.db"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--metrics", "203.0.113.7:9"], "must be an address of this machine"),
        (["--tls-certificate", "token", "--tls-key", "token"], "a certificate in PEM"),
    ],
)
def test_master_that_could_not_serve_does_not_stand_ready(
    capsys, tmp_path, monkeypatch, journal, options, words
):
    if "--metrics" in options:
        pytest.importorskip("prometheus_client")
    monkeypatch.chdir(tmp_path)
    write_token("token", make_token())
    command = ["master", "--token-file", "token", "--journal", journal]
    assert main([*command, *options]) == 1
    out, err = capsys.readouterr()
    assert (out, words in err, len(err.splitlines())) == ("", True, 1), err


def test_certificate_does_not_make_an_address_this_machines(capsys, tmp_path):
    if not shutil.which("openssl"):
        pytest.skip("no openssl")
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes"),
            *("-keyout", key, "-out", cert, "-subj", "/CN=x"),
        ],
        check=True,
        capture_output=True,
    )
    command = ["master", "--token-file", str(tmp_path / "token"), "--journal", NOWHERE]
    command += ["--address", "203.0.113.7:29443", "--tls-certificate", cert]
    assert main([*command, "--tls-key", key]) == 1
    assert "must be an address of this machine" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.extra
def test_server_that_is_away_is_said_once_and_nobody_is_ready(capsys, caplog, tmp_path):
    pytest.importorskip("redis", reason="redis-py is not installed")
    command = ["master", "--token-file", str(tmp_path / "token"), "--journal", NOWHERE]
    assert main(command) == 1
    said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert len(said) == 1
    assert "redis://127.0.0.1:1/0 does not answer: " in said[0]
    assert "; it is tried again" in said[0]
    assert "ready" not in capsys.readouterr().out


@pytest.mark.extra
def test_candidate_with_another_token_does_not_stand_ready(
    redis_server, tmp_path, capsys
):
    url = redis_server().url("lease_s=3600")
    other = tmp_path / "other"
    write_token(other, make_token())
    with Master(url) as master:
        command = ["master", "--token-file", str(other), "--journal", url]
        assert main(command) == 1
        out, err = capsys.readouterr()
        assert (out, f"at {master.address} has another token" in err) == ("", True)
        with pytest.raises(ProgramError, match="all masters of a job need the same"):
            Master(url)


@pytest.mark.extra
def test_candidate_whose_port_is_taken_does_not_stand_ready(
    redis_server, tmp_path, capsys
):
    url = redis_server().url("lease_s=3600")
    with socket.create_server(("127.0.0.1", 0)) as taken, Master(url) as master:
        write_token(tmp_path / "token", master.token)
        command = ["master", "--token-file", str(tmp_path / "token"), "--journal", url]
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main([*command, "--address", address]) == 1
    out, err = capsys.readouterr()
    assert (out, "something else listens there" in err) == ("", True)


def test_journal_in_a_folder_that_is_missing_begins_no_job(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    words = ["master", "--token-file", "token", "--journal", "jbos/job.db"]
    assert main(words) == 1
    said = f"the journal jbos/job.db has no place: there is no folder {tmp_path}/jbos"
    assert capsys.readouterr() == ("", f"drivetrain-elastic: {said}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("token", "words"),
    [
        (
            b"\xff\xfe" * 20,
            "is no plain text: it must be of printable ASCII characters",
        ),
        ("geheim-ä".encode() * 5, "is no plain text"),
        (b"0123456789\n0123456789", "is no plain text"),
        (b"short", "must hold a token of at least 16 characters"),
    ],
)
def test_token_that_is_none_is_said_in_one_line(capsys, tmp_path, token, words):
    place = tmp_path / "token"
    place.touch(mode=0o600)
    place.write_bytes(token)
    for command in (["master", "--journal", str(tmp_path / "job.db")], ["status"]):
        where = ["--address", "127.0.0.1:0", "--token-file", str(place)]
        assert main([*command, *where]) == 1
        out, err = capsys.readouterr()
        assert (out, words in err, len(err.splitlines())) == ("", True, 1), err
        assert str(place) in err


def test_token_of_the_environment_that_is_none_is_wrong_use(capsys, monkeypatch):
    monkeypatch.setenv("DRIVETRAIN_ELASTIC_TOKEN", "geheim-ä" * 3)
    status = ending(["status", "--address", "127.0.0.1:1"])
    says = "DRIVETRAIN_ELASTIC_TOKEN is no plain text"
    wrong_use(status, *capsys.readouterr(), says)


def test_master_needs_a_journal_of_a_known_kind(tmp_path, capsys):
    words = ["master", "--token-file", str(tmp_path / "token")]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert main(words) == 2
    # Else whatever this process starts later would not hear of its end.
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert "--journal FILE, or DRIVETRAIN_ELASTIC_JOURNAL" in capsys.readouterr().err
    with pytest.raises(ProgramError, match=r"of redis://, .* got one of postgres://"):
        Master("postgres://host/job")
