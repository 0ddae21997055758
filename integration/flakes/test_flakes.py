"""The rounds: what they run, what they say of it, and which tests are found to wait."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from flakes import ROUNDS, SLOW_ROUNDS, Round, command, counts

HERE = Path(__file__).parent

TESTS = """
import asyncio, multiprocessing, select, socket, subprocess, sys, threading, time
from torch.distributed import TCPStore

def test_sleeps(): time.sleep(0.001)
def test_waits_for_an_event(): threading.Event().wait(0.001)
def test_binds(): socket.socket().bind(("127.0.0.1", 0))
def test_starts(): subprocess.run([sys.executable, "-c", ""], check=True)
def test_awaits(): asyncio.run(asyncio.sleep(0.001))
def test_selects(): select.select([], [], [], 0.001)
def test_joins():
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
def test_spawns():
    process = multiprocessing.get_context("spawn").Process(target=int)
    process.start()
    process.join()
def test_has_a_store(): TCPStore("127.0.0.1", 0, is_master=True)
def test_adds(): assert 1 + 1 == 2
def test_has_a_thread(): threading.Thread(target=int).start()
"""


def test_every_test_that_waits_runs_twenty_times_half_of_them_beside_loops():
    waiting = [one for one in ROUNDS if one.tests == "waiting"]
    assert sum(one.times for one in waiting) == 20
    assert sum(one.times for one in waiting if one.num_loops) == 10
    assert {one.tests for one in ROUNDS[:4]} == {"all"}


def test_slow_tests_run_twenty_times_half_of_them_beside_loops():
    assert {(one.tests, one.times) for one in SLOW_ROUNDS} == {("all", 1)}
    assert len(SLOW_ROUNDS) == 20
    assert sum(one.num_loops > 0 for one in SLOW_ROUNDS) == 10


def test_order_is_shuffled_where_it_is_said(tmp_path):
    plain = command(Round("all"), 7, tmp_path, ["x"])
    shuffled = command(Round("all", is_shuffled=True), 7, tmp_path, ["x"])
    assert "-pno:randomly" in plain
    assert "--randomly-seed=7" in shuffled


def test_report_is_counted():
    report = """<testsuites><testsuite>
    <testcase file="a.py" name="t1"/>
    <testcase file="a.py" name="t2"><failure/></testcase>
    <testcase file="b.py" name="t3"><error/></testcase>
    <testcase file="b.py" name="t4"><skipped/></testcase>
    </testsuite></testsuites>"""
    assert counts(report) == (1, ["a.py::t2", "b.py::t3"])


def test_tests_that_wait_are_found(tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS)
    found = tmp_path / "found.txt"
    plugin = ["-p", "no:randomly", "-p", "waits", f"--waiting={found}"]
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin, "test_some.py"],
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(HERE)},
        capture_output=True,
    )
    names = {line.partition("::")[2] for line in found.read_text().splitlines()}
    defined = set(re.findall(r"def (test_\w+)", TESTS))
    assert names == defined - {"test_adds", "test_has_a_thread"}


REPEATED = """
import pytest

made, runs = [], []

@pytest.fixture(scope="module")
def shared():
    made.append(1)
    yield
    made.append(0)

@pytest.fixture
def own():
    runs.append("set up")
    yield
    runs.append("torn down")

def test_is_run_again(shared, own):
    assert made == [1]

def test_fails_once(shared):
    runs.append("failed" if runs.count("failed") < 1 else "passed")
    assert runs[-1] != "failed"

def three():
    '''
    >>> three()
    3
    '''
    return 3

def test_each_was_run_three_times():
    if "counted" not in runs:
        assert runs == ["set up", "torn down"] * 3 + ["failed", "passed", "passed"]
        runs.append("counted")
"""


def test_tests_are_repeated_and_one_failure_of_several_is_told(tmp_path):
    (tmp_path / "test_some.py").write_text(REPEATED)
    plugin = ["-p", "no:randomly", "-p", "waits", "--times=3", "--doctest-modules"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin, "test_some.py"],
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
    )
    assert "test_some.py::test_fails_once" in done.stdout
    assert "1 failed, 3 passed" in done.stdout
