"""A package imports itself, core, and what it declares; importing it loads little."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

# What a package stands on besides core.
FLOORS = {
    "drivetrain_cloud": {"drivetrain_elastic", "drivetrain_health"},
    "drivetrain_elastic": {"drivetrain_health"},
    "drivetrain_horovod": {"drivetrain_comm", "drivetrain_elastic"},
}
# Distributions whose import name is another one.
IMPORT_NAMES = {
    "common-expression-language": "cel",
    "grpcio": "grpc",
    "protobuf": "google",
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
}


def imported(tree: ast.AST) -> Iterator[str]:
    """Yields the top-level module of every import, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def imported_at_once(tree: ast.Module) -> Iterator[str]:
    """Yields the top-level modules that importing the file itself loads."""
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test)
        ):
            yield from imported(node)
        elif isinstance(node, ast.ClassDef):
            yield from imported_at_once(ast.Module(body=node.body, type_ignores=[]))


def import_name(requirement: str) -> str:
    """Returns the module that a requirement installs."""
    name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower()
    return IMPORT_NAMES.get(name, name.replace("-", "_"))


def undeclared(
    source: str, base: set[str], optional: set[str], stem: str = ""
) -> list[str]:
    """Returns the modules that a source imports without a declaration.

    An optional dependency may be imported inside a function, never with the file,
    unless the file is named after it, and so loaded by those who ask for it only.
    """
    tree = ast.parse(source)
    known = base | sys.stdlib_module_names
    late = set(imported(tree)) - known - optional
    named = {n for n in optional if stem == n or stem.startswith(f"_{n}_")}
    early = set(imported_at_once(tree)) - known - named
    return sorted(late | early)


def test_package_imports_only_what_it_declares(package, modules):
    declared = package.project.get("dependencies", [])
    extras = package.project.get("optional-dependencies", {}).values()
    base = {package.module, *map(import_name, declared)}
    optional = {import_name(line) for lines in extras for line in lines}
    found = {
        str(file.relative_to(package.folder)): names
        for file in package.sources
        if (names := undeclared(file.read_text(), base, optional, file.stem))
    }
    assert found == {}


def test_package_declares_what_stands_below_it(package, modules):
    if package.name == "drivetrain":
        return  # the meta package is all of them
    declared = set(map(import_name, package.project.get("dependencies", [])))
    below = FLOORS.get(package.module, set())
    assert declared & modules == {"drivetrain_core", *below} - {package.module}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import drivetrain_optim", ["drivetrain_optim"]),
        ("from drivetrain_optim.algorithms._agd import AGD", ["drivetrain_optim"]),
        ("def f():\n    import drivetrain_optim.cli", ["drivetrain_optim"]),
        ("import matplotlib.pyplot", ["matplotlib"]),
        ("class A:\n    import matplotlib", ["matplotlib"]),
        ("def f():\n    import matplotlib", []),
        ("if TYPE_CHECKING:\n    import matplotlib", []),
        ("import os, numpy\nfrom drivetrain_core import Plan", []),
    ],
    ids=str,
)
def test_undeclared_finds_what_breaks_the_rule(source, names):
    base = {"drivetrain_core", "numpy"}
    assert undeclared(source, base, {"matplotlib"}) == names


def loaded_by(statement: str) -> set[str]:
    """Returns the modules that a fresh interpreter has after a statement."""
    code = f"{statement}; import sys; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_import_of_core_does_not_import_torch():
    loaded = loaded_by("import drivetrain_core")
    assert "drivetrain_core" in loaded
    assert "torch" not in loaded


@pytest.mark.slow
def test_loaded_by_sees_torch_when_it_is_imported():
    assert "torch" in loaded_by("import torch")
