"""What the agent tells the master of a check, and when it checks its node alone."""

import asyncio
import json
import sys

import pytest
from torch.distributed import HashStore

from drivetrain_core import DrivetrainError
from drivetrain_elastic._agent import _node_check
from drivetrain_elastic._agent._node_check import NodeCheck
from drivetrain_health.checks import CheckConfig
from drivetrain_health.checks._check_node import NodeReport
from drivetrain_health.checks._check_nodes import confer

ALONE = {"failures": {}, "network_failure": "", "wrong_bits": ""}
ALONE |= {"is_good": True, "is_checked": True, "not_made": {"memory": "none was left"}}


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Has the command print one thing together, and another one alone."""

    def make(together, alone=None):
        script = tmp_path / "check"
        script.write_text(
            f"#!{sys.executable}\nimport json, sys\n"
            f"said = {(together, alone)!r}['--nodes' not in sys.argv]\n"
            "sys.exit(said) if isinstance(said, str) else print(json.dumps(said))\n"
        )
        script.chmod(0o755)
        monkeypatch.setattr(_node_check.sys, "executable", str(script))
        return asyncio.run(NodeCheck("a", {}).together(3, "m:1", join_s=1.0))

    return make


def test_node_that_never_came_is_not_faulty(check):
    passed = {"outcome": "passed", "reason": "passed"}
    said = {"nodes": {"a": passed}, "absent": ["(one of 3)"], "this": ALONE}
    said["bad_switches"] = {"s1": "slow under it"}
    result = check(json.loads(json.dumps(said)))
    assert (result.is_faulty, dict(result.faulty)) == (False, {})
    assert "did not come: (one of 3)" in result.reason
    assert "switch s1 is bad: slow under it" in result.reason
    assert "memory not made: none was left" in result.reason


def says_twin():
    store, config = HashStore(), CheckConfig(checks=("loopback",))
    confer_once(store, config)
    store.delete_key("over/said/")
    return store, config


def says_over():
    store, config = HashStore(), CheckConfig(checks=("loopback",))
    confer_once(store, config)
    return store, config


def confer_once(store, config):
    confer(store, "a", 1, config, lambda *_: NodeReport("a", {"x_gflops": 1.0}))


@pytest.mark.parametrize("before", [says_twin, says_over])
def test_node_that_starts_again_is_checked_alone(check, before):
    with pytest.raises(DrivetrainError) as error:
        confer_once(*before())
    result = check(f"drivetrain-elastic: {error.value}", ALONE)
    assert not result.is_faulty
    assert result.reason.startswith("passed, alone")


def test_other_errors_of_a_check_are_told(check):
    assert check("drivetrain-elastic: no master").reason.startswith("not made: ")


def test_check_that_ends_without_a_word_is_told_by_how_it_ended(check):
    found = check("").reason
    assert found == "not made: it ended with exit code 1 and said nothing"
