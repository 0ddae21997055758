"""What an object of a defined kind may hold."""

from __future__ import annotations

import pytest
from double_samples import DEFINITION, definition, widget
from drivetrain_cluster_double import cel, schema
from drivetrain_cluster_double.definitions import definition_errors, kind_of

SHAPE = DEFINITION["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def told(item):
    return {c.field: (c.reason, c.message) for c in schema.validate(item, SHAPE)}


@pytest.mark.parametrize(
    ("spec", "field", "reason", "part"),
    [
        ({"replicas": -1}, "spec.replicas", "Invalid", "greater than or equal to 0"),
        ({"replicas": "3"}, "spec.replicas", "TypeInvalid", "must be of type integer"),
        ({"replicas": 1.5}, "spec.replicas", "TypeInvalid", "must be of type integer"),
        ({"replicas": True}, "spec.replicas", "TypeInvalid", "must be of type integer"),
        ({"replicas": None}, "spec.replicas", "TypeInvalid", '"null"'),
        ({"mode": "Other"}, "spec.mode", "NotSupported", '"Wait", "Resize"'),
        ({"title": "A"}, "spec.title", "Invalid", "should match '^[a-z]*$'"),
        ({"port": 1.5}, "spec.port", "TypeInvalid", "integer,string"),
        ({"port": {}}, "spec.port", "TypeInvalid", "integer,string"),
        ({"steps": {}}, "spec.steps", "TypeInvalid", "of type array"),
        ({"steps": [{"size": 1}]}, "spec.steps[0].name", "Required", "Required value"),
        (
            {"steps": [{"name": "a"}, {"name": "a"}]},
            "spec.steps[1]",
            "Duplicate",
            '{"name":"a"}',
        ),
    ],
    ids=str,
)
def test_validate_says_which_field_is_wrong(spec, field, reason, part):
    found = told(widget(**spec))
    assert list(found) == [field]
    assert found[field][0] == f"FieldValue{reason}"
    assert part in found[field][1]


@pytest.mark.parametrize(
    "spec",
    [{"port": 80}, {"port": "http"}, {"free": {"any": [1, None]}}, {"replicas": 2.0}],
)
def test_validate_lets_good_objects_pass(spec):
    assert told(widget(**spec)) == {}


def test_validate_names_what_is_required():
    item = widget()
    del item["spec"]
    assert told(item) == {"spec": ("FieldValueRequired", "Required value")}


@pytest.mark.parametrize(
    ("shape", "good", "bad"),
    [
        (
            {"type": "string", "minLength": 2, "maxLength": 3},
            ["ab", "abc"],
            ["a", "abcd"],
        ),
        ({"type": "integer", "format": "int32"}, [2**31 - 1], [2**31]),
        ({"type": "number", "minimum": 0, "exclusiveMinimum": True}, [0.1], [0]),
        ({"type": "integer", "maximum": 3, "multipleOf": 3}, [3, 0], [1, 6]),
        ({"type": "array", "minItems": 1, "maxItems": 2}, [[1]], [[], [1, 2, 3]]),
        ({"type": "object", "maxProperties": 1, "minProperties": 1}, [{"a": 1}], [{}]),
        ({"type": "array", "x-kubernetes-list-type": "set"}, [[1, 2]], [[1, 1]]),
        ({"type": "string", "format": "date-time"}, ["2026-01-01T00:00:00Z"], ["soon"]),
        ({"type": "string", "nullable": True}, [None, "a"], [1]),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, [1, "a"], [[]]),
        ({"oneOf": [{"type": "integer"}, {"minimum": 3}]}, [1, 3.5], [4]),
        ({"not": {"enum": [3]}}, [4], [3]),
        ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, [1, 2], [0, 3]),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            [{"a": 1}],
            [{"a": "b"}],
        ),
    ],
    ids=str,
)
def test_validate_knows_the_rules_of_structural_schemas(shape, good, bad):
    assert [v for v in good if list(schema.validate(v, shape, "x"))] == []
    assert [v for v in bad if not list(schema.validate(v, shape, "x"))] == []


def test_prune_leaves_out_what_is_not_known_and_says_what():
    item = widget(other=1, free={"kept": 1}, steps=[{"name": "a", "more": 2}])
    item["more"] = 1
    pruned = schema.prune(item, SHAPE)
    assert pruned["spec"] == {
        "replicas": 1,
        "free": {"kept": 1},
        "steps": [{"name": "a"}],
    }
    assert pruned["metadata"] == {"name": "a"}
    assert sorted(schema.unknown_fields(item, pruned)) == [
        "more",
        "spec.other",
        "spec.steps[0].more",
    ]


def test_default_fills_in_without_changing_what_it_is_given():
    item = widget()
    filled = schema.default(item, SHAPE)
    assert filled["spec"] == {"replicas": 1, "maxReplicas": 8, "mode": "Wait"}
    assert item == widget()
    assert schema.default(filled, SHAPE) is filled


def test_definition_makes_a_kind():
    kind = kind_of(DEFINITION)
    assert (kind.name, kind.plural, kind.versions) == ("Widget", "widgets", ("v1",))
    assert kind.has_status
    assert kind.scale["v1"].selector == ".status.selector"


@pytest.mark.extra
@pytest.mark.parametrize(
    ("where", "value", "field"),
    [
        (("metadata", "name"), "other", "metadata.name"),
        (("spec", "scope"), "Everywhere", "spec.scope"),
        (("spec", "versions", 0, "storage"), False, "spec.versions"),
        (
            ("spec", "versions", 0, "schema"),
            {},
            "spec.versions[0].schema.openAPIV3Schema",
        ),
        (("spec", "versions"), [], "spec.versions"),
    ],
    ids=str,
)
def test_definition_that_is_wrong_is_refused(where, value, field):
    item = definition()
    part = item
    for key in where[:-1]:
        part = part[key]
    part[where[-1]] = value
    assert field in {cause.field for cause in definition_errors(item)}


@pytest.mark.extra
def test_definition_that_is_not_structural_is_refused():
    item = definition()
    shape = item["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec = shape["properties"]["spec"]
    spec["properties"]["untyped"] = {}
    spec["properties"]["list"] = {"type": "array"}
    path = "spec.versions[0].schema.openAPIV3Schema.properties[spec]"
    assert {cause.field for cause in definition_errors(item)} == {
        f"{path}.properties[untyped].type",
        f"{path}.properties[list].items",
    }
    del spec["properties"]["untyped"], spec["properties"]["list"]
    spec["x-kubernetes-validations"].append({"rule": "self.replicas +"})
    spec["x-kubernetes-validations"].append({"rule": "unknown(self)"})
    assert {cause.field for cause in definition_errors(item)} == {
        f"{path}.x-kubernetes-validations[2].rule",
        f"{path}.x-kubernetes-validations[3].rule",
    }


@pytest.mark.extra
@pytest.mark.parametrize(
    ("rule", "value", "holds"),
    [
        ("self.a <= self.b", {"a": 1, "b": 2}, True),
        ("self.a <= self.b", {"a": 3, "b": 2}, False),
        ("!has(self.c) || self.c > 1", {}, True),
        ("!has(self.c) || self.c > 1", {"c": 1}, False),
        ("self.all(k, k.startsWith('x'))", {"xa": 1}, True),
        ("self.names.exists(n, n == 'a')", {"names": ["b"]}, False),
        ("self.names.isSorted() && self.names.sum() == 3", {"names": [1, 2]}, True),
        ("self.t.lowerAscii().split(',').size() == 2", {"t": "A,B"}, True),
        ("duration(self.t) > duration('10s')", {"t": "1m"}, True),
        ("self.missing > 1", {}, False),
    ],
    ids=str,
)
def test_rules_hold_or_are_told(rule, value, holds):
    shape = {"x-kubernetes-validations": [{"rule": rule}]}
    causes = list(cel.broken_rules(value, None, shape, "spec"))
    assert (causes == []) == holds
    assert all(cause.field == "spec" for cause in causes)


@pytest.mark.extra
def test_rule_says_what_it_is_to_say_and_where():
    rule = {
        "rule": "self.a < 2",
        "messageExpression": "'a is ' + string(self.a)",
        "fieldPath": ".a",
        "reason": "FieldValueForbidden",
    }
    (cause,) = cel.broken_rules(
        {"a": 5}, None, {"x-kubernetes-validations": [rule]}, "spec"
    )
    assert (cause.reason, cause.field) == ("FieldValueForbidden", "spec.a")
    assert cause.message.endswith("a is 5")


@pytest.mark.extra
def test_rule_of_a_transition_is_for_updates_alone():
    shape = {
        "properties": {
            "steps": {
                "x-kubernetes-list-map-keys": ["name"],
                "items": {
                    "x-kubernetes-validations": [{"rule": "self.n >= oldSelf.n"}]
                },
            }
        }
    }
    new, old = (
        {"steps": [{"name": "b", "n": 1}, {"name": "a", "n": n}]} for n in (1, 2)
    )
    assert list(cel.broken_rules(new, None, shape)) == []
    assert [c.field for c in cel.broken_rules(new, old, shape)] == ["steps[1]"]
    assert list(cel.broken_rules(old, new, shape)) == []
