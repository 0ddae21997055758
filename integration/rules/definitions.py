"""Checks the rules of all definitions of kinds as an API server does.

An API server compiles each rule, and runs those beside a default on that default as it
stands, before the defaults within it are put in: one that fails there makes it refuse the
whole definition. `python integration/rules/definitions.py [FILE ...]` says what is wrong.
"""

from __future__ import annotations

import sys
from pathlib import Path

import cel
import yaml

ROOT = Path(__file__).resolve().parents[2]
RULES = "x-kubernetes-validations"


def definitions(text):
    """Returns the definitions of kinds that a text holds."""
    items = yaml.safe_load_all(text)
    kind = "CustomResourceDefinition"
    return [one for one in items if isinstance(one, dict) and one.get("kind") == kind]


def schemas(schema, path=""):
    """Returns a schema and all within it, each with its path."""
    yield path, schema
    for name, inner in (schema.get("properties") or {}).items():
        yield from schemas(inner, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield from schemas(schema[name], f"{path}[]")


def samples(schema):
    """Returns what the rules of a schema are run on, and what they may say of it.

    They must hold for its default. An object of which nothing is required may be empty:
    they must be able to say something of that.
    """
    if "default" in schema:
        yield schema["default"], {True}
    if schema.get("type") == "object" and not schema.get("required"):
        yield {}, {True, False}


def result_of(rule, value):
    """Returns what a rule says of a value, or why it cannot be run on it."""
    context = cel.Context()
    for name in ("self", "oldSelf"):
        context.add_variable(name, value)
    try:
        return cel.evaluate(rule, context)
    except (LookupError, ValueError, TypeError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


def faults(definition):
    """Returns what an API server would say of the rules of a definition."""
    found = []
    for version in definition["spec"]["versions"]:
        for path, schema in schemas(version["schema"]["openAPIV3Schema"]):
            for one in schema.get(RULES) or ():
                rule = one["rule"]
                try:
                    cel.compile(rule)
                except ValueError as error:
                    found.append(f"{path}: {rule}: does not compile: {error}")
                    continue
                for value, right in samples(schema):
                    said = result_of(rule, value)
                    if not isinstance(said, bool) or said not in right:
                        found.append(f"{path}: {rule}: on {value!r}: {said}")
    return found


def main(paths):
    """Checks files, by default all of the packages; returns the exit status."""
    paths = paths or sorted(map(str, ROOT.glob("packages/**/crds/*.yaml")))
    wrong, count = [], 0
    for path in paths:
        for one in definitions(Path(path).read_text()):
            count += 1
            wrong += [f"{path}: {fault}" for fault in faults(one)]
    print(*wrong, f"{count} definitions, {len(wrong)} faults", sep="\n")
    return int(bool(wrong) or not count)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
