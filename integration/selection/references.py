"""What a Python file refers to: modules, and names in them; a pure function of its text."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Reference", "references"]

# Programs in strings, commands that are run as `-m MODULE`, what is imported late.
_IMPORT = re.compile(r"^\s*(?:from|import) [\w.]+", re.MULTILINE)
_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")
# Before a part that is known when the program runs.
_PACKAGE = re.compile(r"([A-Za-z_]\w*(?:\.\w+)+)\.$")


class Reference(NamedTuple):
    """A module, and the name that is wanted of it.

    The name is empty for the module itself, and `*` for all modules of a package.
    """

    module: str
    name: str = ""


def references(text: str) -> set[Reference]:
    """Returns what a file refers to, in its imports and in its strings.

    What is imported for type checkers alone is left out, for it cannot break a test.

    Args:
        text: The source.
    """
    return set(_of_tree(ast.parse(text)))


def _of_tree(tree: ast.AST) -> Iterator[Reference]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            for other in node.orelse:
                yield from _of_node(other)
        else:
            yield from _of_node(node)


def _of_node(node: ast.AST) -> Iterator[Reference]:
    if isinstance(node, ast.Import):
        yield from (Reference(alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        if node.module and not node.level:
            yield from (Reference(node.module, alias.name) for alias in node.names)
    elif isinstance(node, ast.Call):
        # A module that is named when it is called for may be any of its package.
        for part in (p for a in node.args for p in getattr(a, "values", ())):
            if package := _PACKAGE.search(str(getattr(part, "value", ""))):
                yield Reference(package[1], "*")
        yield from _of_tree(node)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield from _of_string(node.value)
    else:
        yield from _of_tree(node)


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test).rpartition(".")[2] == "TYPE_CHECKING"


def _of_string(text: str) -> Iterator[Reference]:
    if _IMPORT.search(text):
        try:
            yield from references(text)
        except SyntaxError:
            # A part of a program, or a page with one.
            for line in _IMPORT.findall(text):
                yield Reference(line.split()[1])
    yield from (Reference(found) for found in _MODULE.findall(text))
