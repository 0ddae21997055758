"""A definition with a rule that an API server cannot run is found before it is asked."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("cel")
pytest.importorskip("yaml")

sys.path.append(str(Path(__file__).parent))
from definitions import faults, main


def kind_with(schema):
    version = {"name": "v1", "schema": {"openAPIV3Schema": schema}}
    return {"kind": "CustomResourceDefinition", "spec": {"versions": [version]}}


def policy(rule, **fields):
    inner = {"type": "object", "x-kubernetes-validations": [{"rule": rule}], **fields}
    return kind_with({"type": "object", "properties": {"policy": inner}})


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("self.gang != 'Kueue' || has(self.queue)", "gang"),
        ("self.gang ==", "does not compile"),
        ("1 + 1", "on {}: 2"),
        ("has(self.gang)", "on {}: False"),
    ],
)
def test_rule_that_fails_on_its_default_is_found(rule, says):
    # Defaults within a default are put in later.
    gang = {"type": "string", "default": "None"}
    (found, *_) = faults(policy(rule, default={}, properties={"gang": gang}))
    assert found.startswith(f".policy: {rule}: ")
    assert says in found


@pytest.mark.parametrize(
    "rule",
    ["!has(self.gang) || self.gang != 'Kueue'", "self == oldSelf", "!has(self.gang)"],
)
def test_rule_that_holds_for_nothing_is_right(rule):
    assert not faults(policy(rule, default={}))


def test_object_that_may_not_be_empty_is_not_tried_empty():
    assert not faults(policy("self.a > 0", required=["a"]))
    assert faults(policy("self.a > 0"))
    assert not faults(policy("has(self.a) != has(self.b)"))


def test_definitions_of_the_packages_are_right(capsys):
    assert main([]) == 0
    assert ", 0 faults" in capsys.readouterr().out


def test_file_without_a_definition_is_no_success(tmp_path):
    path = tmp_path / "none.yaml"
    path.write_text("kind: Pod")
    assert main([str(path)]) == 1
