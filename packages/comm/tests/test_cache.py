"""What an earlier run has left is used if it makes sense, and left alone if not."""

import json
import logging

import pytest

from drivetrain_comm.ddp import _cache
from drivetrain_comm.ddp._reduction_plan import ReductionPlan
from drivetrain_comm.selection._choice import Choice
from drivetrain_comm.selection._cost import Network

FOUND = _cache.Found(
    plan=ReductionPlan(bucket_bytes=1 << 20, choice=Choice(algorithm="ring")),
    network=Network(
        delay_s=0.0,
        flow_bytes_per_s=1e9,
        port_bytes_per_s=1e9,
        local_bytes_per_s=1e10,
    ),
)


@pytest.fixture
def environment(tmp_path):
    return {"DRIVETRAIN_COMM_CACHE": str(tmp_path)}


def test_cache_returns_what_was_kept(environment):
    assert _cache.load("name", environment) is None
    _cache.save("name", FOUND, environment)
    assert _cache.load("name", environment) == FOUND


@pytest.mark.parametrize("value", ["4", None, -1, float("nan"), [4]])
@pytest.mark.parametrize(
    "place",
    [
        ("network", "delay_s"),
        ("network", "flow_bytes_per_s"),
        ("tactic", "bucket_bytes"),
        ("tactic", "choice", "num_streams"),
        ("tactic", "choice", "segment_bytes"),
    ],
)
def test_cache_leaves_alone_what_is_no_number(
    environment, tmp_path, caplog, place, value
):
    _cache.save("name", FOUND, environment)
    file = tmp_path / "name.json"
    whole = inner = json.loads(file.read_text())
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    file.write_text(json.dumps(whole))
    with caplog.at_level(logging.WARNING):
        assert _cache.load("name", environment) is None
    assert "name.json is not used" in caplog.text


@pytest.mark.parametrize("text", ["", "[1]", "null", "{", "\x00", "[" * 100_000])
def test_cache_leaves_alone_what_is_no_such_file(environment, tmp_path, text):
    (tmp_path / "name.json").write_text(text)
    assert _cache.load("name", environment) is None
