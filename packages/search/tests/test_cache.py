"""The trials of earlier searches: what is reused, and what a bad disk can do to it."""

from __future__ import annotations

import dataclasses
import json
import logging
import multiprocessing
import os
import signal
import stat
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_core import Choice, Code, Measurement
from drivetrain_search.cache import cache as module
from drivetrain_search.cache.cache import TrialCache, would_repeat
from drivetrain_search.process.trial import explain_exit
from drivetrain_search.report.record import TrialRecord

KEY = "0123456789abcdef" * 4
PLAN = (Choice("compile", {"scope": "block", "mode": None}),)
OTHER = (Choice("precision", {"dtype": "bf16_autocast"}),)


def record(choices=PLAN, step_s=0.5, **fields):
    measured = Measurement(
        step_times_s=(step_s, step_s * 2), samples_per_step=8, setup_s=3.0
    )
    fields = {"measurement": measured, "guard": {"loss_rel": 1e-7}} | fields
    return TrialRecord(name="t02", choices=choices, seconds=9.123456, **fields)


def failed(code, because=""):
    return record(measurement=None, guard=None, code=code, because=because)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def cache(folder):
    return TrialCache.open(folder, KEY)


def opened(folder):
    return TrialCache.open(folder, KEY)


def times(found):
    return found and found.measurement.step_times_s


# What comes back


def test_record_comes_back_as_it_was(cache, folder):
    whole = record(log="a\x00\udc80", rung=2, started_s=1.25)
    cache.append(whole, 1.0)
    found = opened(folder).lookup(PLAN, 1.0)
    assert found == dataclasses.replace(whole, cached=True)


def test_nothing_is_made_before_the_first_trial(cache, folder):
    assert cache.lookup(PLAN, 1.0) is None
    assert not folder.exists()


def test_folder_and_file_are_private(cache, folder):
    cache.append(record(), 1.0)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(cache.path.stat().st_mode) == 0o600
    assert cache.path == folder / f"{KEY}.jsonl"


@pytest.mark.parametrize("factor", [0.5, 0.75, 1.0, 2.0])
def test_times_are_scaled_by_the_baselines(cache, factor):
    cache.append(record(), 0.25)
    found = cache.lookup(PLAN, 0.25 * factor)
    assert times(found) == (0.5 * factor, factor)
    assert found.measurement.setup_s == 3.0 * factor
    assert found.seconds == pytest.approx(9.123456 * factor)


@pytest.mark.parametrize("factor", [0.01, 0.499, 2.01, 1e6])
def test_times_of_another_machine_are_not_scaled(cache, factor):
    cache.append(record(), 0.25)
    assert cache.lookup(PLAN, 0.25 * factor) is None
    assert cache.lookup(PLAN, 0.25) is not None


def test_latest_wins_whatever_its_session(folder):
    first, second = opened(folder), opened(folder)
    first.append(record(step_s=0.5), 1.0)
    second.append(record(step_s=0.25), 1.0)
    assert times(first.lookup(PLAN, 1.0))[0] == 0.25
    first.append(record(step_s=0.125), 0.01)
    # The latest does not compare, and an older one is not taken in its place.
    assert opened(folder).lookup(PLAN, 1.0) is None


def test_plans_that_only_look_alike_are_told_apart(cache):
    cache.append(record((Choice("a", {"on": True, "b": 1}),)), 1.0)
    assert cache.lookup((Choice("a", {"on": 1, "b": 1}),), 1.0) is None
    assert cache.lookup((Choice("a", {"b": 1, "on": True}),), 1.0) is not None
    assert cache.lookup((), 1.0) is None


def test_what_came_from_the_cache_is_not_added_again(cache):
    cache.append(record(), 1.0)
    before = cache.path.read_bytes()
    cache.append(cache.lookup(PLAN, 1.5), 1.5)
    assert cache.path.read_bytes() == before


@pytest.mark.parametrize("step_s", [0, -1.0, float("nan"), float("inf"), None, True])
def test_baseline_without_a_time_is_an_error(cache, step_s):
    with pytest.raises(ValueError, match="positive number of seconds"):
        cache.append(record(), step_s)
    with pytest.raises(ValueError, match="positive number of seconds"):
        cache.lookup(PLAN, step_s)


@pytest.mark.parametrize("key", ["", "../" + KEY[3:], KEY[1:], KEY.upper(), f"{KEY}\n"])
def test_key_that_is_none_is_an_error(folder, key):
    with pytest.raises(ValueError, match="64 hexadecimal"):
        TrialCache.open(folder, key)


# Failures


@pytest.mark.parametrize("kind", ["ImportError", "InductorError: ImportError"])
def test_library_that_a_compiler_left_half_written_may_be_whole_next_time(
    tmp_path, monkeypatch, kind
):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    mine = failed(Code.ERROR, f"{kind}: {tmp_path}/ab/cdef.so: file too short")
    assert not would_repeat(mine)
    other = failed(Code.ERROR, f"{kind}: /elsewhere/ab/cdef.so: file too short")
    assert would_repeat(other)


@pytest.mark.parametrize(
    ("trial", "again"),
    [
        (record(), True),
        (failed(Code.NUMERICS), True),
        (failed(Code.ERROR, "RuntimeError: shapes"), True),
        (failed(Code.ERROR, "ModuleNotFoundError: x"), True),
        (failed(Code.ERROR, "OSError: no space"), False),
        (failed(Code.ERROR, "ConnectionResetError: peer"), False),
        (failed(Code.ERROR, "DistBackendError: timeout"), False),
        (failed(Code.ERROR, "KeyboardInterrupt: "), False),
        (failed(Code.MEMORY, "out of memory"), False),
        (failed(Code.HANG), False),
        (failed(Code.BUDGET), False),
        (failed(Code.SLOWER), False),
        (record(code=Code.SLOWER), False),
        (failed("SOMETHING_NEW"), False),
        (failed(Code.CRASH, explain_exit(-signal.SIGKILL)), False),
        (failed(Code.CRASH, explain_exit(-signal.SIGTERM)), False),
        (failed(Code.CRASH, explain_exit(1)), False),
        (failed(Code.CRASH, explain_exit(None)), False),
        (failed(Code.CRASH, f"rank 1 {explain_exit(-signal.SIGSEGV)}"), False),
    ],
    ids=str,
)
def test_failure_is_reused_where_it_would_repeat(cache, trial, again):
    assert would_repeat(trial) is again
    cache.append(trial, 1.0)
    assert (cache.lookup(PLAN, 1.0) is not None) is again


def test_hang_hides_what_was_measured_before(cache):
    cache.append(record(), 1.0)
    cache.append(failed(Code.HANG), 1.0)
    assert cache.lookup(PLAN, 1.0) is None


def test_end_of_the_budget_says_nothing_of_a_plan(cache):
    cache.append(record(), 1.0)
    cache.append(failed(Code.BUDGET), 1.0)
    assert cache.lookup(PLAN, 1.0) is not None


def test_failure_comes_back_without_times(cache):
    cache.append(failed(Code.NUMERICS, "the loss differs"), 1.0)
    found = cache.lookup(PLAN, 1.0)
    assert (found.measurement, found.because) == (None, "the loss differs")


# Files that are not as they were written


LINE = {
    "version": 1,
    "session": "s",
    "baseline_step_s": 1.0,
    "repeats": True,
    "record": record().to_dict(),
}
MEASURED = LINE["record"]["measurement"]
BAD_RECORDS = [
    None,
    [],
    {},
    {"name": 1},
    {"seconds": "9"},
    {"seconds": -1.0},
    {"seconds": 10**400},
    {"plan": None},
    {"plan": ["compile"]},
    {"plan": [{"a": {}, "b": {}}]},
    {"plan": [{"a": {"b": [1]}}]},
    {"plan": [{"a": None}]},
    {"guard": []},
    {"rung": 1.5},
    {"cached": 1},
    {"measurement": []},
    {"measurement": {}},
    {"measurement": {**MEASURED, "step_times_s": []}},
    {"measurement": {**MEASURED, "step_times_s": [0.0]}},
    {"measurement": {**MEASURED, "step_times_s": [float("nan")]}},
    {"measurement": {**MEASURED, "step_times_s": "12"}},
    {"measurement": {**MEASURED, "samples_per_step": None}},
    {"measurement": {**MEASURED, "unknown": 1}},
]


@pytest.mark.parametrize("bad", BAD_RECORDS, ids=str)
def test_record_that_is_none_is_skipped(cache, bad):
    whole = LINE["record"] | bad if bad else bad
    cache.append(record(OTHER), 1.0)
    with cache.path.open("a") as file:
        file.write(json.dumps({**LINE, "record": whole}) + "\n")
    assert cache.lookup(PLAN, 1.0) is None
    assert cache.lookup(OTHER, 1.0) is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 2},
        {"version": None},
        {"session": 3},
        {"baseline_step_s": 0},
        {"baseline_step_s": 10**400},
        {"repeats": "yes"},
    ],
    ids=str,
)
def test_line_of_another_kind_is_skipped_and_told_once(cache, caplog, fields):
    caplog.set_level(logging.INFO, module.__name__)
    cache.append(record(OTHER), 1.0)
    for _ in range(2):
        with cache.path.open("a") as file:
            file.write(json.dumps(LINE | fields) + "\n")
        assert cache.lookup(PLAN, 1.0) is None
    assert [r.message.startswith("1 lines of") for r in caplog.records] == [True]


GARBAGE = [b"\xff\xfe\x00", b"{", b"null", b"[" * 100_000, b"1" * 5000, b"\r", b'"a"']


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda g: repr(g[:9]))
def test_garbage_between_lines_is_skipped(cache, garbage):
    cache.append(record(), 1.0)
    with cache.path.open("ab") as file:
        file.write(garbage + b"\n\n")
    cache.append(record(OTHER), 1.0)
    assert cache.lookup(PLAN, 1.0) is not None
    assert cache.lookup(OTHER, 1.0) is not None


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_file_that_is_cut_anywhere_keeps_its_whole_lines(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("cut")
    cache = opened(folder)
    plans = [(Choice("a", {"n": n}),) for n in range(3)]
    for plan in plans:
        cache.append(record(plan), 1.0)
    whole = cache.path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    cache.path.write_bytes(whole[:cut])
    kept = whole[:cut].count(b"\n")
    found = [cache.lookup(plan, 1.0) is not None for plan in plans]
    assert found == [number < kept for number in range(3)]
    cache.append(record(PLAN), 1.0)
    again = opened(folder)
    # A line of which only the end is missing is whole once another one follows.
    assert [again.lookup(plan, 1.0) is not None for plan in plans][:kept] == [
        True
    ] * kept
    assert again.lookup(PLAN, 1.0) is not None


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=200))
def test_any_bytes_are_tolerated(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("bytes")
    cache = opened(folder)
    cache.path.write_bytes(content)
    assert cache.lookup(PLAN, 1.0) is None
    cache.append(record(), 1.0)
    assert opened(folder).lookup(PLAN, 1.0) is not None


def test_only_the_end_of_a_long_file_is_read(cache, monkeypatch):
    cache.append(record(), 1.0)
    cache.append(record(OTHER), 1.0)
    monkeypatch.setattr(module, "_MOST_BYTES", cache.path.stat().st_size - 1)
    assert cache.lookup(PLAN, 1.0) is None
    assert cache.lookup(OTHER, 1.0) is not None


def test_file_that_vanishes_is_empty_and_made_again(cache, folder, caplog):
    cache.append(record(), 1.0)
    assert cache.lookup(PLAN, 1.0) is not None
    cache.path.unlink()
    folder.rmdir()
    assert cache.lookup(PLAN, 1.0) is None
    cache.append(record(OTHER), 1.0)
    assert cache.lookup(OTHER, 1.0) is not None
    assert caplog.records == []


# Folders that are not as they should be


def gives_up(cache, caplog, text):
    """Whether a cache does nothing any more, after one warning."""
    for _ in range(2):
        cache.append(record(), 1.0)
        cache.lookup(PLAN, 1.0)
    assert [text in r.getMessage() for r in caplog.records] == [True]
    assert caplog.records[0].levelno == logging.WARNING


def test_folder_of_somebody_else_is_not_used(cache, folder, caplog, monkeypatch):
    cache.append(record(), 1.0)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    other = opened(folder)
    assert other.lookup(PLAN, 1.0) is None
    gives_up(other, caplog, "belongs to the user")


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_plain_file_is_not_used(cache, folder, caplog, tmp_path, kind):
    folder.mkdir()
    target = tmp_path / "precious"
    target.write_text("")
    if kind == "link":
        cache.path.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(cache.path)
    else:
        cache.path.mkdir()
    gives_up(cache, caplog, "the cache of trials")
    assert target.read_text() == ""


def test_place_that_is_no_folder_is_not_used(cache, folder, caplog):
    folder.write_text("a file")
    gives_up(cache, caplog, "keeps no trials")


def test_folder_that_cannot_be_written_to_is_still_read(
    cache, folder, caplog, monkeypatch
):
    cache.append(record(), 1.0)
    later = opened(folder)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "write", refuse)
    assert later.lookup(PLAN, 1.0) is not None
    gives_up(later, caplog, "Permission denied")
    assert later.lookup(PLAN, 1.0) is not None


@pytest.mark.parametrize("room", [0, 1, 50])
def test_disk_that_is_full_keeps_whole_lines_only(cache, caplog, monkeypatch, room):
    cache.append(record(), 1.0)
    before = cache.path.read_bytes()
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, line: write(file, line[:room]))
    cache.append(record(OTHER), 1.0)
    assert cache.path.read_bytes() == before
    gives_up(cache, caplog, "no room")


def test_lock_that_is_never_free_is_not_waited_for(cache, caplog, monkeypatch):
    import fcntl

    monkeypatch.setattr(module, "_LOCK_S", 0.05)
    cache.append(record(), 1.0)
    with cache.path.open() as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        gives_up(cache, caplog, "keeps no trials")


# Several at once


def append_many(folder, number):
    cache = opened(folder)
    for trial in range(25):
        cache.append(record((Choice(f"p{number}", {"n": trial}),), log="x" * 9000), 1.0)


def test_processes_append_at_once(folder):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=append_many, args=(folder, n)) for n in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    cache = opened(folder)
    plans = [(Choice(f"p{p}", {"n": n}),) for p in range(2) for n in range(25)]
    assert all(cache.lookup(plan, 1.0) for plan in plans)
    assert len(cache.path.read_bytes().splitlines()) == 50


def test_threads_share_one_cache(cache):
    def work(number):
        for trial in range(10):
            plan = (Choice(f"p{number}", {"n": trial}),)
            cache.append(record(plan), 1.0)
            assert cache.lookup(plan, 1.0) is not None

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cache.path.read_bytes().splitlines()) == 40


def test_trial_of_another_search_is_seen_at_once(folder):
    mine, theirs = opened(folder), opened(folder)
    assert mine.lookup(PLAN, 1.0) is None
    theirs.append(record(), 1.0)
    assert mine.lookup(PLAN, 1.0) is not None


# Where it is


def test_open_reads_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("DRIVETRAIN_CACHE_DIR", str(tmp_path))
    assert TrialCache.open(None, KEY).path == tmp_path / "search" / f"{KEY}.jsonl"
