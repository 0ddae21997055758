"""Journals keep what was appended, through crashes, and serve one master at a time."""

import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys

import pytest
from journal_contract import check_journal

from drivetrain_elastic.journal import JournalError, Record, SqliteJournal


@pytest.fixture
def opened(tmp_path):
    """Opens the journal of the test, again and again."""
    journals = []

    def make():
        journals.append(SqliteJournal(tmp_path / "new" / "job.db"))
        return journals[-1]

    yield make
    for journal in journals:
        journal.close()


def some(num, start=0):
    return [Record("number", {"n": n, "text": "ü€\n"}) for n in range(start, num)]


@pytest.mark.slow
def test_sqlite_journal_keeps_the_contract(opened):
    check_journal(opened)


def test_journal_serves_only_who_claimed_it_last(opened):
    first = opened()
    first.append(some(1))
    second = opened()
    assert (first.incarnation, second.incarnation) == (1, 2)
    with pytest.raises(JournalError, match=r"claimed by master 2; this is master 1"):
        first.append(some(2))
    with pytest.raises(JournalError, match="claimed"):
        first.replace([])
    assert second.records() == some(1)
    second.append(some(2, start=1))
    assert second.records() == some(2)


def test_journal_is_its_owners_alone(opened, tmp_path):
    opened()
    mode = (tmp_path / "new" / "job.db").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_journal_refuses_a_file_of_something_else(tmp_path):
    path = tmp_path / "other.db"
    path.write_bytes(b"not a database at all, but long enough to look like one" * 20)
    with pytest.raises(JournalError, match=r"other\.db: file is not a database"):
        SqliteJournal(path)
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE mine (x)")
    other.close()
    with pytest.raises(JournalError, match="database of something else"):
        SqliteJournal(path)


def test_journal_refuses_another_version(opened, tmp_path):
    opened().close()
    with sqlite3.connect(tmp_path / "new" / "job.db") as other:
        other.execute("PRAGMA user_version = 9")
    other.close()
    with pytest.raises(JournalError, match="has version 9, this version"):
        opened()


def test_journal_says_that_it_cannot_be_written(opened, tmp_path):
    journal = opened()
    blocker = sqlite3.connect(tmp_path / "new" / "job.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    journal._database.execute("PRAGMA busy_timeout = 10")
    with pytest.raises(JournalError, match="locked"):
        journal.append(some(1))
    blocker.execute("ROLLBACK")
    blocker.close()
    journal.append(some(1))
    assert journal.records() == some(1)


WRITER = """
import sys
from drivetrain_elastic.journal import Record, SqliteJournal
journal = SqliteJournal(sys.argv[1])
n = len(journal.records())
while True:
    size = n % 7 + 1
    journal.append([Record("number", n + i) for i in range(size)])
    n += size
    print(n, flush=True)
"""


def test_journal_of_a_writer_that_was_killed_has_all_that_it_was_told(tmp_path):
    path, dice = tmp_path / "job.db", random.Random(0)
    for _ in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        told = 0
        for _ in range(dice.randrange(1, 40)):
            told = int(writer.stdout.readline())
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        journal = SqliteJournal(path)
        numbers = [record.body for record in journal.records()]
        journal.close()
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= told


@pytest.mark.parametrize("seed", range(20))
def test_journal_whose_tail_is_torn_has_what_came_before(tmp_path, seed):
    dice = random.Random(seed)
    whole = SqliteJournal(tmp_path / "job.db")
    for n in range(50):
        whole.append([Record("number", n)])
    for name in ("job.db", "job.db-wal"):
        shutil.copy(tmp_path / name, tmp_path / f"torn-{name}")
    whole.close()
    for name in ("job.db", "job.db-wal"):
        (tmp_path / f"torn-{name}").rename(tmp_path / f"torn.{name[4:]}")
    log = tmp_path / "torn.db-wal"
    size = log.stat().st_size
    cut = dice.randrange(size // 2, size)
    with log.open("r+b") as file:
        file.truncate(cut)
        file.seek(cut - min(cut, dice.randrange(1, 100)))
        file.write(dice.randbytes(dice.randrange(1, 50)))
    torn = SqliteJournal(tmp_path / "torn.db")
    numbers = [record.body for record in torn.records()]
    assert numbers == list(range(len(numbers)))
    assert 0 < len(numbers) < 50
    torn.append([Record("number", len(numbers))])
    torn.close()
