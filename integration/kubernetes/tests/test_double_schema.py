"""What an object of a defined kind may hold."""

from __future__ import annotations

import pytest
from double_samples import DEFINITION, definition, widget
from drivetrain_cluster_double import cel, schema
from drivetrain_cluster_double.definitions import definition_causes
from drivetrain_cluster_double.errors import StatusError
from drivetrain_cluster_double.kinds import defined

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
    [
        {"port": 80},
        {"port": "http"},
        {"free": {"any": [1, None]}},
        {"replicas": 2.0},
        {"replicas": 10**400},
    ],
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
        ({"type": "number", "minimum": 0, "maximum": 3}, [0.1, 3], [-0.1, 4]),
        ({"type": "array", "minItems": 1, "maxItems": 2}, [[1]], [[], [1, 2, 3]]),
        ({"type": "array", "x-kubernetes-list-type": "set"}, [[1, 2]], [[1, 1]]),
        ({"type": "string", "format": "date-time"}, ["2026-01-01T00:00:00Z"], ["soon"]),
        ({"type": "string", "nullable": True}, [None, "a"], [1]),
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
    kind = defined(DEFINITION)
    assert (kind.name, kind.plural, kind.versions) == ("Widget", "widgets", ("v1",))
    assert kind.has_status
    assert kind.scale["v1"].selector == ".status.selector"


@pytest.mark.extra
@pytest.mark.parametrize(
    ("where", "value", "field"),
    [
        (("metadata", "name"), "other", "metadata.name"),
        (("spec", "versions", 0, "storage"), False, "spec.versions"),
        (
            ("spec", "versions", 0, "schema"),
            {},
            "spec.validation.openAPIV3Schema",
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
    assert field in {cause.field for cause in definition_causes(item)}


@pytest.mark.extra
def test_definition_that_is_not_structural_is_refused():
    item = definition()
    shape = item["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec = shape["properties"]["spec"]
    spec["properties"]["untyped"] = {}
    spec["properties"]["list"] = {"type": "array"}
    path = "spec.validation.openAPIV3Schema.properties[spec]"
    assert {cause.field for cause in definition_causes(item)} == {
        f"{path}.properties[untyped].type",
        f"{path}.properties[list].items",
    }


def shape(rule, **properties):
    """Returns a schema with a rule beside an integer `n` that may be absent."""
    rules = [rule if isinstance(rule, dict) else {"rule": rule}]
    known = {"n": {"type": "integer"}, **properties}
    spec = {"type": "object", "properties": known, "x-kubernetes-validations": rules}
    return {"type": "object", "properties": {"spec": spec}}


def told_of(shape):
    item = definition()
    item["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = shape
    start = "spec.validation.openAPIV3Schema.properties[spec]."
    causes = list(definition_causes(item))
    return [
        (c.reason.removeprefix("FieldValue"), c.field.removeprefix(start))
        for c in causes
    ]


NAMES = {"type": "array", "items": {"type": "string"}}
RULE = "x-kubernetes-validations[0]"


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ("self.n +", "rule"),
        ("absent(self.n)", "rule"),
        ("self.m > 1", "rule"),
        ("!has(self.m) || self.n > 1", "rule"),
        ("self.n", "rule"),
        ("self.n + 1", "rule"),
        ("self.n > 'a'", "rule"),
        ("self.n == 'a'", "rule"),
        ("self.n == 1 || self.n == 'a'", "rule"),
        ("self.names.all(x, x.size() == 'a')", None),
        ("self.names.all(x, x.m)", "rule"),
        ({"rule": "self.n > 1", "fieldPath": ".m"}, "fieldPath"),
        ({"rule": "self.n > 1", "message": "one\ntwo"}, "message"),
        ("has(self.n) && self.n == oldSelf.n", None),
        ("'self.m' != 'x'", None),
        ({"rule": "self.n > 1", "fieldPath": ".names"}, None),
    ],
    ids=str,
)
def test_rules_are_compiled_as_they_are_defined(rule, field):
    found = told_of(shape(rule, names=NAMES))
    assert found == ([("Invalid", f"{RULE}.{field}")] if field else [])


def test_rule_that_costs_too_much_is_refused():
    text = "self.names.all(a, self.names.exists(b, a != b))"
    found = told_of(shape(text, names=NAMES))
    assert [reason for reason, _ in found] == ["Forbidden"] * 3
    assert told_of(shape(text, names={**NAMES, "maxItems": 9})) == []


@pytest.mark.parametrize(
    ("default", "rule", "reason"),
    [
        # It is judged before the defaults inside of it.
        ({}, "self.n > 0", "Invalid"),
        ({}, "has(self.n) && self.n > 0", "Invalid"),
        ({}, "!has(self.n) || self.n > 0", None),
        # A default is its own old value.
        ({}, "self.n == oldSelf.n", "Invalid"),
        ({"n": 1}, "self.n == oldSelf.n", None),
        ({"n": 0}, "self.n > 0", "Invalid"),
        ({"m": 0}, "true", "Invalid"),
        ({"n": "a"}, "true", "TypeInvalid"),
    ],
    ids=str,
)
def test_defaults_are_judged_as_they_stand(default, rule, reason):
    schema = shape(rule, n={"type": "integer", "default": 1})
    schema["properties"]["spec"]["default"] = default
    found = {one for one, _ in told_of(schema)}
    assert found == ({reason} if reason else set())


@pytest.mark.parametrize(
    "schema",
    [
        shape("self.names.isSorted()", names=NAMES),
        shape({"rule": "true", "messageExpression": "'a'"}),
        shape("true", either={"type": "integer", "multipleOf": 2}),
        shape("true", either={"type": "integer", "oneOf": []}),
    ],
    ids=["function", "message", "multiple", "one"],
)
def test_definition_with_what_is_not_done_is_refused(schema):
    with pytest.raises(StatusError, match="this double does not do that") as error:
        told_of(schema)
    assert error.value.code == 501


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
        ("self.names.all(a, self.names.exists(b, a == b))", {"names": [1, 2]}, True),
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
        "message": "a is too much",
        "fieldPath": ".a",
        "reason": "FieldValueForbidden",
    }
    (cause,) = cel.broken_rules(
        {"a": 5}, None, {"x-kubernetes-validations": [rule]}, "spec"
    )
    assert (cause.reason, cause.field) == ("FieldValueForbidden", "spec.a")
    assert cause.message.endswith("a is too much")


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
