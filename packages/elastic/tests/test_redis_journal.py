"""A journal in Redis keeps its contract, on networks and servers that fail."""

import sys
import threading
from contextlib import closing

import pytest
from journal_contract import check_journal

from drivetrain_core import MissingLibraryError, ProgramError
from drivetrain_elastic.journal import JournalError, Record, RedisJournal, RedisLease

RECORDS = "drivetrain-elastic:{j}:records"
JOURNAL = "drivetrain-elastic:{j}:journal"


def some(num, start=0):
    return [Record("number", n) for n in range(start, num)]


@pytest.mark.extra
def test_redis_journal_keeps_the_contract(redis_server):
    server = redis_server()
    check_journal(lambda: RedisJournal(server.url()))
    # Another job's is another one.
    check_journal(lambda: RedisJournal(server.url(), job="other"))


@pytest.mark.slow
@pytest.mark.extra
def test_redis_journal_keeps_the_contract_over_a_socket_of_the_machine(
    redis_server, tmp_path
):
    redis_server(unixsocket=tmp_path / "s")
    check_journal(lambda: RedisJournal(f"unix://{tmp_path}/s?job=j&db=2"))


@pytest.mark.extra
def test_redis_journal_says_who_has_claimed_it(redis_server):
    url = redis_server().url()
    with closing(RedisJournal(url)) as first, closing(RedisJournal(url)):
        for refused in (lambda: first.append(some(1)), first.records):
            with pytest.raises(JournalError, match="by master 2; this is master 1"):
                refused()


@pytest.mark.extra
@pytest.mark.parametrize("what", ["request", "reply"])
def test_append_whose_connection_was_cut_is_done_once(redis_server, proxy, what):
    server = redis_server()
    between = proxy(server.port)
    with closing(RedisJournal(server.url(port=between.port))) as journal:
        for n in range(20):
            between.cut = what if n % 3 == 0 else ""
            journal.append(some(n + 1, start=n))
        assert between.num_cuts == 7
        assert journal.records() == some(20)


@pytest.mark.extra
def test_server_that_is_killed_and_started_again_has_lost_nothing(redis_server, caplog):
    server = redis_server()
    num, milestones = 400, {n: threading.Event() for n in (50, 150, 250)}
    journal = RedisJournal(server.url(), patience_s=60)

    def write():
        for n in range(num):
            journal.append(some(n + 1, start=n))
            if n in milestones:
                milestones[n].set()

    writer = threading.Thread(target=write)
    writer.start()
    for milestone in milestones.values():
        assert milestone.wait(60)
        server.kill()
        server.start()
    writer.join(60)
    assert journal.records() == some(num)
    journal.close()
    assert "it is tried again" in caplog.text
    with closing(RedisJournal(server.url())) as found:
        assert found.records() == some(num)


@pytest.mark.extra
def test_journal_takes_no_more_when_the_end_of_a_write_is_not_known(redis_server):
    server = redis_server()
    with closing(RedisJournal(server.url(), patience_s=0.2)) as journal:
        journal.append(some(1))
        server.kill()
        with pytest.raises(JournalError, match="it must be opened again"):
            journal.append(some(2, start=1))
        server.start()
        with pytest.raises(JournalError, match="it must be opened again"):
            journal.append(some(2, start=1))
    with closing(RedisJournal(server.url())) as again:
        assert again.records() == some(1)
        again.append(some(2, start=1))


@pytest.mark.extra
def test_journal_notices_that_the_server_has_lost_records(redis_server):
    server = redis_server()
    with closing(RedisJournal(server.url())) as journal, server.client() as raw:
        journal.append(some(3))
        raw.rpop(RECORDS)
        with pytest.raises(JournalError, match="has 2 records, and this master left 3"):
            journal.append(some(4, start=3))
        raw.flushall()
        with pytest.raises(JournalError, match="the server has lost its data"):
            journal.append(some(4, start=3))
        assert raw.keys() == []


@pytest.mark.extra
def test_journal_that_is_damaged_or_of_another_version_is_refused(redis_server):
    server = redis_server()
    with closing(RedisJournal(server.url())) as journal, server.client() as raw:
        raw.rpush(RECORDS, "[1,")
        with pytest.raises(JournalError, match="is damaged"):
            journal.records()
        raw.hset(JOURNAL, "version", "9")
        with pytest.raises(JournalError, match="has version 9, this version"):
            RedisJournal(server.url())
        raw.set(JOURNAL, "text")
        with pytest.raises(JournalError, match="WRONGTYPE"):
            RedisJournal(server.url())


@pytest.mark.extra
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"appendonly": "no"}, "loses the journal when it ends"),
        ({"rename_command": "CONFIG ''"}, "could not be checked"),
        (
            {"maxmemory": "50mb", "maxmemory_policy": "allkeys-lru"},
            "may throw the journal away when it is short of memory",
        ),
        ({"maxmemory_policy": "allkeys-lru"}, None),
    ],
)
def test_journal_warns_of_a_server_that_forgets(redis_server, caplog, settings, says):
    with closing(RedisJournal(redis_server(**settings).url())) as journal:
        journal.append(some(1))
    assert says in caplog.text if says else caplog.text == ""


@pytest.mark.extra
def test_password_is_used_and_never_shown(redis_server):
    server = redis_server(requirepass="right@/")
    here = f"127.0.0.1:{server.port}/0?job=j"
    with closing(RedisJournal(f"redis://:right%40%2F@{here}")) as journal:
        journal.append(some(1))
    with pytest.raises(JournalError, match=r"redis://:\*\*\*@127") as caught:
        RedisJournal(f"redis://:wrong@{here}")
    assert "wrong" not in str(caught.value)
    with pytest.raises(JournalError, match="refuses this user"):
        RedisJournal(f"redis://{here}")


@pytest.mark.slow
@pytest.mark.extra
def test_append_waits_for_replicas_if_asked_to(redis_server):
    server = redis_server(repl_diskless_sync_delay=0)
    url = server.url("num_replicas=1")
    with pytest.raises(JournalError, match="0 replicas have what was written, of 1"):
        RedisJournal(url, patience_s=0.3)
    replica = redis_server(replicaof=f"127.0.0.1 {server.port}")
    with closing(RedisJournal(url, patience_s=60)) as journal:
        for n in range(5):
            journal.append(some(n + 1, start=n))
        with replica.client() as raw:
            assert raw.llen(RECORDS) == 5


@pytest.mark.extra
def test_journal_is_not_claimed_without_its_lease(redis_server):
    url = redis_server().url("lease_s=2")
    lease, other = RedisLease(url), RedisLease(url)
    with pytest.raises(JournalError, match=r"lease of .* has ended before the journal"):
        RedisJournal(url, lease=lease)
    assert lease.acquire(0.0)
    journal = RedisJournal(url, lease=lease)
    assert journal.incarnation == 1
    lease.release()
    # It is still this one's while nobody else has come.
    assert lease.renew()
    lease.release()
    assert other.acquire(0.0)
    assert not lease.renew()
    other.release()
    with closing(RedisJournal(url)):
        assert not lease.renew()
    journal.close()
    lease.release()


@pytest.mark.extra
def test_server_that_is_away_is_named(redis_server):
    server = redis_server()
    server.kill()
    for one in (RedisJournal, lambda *a, **o: RedisLease(*a, **o).acquire()):
        with pytest.raises(JournalError, match=r"redis://127.*does not answer"):
            one(server.url(), patience_s=0.1)
    server.start()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://h/0", "job must be of letters, .* example .job=train, got ''"),
        ("redis://h/0?job=a{b}", "got 'a{b}'"),
        ("redis://:pw@h/0?job=a&lease_s=x", r"\*\*\*@h/0: lease_s must be a number"),
        ("redis://h/0?job=a&lease_s=0", "lease_s must be 0.1 to 3600 seconds"),
        ("redis://h/0?job=a&patience_s=nan", "patience_s must be 0 seconds or more"),
        ("redis://h/0?job=a&num_replicas=-1", "num_replicas must be 0 to 100"),
        ("redis://h/train", r"must end with the number of a database, and \?job"),
        ("http://h?job=a", "http://h is no URL of redis://"),
    ],
)
def test_url_that_is_not_valid_is_refused(url, says):
    with pytest.raises(ProgramError, match=says):
        RedisJournal(url)


@pytest.mark.extra
@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://h/0?job=a&strange=1", "redis-py does not take the options of redis"),
        ("redis://:pw@h:port/0?job=a", r"redis-py does not take the URL redis://:\*"),
    ],
)
def test_url_that_redis_py_does_not_take_is_refused(url, says):
    pytest.importorskip("redis", reason="redis-py is not installed")
    with pytest.raises(ProgramError, match=says):
        RedisJournal(url)


def test_missing_library_is_told_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    line = r'pip install "drivetrain-elastic\[redis\]"'
    with pytest.raises(MissingLibraryError, match=line):
        RedisJournal("redis://h/0?job=a")
