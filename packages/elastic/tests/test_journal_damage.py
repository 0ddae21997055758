"""A journal that is not what was written there ends its master with one line, which says where."""

import json
import os
import sqlite3

import pytest

from drivetrain_core import DrivetrainError
from drivetrain_elastic import Master
from drivetrain_elastic.journal import JournalError, Record, SqliteJournal
from drivetrain_elastic.journal._record import read_each

WORLD = {"epoch": 1, "members": [["a/0", "a", 0]], "reason": "", "broken_epoch": 0}
TERMS = {
    "config": {
        "min_workers": 1,
        "max_workers": 1,
        "unit": 1,
        "last_call_s": 1.0,
        "settle_s": 0.1,
    },
    "patience_s": 1.0,
}
DATASET = {"name": "d", "num_samples": 10}
DEEP = "[" * 200_000
BROKEN = {
    "no JSON": ("world", "{"),
    "nothing": ("world", ""),
    "deep": ("world", DEEP),
    "deep and whole": ("event", DEEP + "]" * 200_000),
    "digits": ("ended", "9" * 5000),
    "unknown kind": ("strange", "1"),
    "world is a list": ("world", []),
    "world is null": ("world", None),
    "world of nothing": ("world", {}),
    "members are numbers": ("world", WORLD | {"members": [1]}),
    "members are text": ("world", WORLD | {"members": "abc"}),
    "names are numbers": ("world", WORLD | {"members": [[1, 2, 3]]}),
    "epoch is text": ("world", WORLD | {"epoch": "one"}),
    "epoch is huge": ("world", WORLD | {"epoch": 10**30}),
    "epoch is negative": ("world", WORLD | {"epoch": -1}),
    "world has more": ("world", WORLD | {"more": 1}),
    "ended is text": ("ended", '"text"'),
    "ended without a reason": ("ended", {"exit_code": 0}),
    "exit code is text": ("ended", {"exit_code": "one", "reason": ""}),
    "exit code is huge": ("ended", {"exit_code": 10**30, "reason": ""}),
    "terms without numbers": ("terms", {"config": {}, "patience_s": 1}),
    "terms of no workers": (
        "terms",
        TERMS | {"config": TERMS["config"] | {"min_workers": 0}},
    ),
    "terms are text": ("terms", '"text"'),
    "finished is a list": ("finished", ["a"]),
    "key alone": ("key", ["kept/a"]),
    "key is a number": ("key", ["kept/a", 5]),
    "event is short": ("event", [1, 2.0, "kind"]),
    "event has a text for its number": ("event", ["1", 2.0, "kind", "a", "b"]),
    "event is huge": ("event", [10**30, 2.0, "kind", "a", "b"]),
    "event of numbers": ("event", [1, 2.0, 3, 4, 5]),
    "dataset of nothing": ("dataset", {}),
    "dataset of another kind": ("dataset", DATASET | {"shuffle": 7, "seed": "x"}),
    "state of nothing": ("dataset-state", {}),
    "lease of nobody": ("leased", ["d", [[1, "w"]]]),
    "commit of no dataset": ("committed", ["other", 1, 2]),
    "incident of no class": ("incident", [0.0, "strange", "a", "b", "c", "d", 1]),
    "excluded is a number": ("excluded", 5),
    "ledger is text": ("time", '"text"'),
}


def journal_with(path, kind, body):
    """Writes a journal of one good record and one of a kind."""
    journal = SqliteJournal(path)
    journal.append([Record("event", [1, 1.0, "begun", "a", "b"])])
    journal.close()
    with sqlite3.connect(path) as database:
        text = (
            body if isinstance(body, str) and kind != "finished" else json.dumps(body)
        )
        rows = [(kind, text)]
        database.executemany("INSERT INTO records (kind, body) VALUES (?, ?)", rows)
    database.close()


@pytest.mark.parametrize("case", BROKEN)
def test_record_of_another_shape_is_told_in_one_line(tmp_path, case):
    path = tmp_path / "job.db"
    journal_with(path, *BROKEN[case])
    with pytest.raises(JournalError) as caught:
        Master(path)
    said = str(caught.value)
    assert f"the journal {path} is damaged: " in said
    assert "record 2: " in said or "its records do not fit together" in said
    assert "\n" not in said
    assert len(said) < len(str(path)) + 500


def a_folder(path):
    path.mkdir()


def below_a_file(path):
    path.parent.rmdir()
    path.parent.touch()


def of_another_program(path):
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE records (number, kind, body)")
    database.close()


def cut_off(path):
    journal = SqliteJournal(path)
    journal.append([Record("event", [1, 1.0, "begun", "a", "b" * 20_000])])
    journal.close()
    os.truncate(path, 9_000)


def not_text(path):
    journal = SqliteJournal(path)
    journal.append([Record("event", [1, 1.0, "begun", "a", "b"])])
    journal.close()
    with sqlite3.connect(path) as database:
        database.execute("UPDATE records SET body = CAST(x'ff00fe' AS TEXT)")
    database.close()


def without_claims(path):
    SqliteJournal(path).close()
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM claims")
    database.close()


def without_records(path):
    SqliteJournal(path).close()
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE records")
    database.close()


def of_other_columns(path):
    SqliteJournal(path).close()
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE records RENAME COLUMN body TO text")
    database.close()


def claimed_too_often(path):
    SqliteJournal(path).close()
    with sqlite3.connect(path) as database:
        database.execute("UPDATE claims SET incarnation = 9223372036854775807")
    database.close()


def of_zeros(path):
    path.write_bytes(bytes(10_000))


def a_device(path):
    path.symlink_to("/dev/zero")


FILES = [
    a_folder,
    below_a_file,
    of_another_program,
    cut_off,
    not_text,
    without_claims,
    without_records,
    of_other_columns,
    claimed_too_often,
    of_zeros,
    a_device,
]


@pytest.mark.parametrize("make", FILES, ids=lambda make: make.__name__)
def test_file_that_is_no_journal_is_told_in_one_line(tmp_path, make):
    path = tmp_path / "folder" / "job.db"
    path.parent.mkdir()
    make(path)
    with pytest.raises(JournalError) as caught:
        Master(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another user")
def test_file_that_is_somebody_elses_is_told(tmp_path):
    path = tmp_path / "job.db"
    SqliteJournal(path).close()
    os.seteuid(65534)
    try:
        with pytest.raises(JournalError) as caught:
            SqliteJournal(path)
    finally:
        os.seteuid(0)
    assert str(path) in str(caught.value)
    assert "denied" in str(caught.value)


def test_only_what_can_be_read_comes_back():
    assert read_each("j", json.loads, ["1", "[2]"]) == [1, [2]]
    with pytest.raises(DrivetrainError, match="the journal j is damaged: record 2: "):
        read_each("j", json.loads, ["1", DEEP])


def test_command_ends_with_one_line(tmp_path, capsys):
    from drivetrain_elastic.cli import main

    path = tmp_path / "job.db"
    journal_with(path, "world", DEEP)
    command = ["master", "--journal", str(path)]
    assert main([*command, "--token-file", str(tmp_path / "token")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("drivetrain-elastic: the journal ")
    assert said.count("\n") == 1
