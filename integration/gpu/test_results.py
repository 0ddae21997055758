"""What processes leave behind, read into rows."""

from __future__ import annotations

import json

import pytest
from results import explain, read_bars, read_facts, read_junit

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


def test_facts_without_ceilings_are_those_of_the_device():
    first = {"count": 2, "name": "Warp 7", "memory_bytes": 8 * 10**9}
    facts = {"hardware": {"accelerator": first}, "left_out": {"nccl": "why"}}
    found = read_facts(json.dumps(facts), 0)
    assert found["figure"] == "2 x Warp 7, 8 GB; left out: nccl"
    assert found["facts"] == facts
    facts = {"hardware": {"accelerator": None}, "left_out": {}}
    assert read_facts(json.dumps(facts), 0)["figure"] == "no GPU"


@pytest.mark.parametrize("device_type", [None, "cuda", "warp"])
def test_row_says_why_it_went_no_further(device_type):
    other = "; they ask for CUDA, and the device here is warp"
    other = other if device_type == "warp" else ""
    bars = read_bars('{"rows": [{"name": "a", "status": "gpu"}]}', 0)
    assert explain(bars, device_type)["figure"] == f"0 of 1 hold, no GPU for 1{other}"
    assert explain(bars, device_type)["bars"] == bars["bars"]
    tests = read_junit(JUNIT)
    figure = explain(tests, device_type)["figure"]
    assert figure == f"1 passed, 2 failed, 1 skipped{other}"


def test_row_that_went_all_the_way_says_no_more():
    bars = read_bars('{"rows": [{"name": "a", "status": "pass"}]}', 0)
    assert explain(bars, "warp") == bars
    tests = read_junit('<testsuite><testcase classname="a" name="b"/></testsuite>')
    assert explain(tests, "warp") == tests
