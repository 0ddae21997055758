"""Benchmarks import what is there: a rename of what they use is seen without a run."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(ROOT.glob("packages/*/src"))


def source_of(module: str, near: Path) -> Path | None:
    """Returns the file of a module, if it lies beside a benchmark or in a package."""
    for folder in [near, *SOURCES]:
        place = folder.joinpath(*module.split("."))
        kinds = (place.with_suffix(".pyi"), place.with_suffix(".py"))
        for file in (*kinds, place / "__init__.py"):
            if file.exists():
                return file
    return None


def bound_by(statement: ast.stmt) -> Iterator[str]:
    """Yields the names that a statement of a module binds, in its blocks as well."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        yield statement.name
        return
    if isinstance(statement, ast.Import | ast.ImportFrom):
        for alias in statement.names:
            yield alias.asname or alias.name.split(".")[0]
    for node in ast.iter_child_nodes(statement):
        if isinstance(node, ast.stmt | ast.ExceptHandler):
            yield from bound_by(node)
        for name in ast.walk(node):
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                yield name.id


def names_of(file: Path) -> set[str]:
    """Returns what may be imported from a file: also what its stub offers."""
    tree = ast.parse(file.read_text())
    names = {name for statement in tree.body for name in bound_by(statement)}
    stub = file.with_suffix(".pyi")
    if stub.exists():
        names |= {
            n for line in ast.parse(stub.read_text()).body for n in bound_by(line)
        }
    if file.name == "__init__.py":
        names |= {other.stem for other in file.parent.glob("*.py")}
        names |= {other.parent.name for other in file.parent.glob("*/__init__.py")}
    return names


def missing(source: str, near: Path) -> list[str]:
    """Returns what a source takes from modules of the repository that lack it."""
    tree = ast.parse(source)
    found, modules = [], {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            file = source_of(node.module, near)
            for alias in node.names if file else ():
                if alias.name not in names_of(file):
                    found.append(f"{node.module}.{alias.name}")
                inner = source_of(f"{node.module}.{alias.name}", near)
                if inner:
                    modules[alias.asname or alias.name] = inner
        elif isinstance(node, ast.Import):
            for alias in node.names:
                file = source_of(alias.name, near)
                if file:
                    modules[alias.asname or alias.name] = file
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in modules:
            name = ast.unparse(node.value)
            if node.attr not in names_of(modules[name]):
                found.append(f"{name}.{node.attr}")
    return sorted(found)


@pytest.mark.slow
def test_benchmarks_import_what_is_there(package):
    folder = package.folder / "benchmarks"
    found = {
        file.name: names
        for file in sorted(folder.rglob("*.py"))
        if (names := missing(file.read_text(), file.parent))
    }
    assert found == {}


NAMES_BARS = """
import os, runpy, sys, traceback
import torch, drivetrain_testing
for file in sys.argv[1:]:
    pid = os.fork()
    if pid == 0:
        sys.argv, sys.path[0] = [file, "--help"], os.path.dirname(file)
        sys.stdout = open(os.devnull, "w")
        try:
            runpy.run_path(file, run_name="__main__")
        except SystemExit as end:
            os._exit(end.code or 0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    if os.waitpid(pid, 0)[1]:
        print(file)
"""


@pytest.mark.slow
def test_bars_can_be_named_from_anywhere(tmp_path):
    found = list(map(str, ROOT.glob("packages/*/benchmarks/bars.py")))
    assert len(found) > 10
    command = [sys.executable, "-P", "-c", NAMES_BARS, *found]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "", done.stderr


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from sibling import there, gone", ["sibling.gone"]),
        ("import sibling\nsibling.there()\nsibling.gone()", ["sibling.gone"]),
        (
            "from drivetrain_core import accelerate, NoSuchName",
            ["drivetrain_core.NoSuchName"],
        ),
        ("from drivetrain_core import _build\n_build.built()", ["_build.built"]),
        (
            "def f():\n    from drivetrain_core._build import built",
            ["drivetrain_core._build.built"],
        ),
        ("import os\nfrom torch import nothing\nos.nothing", []),
    ],
    ids=str,
)
def test_missing_finds_what_is_gone(source, names, tmp_path):
    (tmp_path / "sibling.py").write_text("if True:\n    def there(): ...\n")
    assert missing(source, tmp_path) == names
