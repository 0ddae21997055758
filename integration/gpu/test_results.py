"""What processes leave behind, read into rows."""

from __future__ import annotations

import pytest
from results import read_bars, read_facts, read_junit

JUNIT = """<testsuites><testsuite>
<testcase classname="a" name="t1" time="2.5"/>
<testcase classname="a" name="t2"><failure message="why">where</failure></testcase>
<testcase classname="a" name="t3"><error message="else"/></testcase>
<testcase classname="a" name="t4"><skipped/></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize("output", ["", "Traceback", "{}", '["a"]', '{"rows": ["a"]}'])
def test_bars_that_print_no_rows_are_a_missed_row(output):
    found = read_bars(output, 1)
    assert found["status"] == "miss"
    assert "exited with 1 and printed no rows" in found["bars"][0]["figure"]


def test_bars_that_fail_without_a_missed_row_are_a_missed_row():
    found = read_bars('{"rows": [{"name": "a", "status": "pass"}]}', -9)
    assert [bar["status"] for bar in found["bars"]] == ["pass", "miss"]
    assert "exited with -9" in found["bars"][1]["figure"]


def test_bars_that_miss_say_so_themselves():
    found = read_bars('{"rows": [{"name": "a", "status": "miss"}]}', 1)
    assert [bar["name"] for bar in found["bars"]] == ["a"]


@pytest.mark.parametrize(("status", "whole"), [("pass", "pass"), ("gpu", "skip")])
def test_bars_without_a_miss_are_what_was_measured(status, whole):
    found = read_bars(f'{{"rows": [{{"name": "a", "status": "{status}"}}]}}', 0)
    assert found["status"] == whole


def test_tests_of_which_none_was_chosen_are_missed():
    found = read_junit("<testsuites><testsuite/></testsuites>")
    assert (found["status"], found["figure"]) == ("miss", "no test")


def test_junit_is_counted_and_failures_told():
    found = read_junit(JUNIT)
    tests = found["tests"]
    assert (tests["passed"], tests["failed"], tests["skipped"]) == (1, 2, 1)
    assert found["figure"] == "1 passed, 2 failed, 1 skipped"
    assert found["status"] == "miss"
    first, second = tests["failures"]
    assert first == {"test": "a::t2", "message": "why", "text": "where"}
    assert second["message"] == "else"
    assert tests["slowest"][0] == "2.5 s a::t1"


def test_facts_are_the_last_line():
    found = read_facts('noise\n{"ceilings": {"copy_tb_per_s": 4.301}}', 0)
    assert (found["status"], found["figure"]) == ("pass", "copy_tb_per_s 4.3")
    assert read_facts("", 1)["status"] == "miss"


def test_row_whose_tests_are_all_skipped_says_why():
    report = """<testsuites><testsuite>
    <testcase classname="a" name="one"><skipped message="needs NCCL 2.30, here 2.28.9"/></testcase>
    <testcase classname="a" name="two"><skipped message="needs NCCL 2.30, here 2.28.9"/></testcase>
    </testsuite></testsuites>"""
    found = read_junit(report)
    assert found["status"] == "skip"
    assert found["figure"] == "2 skipped: needs NCCL 2.30, here 2.28.9"
