"""Every public name has a docstring, and a place in the reference."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
from pathlib import Path
from types import ModuleType

import pytest


def described_values(source: str) -> set[str]:
    """Returns the values of a module that are followed by a string that explains them."""
    body = ast.parse(source).body
    found = set()
    for node, after in itertools.pairwise(body):
        text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if text and isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            found.add(ast.unparse(target))
    return found


def undocumented(module: ModuleType, sources: list[str]) -> list[str]:
    """Returns the public names of a module that have no docstring of their own."""
    values = set().union(*map(described_values, sources))
    found = []
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value):
            # Its own: a class must not pass with the docstring of its parent.
            text = vars(value).get("__doc__")
        elif inspect.isroutine(value) or inspect.ismodule(value):
            text = value.__doc__
        else:
            text = name if name in values or name == "__version__" else None
        if not text:
            found.append(name)
    return found


def in_reference(page: str, module: str, name: str) -> bool:
    """Whether a reference page lists a name, by its module or by itself."""
    whole = rf"automodule:: {re.escape(module)}\n\s*:members:\s"
    alone = rf"auto\w+:: {re.escape(module)}\.{re.escape(name)}\s"
    return bool(re.search(whole, page) or re.search(alone, page))


def test_public_names_have_docstrings(package):
    module = importlib.import_module(package.module)
    sources = [file.read_text() for file in package.sources]
    assert undocumented(module, sources) == []


def test_public_names_stand_in_the_reference(package, root):
    names = set(importlib.import_module(package.module).__all__) - {"__version__"}
    page = (root / "docs" / "reference" / f"{package.name}.md").read_text() + "\n"
    missing = {n for n in names if not in_reference(page, package.module, n)}
    assert missing == set()


def environment_variables(source: str) -> set[str]:
    """Returns the environment variables of our own that a source names.

    What ends with an underscore is the beginning of several.
    """
    return set(re.findall(r"[\"'](DRIVETRAIN_[A-Z0-9_]*[A-Z0-9])[\"']", source))


def test_environment_variables_stand_on_their_page(package, root):
    page = (root / "docs" / "reference" / "environment.md").read_text()
    sources = [file.read_text() for file in package.sources]
    named = set().union(*map(environment_variables, sources))
    assert {name for name in named if f"`{name}`" not in page} == set()


def test_environment_variables_are_found_in_quotes():
    source = "os.environ.get(\"DRIVETRAIN_A_B\")\nos.environ['DRIVETRAIN_C3']"
    assert environment_variables(source) == {"DRIVETRAIN_A_B", "DRIVETRAIN_C3"}


@pytest.fixture
def sample(tmp_path: Path) -> tuple[ModuleType, str]:
    source = '''
__all__ = ["A", "B", "C", "LIMIT", "SIZE", "f", "g"]
class A:
    """Documented."""
class B(A): ...
class C: ...
LIMIT = 3
"""The most of them."""
SIZE = 4
def f():
    """Documented."""
def g(): ...
'''
    module = ModuleType("sample")
    exec(source, vars(module))  # noqa: S102
    return module, source


def test_undocumented_finds_what_breaks_the_rule(sample):
    module, source = sample
    assert undocumented(module, [source]) == ["B", "C", "SIZE", "g"]


def test_in_reference_needs_the_module_or_the_name():
    page = (
        "```{eval-rst}\n.. automodule:: a_b\n   :members:\n```\n.. autofunction:: c.f\n"
    )
    assert in_reference(page, "a_b", "anything")
    assert in_reference(page, "c", "f")
    assert not in_reference(page, "c", "g")
    assert not in_reference(page, "a", "b")
