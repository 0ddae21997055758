"""Names that went stay away: `renamed.json` lists them, and no source uses one.

Of a class, the old name is free again in packages that neither had it nor have what took its place.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

RENAMED = json.loads(Path(__file__).with_name("renamed.json").read_text())
# Where old names are declared, tested, or told of.
FREE = {
    "renamed.json",
    "CHANGELOG.md",
    "_require_elastic.py",
    Path(__file__).name,
}

# Another thing of the same package had the name already, and keeps it.
OTHERS = {"drivetrain_health": {"Outcome"}}


def retired_classes() -> dict[str, set[str]]:
    """Returns the old names of classes, by the package in which they went."""
    found: dict[str, set[str]] = {}
    for old, new in RENAMED.items():
        gone, now = old.rpartition(".")[2], new.rpartition(".")[2]
        if re.fullmatch(r"[A-Z][A-Za-z]+", gone) and gone != now:
            for package in {old.partition(".")[0], new.partition(".")[0]}:
                found.setdefault(package, set()).add(gone)
    for package, names in OTHERS.items():
        found[package] -= names
    return found


def classes_and_uses(tree: ast.AST) -> Iterator[str]:
    """Yields the names of classes that a source defines, and all names that it reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name):
            yield node.id


def test_no_source_uses_a_class_that_was_renamed(package):
    gone = retired_classes().get(package.module, set())
    found = {
        str(file.relative_to(package.folder)): sorted(used)
        for file in package.sources
        if (used := gone & set(classes_and_uses(ast.parse(file.read_text()))))
    }
    assert found == {}


def is_there(root: Path, name: str) -> bool:
    """Returns whether a dotted name is that of a module today: a name may come back."""
    inside = name.replace(".", "/")
    found = [
        root.glob(f"packages/*/src/{inside}{end}") for end in (".py", "/__init__.py")
    ]
    return any(True for files in found for _ in files)


@pytest.mark.parametrize("place", ["packages", "integration", "docs"])
def test_no_text_names_a_module_that_moved(root, place):
    names = sorted(RENAMED, key=len, reverse=True)
    names = [name for name in names if not is_there(root, name)]
    pattern = re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, names))})(?!\w)")
    found = {}
    for file in (root / place).rglob("*"):
        kept = file.suffix in {".py", ".pyi", ".md", ".toml"} and file.name not in FREE
        if not kept or ".nox" in file.parts:
            continue
        text = file.read_text()
        if old := pattern.findall(text):
            found[str(file.relative_to(root))] = sorted(set(old))
    assert found == {}
