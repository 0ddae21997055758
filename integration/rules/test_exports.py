"""`__all__` says exactly what is offered to users, in order.

It stands in the `__init__` of a package, in the modules that the reference describes, and
where a module offers what it imports. Everywhere else a name without an underscore is what
a module offers, and a second list would say nothing.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

# Names that a module may hold without offering them.
USUAL = {"logger"}


def declared(tree: ast.Module) -> list[str] | None:
    """Returns the literal `__all__` of a module, or None if it has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return None


def defined(tree: ast.Module) -> set[str]:
    """Returns the public classes, functions and values that a module defines."""
    names: set[str] = set()
    for node in tree.body:
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                names.add(node.name)
            case ast.Assign():
                names |= {t.id for t in node.targets if isinstance(t, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return {name for name in names if not name.startswith("_")} - USUAL


def taken_in(tree: ast.Module) -> set[str]:
    """Returns the names that a module imports, or would import for type checkers."""
    lines = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    return {(a.asname or a.name).split(".")[0] for n in lines for a in n.names}


def rank(name: str) -> tuple[int, str]:
    """Returns the place of a name: constants, then classes, then the rest."""
    if name.isupper():
        return 0, name
    return (1 if name[0].isupper() else 2), name


def problems(source: str, *, for_users: bool = True) -> list[str]:
    """Returns what is wrong with the `__all__` of a module, in words."""
    tree = ast.parse(source)
    names = declared(tree)
    own = defined(tree)
    if names is None:
        return ["it has no __all__"] if own and for_users else []
    found = []
    if not for_users and set(names) <= own:
        found.append("__all__ says nothing that the names do not")
    if names != sorted(set(names), key=rank):
        found.append("__all__ is not sorted, or names something twice")
    if missing := own - set(names):
        found.append(f"__all__ lacks {', '.join(sorted(missing))}")
    dynamic = any(
        isinstance(n, ast.FunctionDef) and n.name == "__getattr__" for n in tree.body
    )
    known = own | taken_in(tree) | {"__version__"}
    if not dynamic and (unknown := set(names) - known):
        found.append(f"__all__ has unknown {', '.join(sorted(unknown))}")
    return found


@pytest.fixture(scope="session")
def described() -> set[str]:
    """Returns the modules that the reference describes."""
    root = Path(__file__).parents[2]
    pages = [page.read_text() for page in (root / "docs" / "reference").glob("*.md")]
    settings = (root / "docs" / "conf.py").read_text()
    assert '"lazy",' in settings  # of which the reference describes one function
    found = re.findall(r"automodule:: (drivetrain[\w.]*)", "".join(pages))
    return {*found, "drivetrain_core.lazy"}


def test_module_exports_exactly_what_it_defines(package, described):
    found = {}
    for file in package.sources:
        inside = file.relative_to(package.folder / "src").with_suffix("")
        for_users = file.name == "__init__.py" or ".".join(inside.parts) in described
        wrong = problems(file.read_text(), for_users=for_users)
        if wrong and file.name != "__main__.py":
            found[str(inside)] = wrong
    assert found == {}


def test_package_exports_exactly_its_public_names(package):
    module = importlib.import_module(package.module)
    for name in module.__all__:
        assert getattr(module, name, None) is not None, f"{package.module}.{name}"
    bound = {n for n, v in vars(module).items() if not inspect.ismodule(v)}
    public = {
        name
        for name in bound - {"TYPE_CHECKING", "annotations"}
        if not name.startswith("_")
    }
    own = {n for n in public if not is_standard(vars(module)[n])}
    assert own <= set(module.__all__)


def is_standard(value: object) -> bool:
    """Whether a value was imported from the standard library for the module's own use."""
    home = str(getattr(value, "__module__", "") or "")
    return home.split(".")[0] in {"typing", "importlib", "collections", "functools"}


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("def f(): ...", "it has no __all__"),
        ("__all__ = ['g', 'f']\ndef f(): ...\ndef g(): ...", "__all__ is not sorted"),
        ("__all__ = ['f', 'f']\ndef f(): ...", "__all__ is not sorted"),
        ("__all__ = ['f']\ndef f(): ...\nclass C: ...", "__all__ lacks C"),
        ("__all__ = ['f', 'g']\ndef f(): ...", "__all__ has unknown g"),
        ("__all__ = []\nLIMIT: int = 3", "__all__ lacks LIMIT"),
    ],
    ids=str,
)
def test_problems_finds_what_breaks_the_rule(source, wrong):
    assert any(problem.startswith(wrong) for problem in problems(source))


def test_problems_finds_a_list_that_says_nothing():
    source = "__all__ = ['f']\ndef f(): ..."
    assert problems(source) == []
    (wrong,) = problems(source, for_users=False)
    assert wrong == "__all__ says nothing that the names do not"


def test_problems_is_empty_for_a_module_in_order():
    source = """
from os import path
__all__ = ["LIMIT", "Thing", "do", "path"]
LIMIT = 3
_PRIVATE = 4
logger = None
class Thing: ...
def do(): ...
def _helper(): ...
"""
    assert problems(source) == []
    # It offers what it imports.
    assert problems(source, for_users=False) == []
    assert problems("def f(): ...", for_users=False) == []
    assert problems('"""Only a docstring."""') == []


def test_stub_offers_each_name_under_itself(package):
    """What a stub imports is there, and no name is offered twice."""
    for stub in sorted((package.folder / "src").rglob("*.pyi")):
        if stub.stem.endswith(("_pb2", "messages", "_extension")):
            continue
        inside = stub.relative_to(package.folder / "src").with_suffix("")
        parts = inside.parent.parts if stub.stem == "__init__" else inside.parts
        module = importlib.import_module(".".join(parts))
        lines = ast.parse(stub.read_text()).body
        assert all(isinstance(line, ast.ImportFrom) for line in lines), stub
        names = [alias for line in lines for alias in line.names]
        assert all(alias.asname == alias.name for alias in names), stub
        assert len(names) == len({alias.name for alias in names}), stub
        assert sorted(module.__all__) == sorted(alias.name for alias in names)
        assert all(hasattr(module, alias.name) for alias in names)
