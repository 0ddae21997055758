"""The commands `drivetrain-cloud cost` and `simulate-spot`, and the file of a usage."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from functools import partial

import pytest

from drivetrain_cloud._commands.commands import populate_command
from drivetrain_cloud.cost import (
    UsageError,
    UsageRecord,
    read_usage,
    record_usage,
    write_usage,
)
from drivetrain_cloud.spot import JobPhase, Market
from drivetrain_cloud.spot.cost_observability import NodeUse, PhaseTime, Usage
from drivetrain_testing import check_wrong_use, run_subcommand

run_one = partial(run_subcommand, "drivetrain-cloud")
wrong_use = partial(check_wrong_use, "drivetrain-cloud")

BEGIN = 1_780_272_000.0  # 2026-06-01
OFFER = "example/zone-a/gpu-8"
SMALL = ["--job", "resnet50", "--nodes", "2", "--days", "0.5", "--seeds", "2"]


@pytest.fixture
def call(capsys, monkeypatch):
    """Runs a command; returns its exit status, output and errors."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(name, *options):
        status = run_one(name, partial(populate_command, name=name), options)
        return status, *capsys.readouterr()

    return run


def use(node="a", begin_h=0.0, end_h=2.0, market=Market.SPOT, **fields):
    end_s = None if end_h is None else BEGIN + 3600 * end_h
    usual = {"offer": OFFER, "begin_s": BEGIN + 3600 * begin_h, "end_s": end_s}
    return NodeUse(node=node, market=market, **{**usual, **fields})


def record(*uses, **fields):
    phases = (PhaseTime(phase=JobPhase.TRAINING, begin_s=BEGIN),)
    usual = {
        "job": "job",
        "usage": Usage(nodes=uses, phases=phases),
        "until_s": BEGIN + 4 * 3600,
        "samples": 7200.0,
        "reference_nodes": 1,
        "reference_speed": 1.0,
    }
    return UsageRecord(**{**usual, **fields})


# ---- the file of a usage ----


def test_a_usage_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "usage.json"
    written = record(use(was_taken=True), use("b", 1.0, None, Market.ON_DEMAND))
    write_usage(path, record(use()))
    write_usage(path, written)
    assert read_usage(path) == written
    assert [one.name for one in tmp_path.iterdir()] == ["usage.json"]


def test_times_of_a_monotonic_clock_become_times_of_the_calendar():
    usage = Usage(
        nodes=(use("a", begin_s=10.0, end_s=None, offer=""),),
        phases=(PhaseTime(phase=JobPhase.WAITING, begin_s=5.0, end_s=10.0),),
    )
    found = record_usage(
        usage,
        now_s=30.0,
        epoch_s=BEGIN,
        job="j",
        samples=1.0,
        reference_nodes=2,
        offer=OFFER,
    )
    (node,), (phase,) = found.usage.nodes, found.usage.phases
    assert (node.begin_s, node.end_s, node.offer) == (BEGIN - 20, None, OFFER)
    assert (phase.begin_s, phase.end_s) == (BEGIN - 25, BEGIN - 20)


@pytest.mark.parametrize(
    ("uses", "fields", "words"),
    [
        ([use(begin_h=2.0, end_h=1.0)], {}, "cannot be there from"),
        ([use(end_h=5.0)], {}, "cannot be there from"),
        ([use(), use(begin_h=1.0, end_h=3.0)], {}, "paid for twice"),
        ([], {"samples": -1.0}, "samples must be a number from 0"),
        ([], {"reference_speed": float("nan")}, "reference_speed must be"),
        ([], {"reference_nodes": 0}, "reference_nodes must be at least 1"),
    ],
)
def test_a_usage_that_contradicts_itself_is_refused(uses, fields, words):
    with pytest.raises(UsageError, match=words):
        record(*uses, **fields)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"drivetrain_usage": 2}, "drivetrain_usage: 1, got 2"),
        ({"job": None, "samples": True}, "expected a number, got True"),
        ({"nodes": {}}, "nodes must be a list"),
        ({"nodes": [3]}, r"nodes\[0\] must be an object"),
        ({"nodes": [{"node": "a"}]}, r"nodes\[0\]: 'end' is missing"),
        ({"until": 5}, "expected a time, got 5"),
        ({"until": "soon"}, "expected a time such as"),
        ({"until": "0001-01-01T00:00:00+14:00"}, "since 1970"),
        ({"samples": 10**400}, "expected a number, got one of"),
        ({"reference_nodes": 1.5}, "expected a whole number, got 1.5"),
        ({"reference_nodes": float("nan")}, "expected a whole number, got nan"),
        (
            {
                "phases": [
                    {"phase": "training", "begin": "2026-06-02", "end": "2026-06-01"}
                ]
            },
            "the phase training cannot last",
        ),
        (
            {"phases": [{"phase": "asleep", "begin": "2026-06-01", "end": None}]},
            "asleep",
        ),
    ],
)
def test_a_file_that_is_no_usage_says_where(tmp_path, change, words):
    path = tmp_path / "usage.json"
    write_usage(path, record(use()))
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UsageError, match=words):
        read_usage(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000])
def test_a_file_that_is_anything(tmp_path, text):
    path = tmp_path / "usage.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"usage\.json: expected"):
        read_usage(path)


# ---- cost ----


@pytest.fixture
def usage_file(tmp_path):
    path = tmp_path / "usage.json"
    write_usage(path, record(use(was_taken=True), use("b", 1.0, 2.0, Market.ON_DEMAND)))
    return path


def test_cost_shows_the_bill(call, usage_file):
    status, out, err = call("cost", usage_file)
    assert (status, err) == (0, "")
    assert "51.2000 USD for 7,200 samples; 4.000 h training" in out
    assert "7111.1111 USD per million samples" in out
    assert "20.0% saved against 1 nodes on demand" in out
    assert "taken away" in out
    assert f"{OFFER}, spot: 9.6 USD per hour, an assumption of this file" in out


def test_cost_names_offers_in_full_and_the_price_that_savings_are_counted_against(
    call, tmp_path, monkeypatch
):
    path = tmp_path / "usage.json"
    phases = (
        PhaseTime(phase=JobPhase.TRAINING, begin_s=BEGIN, end_s=BEGIN + 3600),
        PhaseTime(phase=JobPhase.ENDED, begin_s=BEGIN + 3600),
    )
    spot = use("spot-0-of-a-name-that-is-long", was_taken=True)
    write_usage(path, record(spot, usage=Usage(nodes=(spot,), phases=phases)))
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = call("cost", path)
    assert "…" not in out
    assert f"{OFFER}, on-demand: 32 USD per hour, an assumption of this file" in out
    assert "h ended" not in out


def test_cost_is_json_too(call, usage_file):
    status, out, _ = call("cost", usage_file, "--json")
    found = json.loads(out)
    assert status == 0
    assert found["cost"] == pytest.approx(2 * 9.6 + 32)
    assert sum(one["cost"] for one in found["nodes"]) == found["cost"]
    assert found["saving"] == pytest.approx(1 - 51.2 / 64)
    assert [one["market"] for one in found["prices"]] == ["spot", "on-demand"]


def test_cost_without_a_speed_says_no_saving(call, tmp_path):
    path = tmp_path / "usage.json"
    write_usage(path, record(use(), reference_speed=0.0))
    _, out, _ = call("cost", path)
    assert "no saving" in out
    assert json.loads(call("cost", path, "--json")[1])["saving"] is None
    _, out, _ = call("cost", path, "--reference-speed", "1")
    assert "70.0% saved" in out


def test_cost_takes_prices_and_names_what_has_none(call, tmp_path, usage_file):
    prices = tmp_path / "prices.csv"
    head = "offer,market,per_hour,currency,valid_from,source\n"
    prices.write_text(head + "other,spot,1,EUR,2026-01-01T00:00:00Z,me\n")
    status, _, err = call("cost", usage_file, "--prices", prices)
    assert status == 2
    assert "there is no spot price of 'example/zone-a/gpu-8'" in err
    assert "--offer NAME says what the prices call these nodes" in err
    path = tmp_path / "unnamed.json"
    write_usage(path, record(use(offer="")))
    status, _, err = call("cost", path)
    assert (status, "no spot price of ''" in err) == (2, True)
    status, out, _ = call("cost", path, "--offer", OFFER, "--json")
    assert (status, json.loads(out)["cost"]) == (0, pytest.approx(19.2))


def test_cost_calls_nodes_by_another_name_than_the_record(call, tmp_path, usage_file):
    prices = tmp_path / "prices.csv"
    head = "offer,market,per_hour,currency,valid_from,source\n"
    row = "2026-01-01T00:00:00Z,me\n"
    rows = f"mine,spot,1,EUR,{row}mine,on-demand,4,EUR,{row}"
    prices.write_text(head + rows)
    options = [usage_file, "--prices", prices, "--offer", "mine"]
    status, out, err = call("cost", *options, "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found["cost"] == pytest.approx(2 * 1 + 4)
    assert {one["offer"] for one in found["nodes"] + found["prices"]} == {"mine"}
    status, out, _ = call("cost", *options)
    assert (status, "mine, on-demand: 4 EUR per hour, me" in out) == (0, True)


@pytest.mark.parametrize("speed", ["0", "-1", "nan", "inf"])
def test_cost_refuses_a_speed_that_is_none(call, usage_file, speed):
    found = call("cost", usage_file, f"--reference-speed={speed}")
    wrong_use(*found, "--reference-speed: must be ")


# ---- simulate-spot ----


def test_simulate_spot_shows_savings_and_assumptions(call):
    options = ["--target", "0.5,0.99", "--sensitivity"]
    status, out, err = call("simulate-spot", *SMALL, *options)
    assert (status, err) == (0, "")
    assert "none can save more than 70.0%" in out
    for name in ("restart", "wait-full", "resize", "resize+fallback", "all on demand"):
        assert name in out
    assert "to save 99%" in out
    assert "spot_price" in out
    assert "an assumption of this file: 70 % less; valid from 2026-01-01" in out
    assert "resnet50: restore_s: 60 (assumed for GPUs" in out


def test_simulate_spot_is_json_and_the_same_each_time(call):
    found = [json.loads(call("simulate-spot", *SMALL, "--json")[1]) for _ in range(2)]
    assert found[0] == found[1]
    results = {one["strategy"]: one for one in found[0]["results"]}
    for one in results.values():
        saving = one["saving"]
        assert saving["low"] <= saving["mean"] <= saving["high"] < 0.7
        assert sum(one["spent"].values()) == pytest.approx(1.0)
    assert results["resize"]["goodput"]["mean"] > results["restart"]["goodput"]["mean"]


def test_simulate_spot_writes_a_page_that_needs_nothing_else(call, tmp_path):
    page = tmp_path / "page.html"
    options = ["--html", page, "--sensitivity", "--target", "0.5"]
    status, _, err = call("simulate-spot", *SMALL, *options)
    assert (status, err) == (0, "")
    text = page.read_text()
    assert "http://" not in text
    assert "https://" not in text
    assert "<script" not in text
    pictures = [part.split("</svg>")[0] for part in text.split("<svg ")[1:]]
    assert len(pictures) == 4
    for picture in pictures:
        found = ET.fromstring(f"<svg {picture}</svg>")
        assert "nan" not in picture
        assert found.find("title") is not None


def test_simulate_spot_takes_a_trace_and_prices_of_the_user(call, tmp_path):
    trace, prices = tmp_path / "<b>trace.csv", tmp_path / "prices.csv"
    trace.write_text("seconds,available\n0,2\n3600,1\n7200,2\n")
    head = "offer,market,per_hour,currency,valid_from,source\n"
    row = "2026-01-01T00:00:00Z,me\n"
    prices.write_text(f"{head}n,spot,1,EUR,{row}")
    on_demand = tmp_path / "on-demand.csv"
    on_demand.write_text(f"{head}n,on-demand,4,EUR,{row}")
    page = tmp_path / "page.html"
    options = ["--trace", trace, "--html", page, "--json"]
    options += ["--prices", prices, "--prices", on_demand]
    options += ["--job", "bert-large", "--nodes", "2", "--strategy", "resize"]
    options += ["--set", "resize_s=0", "--begin", "2026-02-01T00:00:00Z"]
    status, out, err = call("simulate-spot", *options, "--seeds", 1)
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert (found["currency"], found["most_saving"]) == ("EUR", 0.75)
    assert [one["taken"] for one in found["results"]] == [1]
    assert "<b>trace" not in page.read_text()
    assert "&lt;b&gt;trace" in page.read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--seeds", "0"], "--seeds: must be at least 1"),
        (["--job", "vgg"], "--job: there is no job 'vgg', but resnet50"),
        (["--job", "resnet50,resnet50"], "names something twice"),
        (["--nodes", "0"], "--nodes needs numbers"),
        (["--nodes", "2,x"], "--nodes needs numbers"),
        (["--strategy", "hope"], "--strategy: there is none 'hope', but restart"),
        (["--min-nodes", "9"], "1 <= --min-nodes <= nodes"),
        (["--max-wait-s", "-1"], "--max-wait-s: must be"),
        (["--set", "restore_s"], "--set needs NAME=NUMBER"),
        (["--set", "colour=3"], "--set: a profile has no 'colour'"),
        (["--set", "save_s=-3"], "save_s must be more than 0"),
        (["--shape", "colour=3"], "--shape: there is no 'colour'"),
        (["--shape", "up_h=0"], "--shape: up_h must be more than 0"),
        (["--trace", "/nowhere.csv"], "/nowhere.csv"),
        (["--trace", "/nowhere.csv", "--shape", "up_h=1"], "--shape is for drawn"),
        (["--pool-ratio", "0"], "--pool-ratio: must be more than 0"),
        (["--days", "0"], "--days: must be more than 0"),
        (["--hours", "nan"], "--hours: must be a number"),
        (["--start-s", "nan"], "--start-s: must be a number"),
        (["--notice-s", "-1"], "--notice-s: must be at least 0"),
        (["--offer", "none"], "there is no spot price of 'none'"),
        (["--begin", "soon"], "--begin: expected a time"),
        (["--begin", "2020-01-01T00:00:00Z"], "begin at 2026-01-01"),
        (["--target", "1.5"], "--target needs shares"),
        (["--target", "much"], "--target needs shares"),
        (["--html", "/nowhere/page.html"], "--html must name a file"),
    ],
)
def test_simulate_spot_says_what_is_wrong_with_the_call(call, options, words):
    wrong_use(*call("simulate-spot", *SMALL, *options), words)
