"""Which files of the repository use which, read from their text; nothing is imported."""

from __future__ import annotations

import ast
import tomllib
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path

from references import Reference, references

__all__ = ["distances", "files_used", "read_graph"]

Graph = Mapping[Path, frozenset[Path]]


def read_graph(root: Path, gone: Iterable[Path] = ()) -> Graph:
    """Returns the files that each Python file of a checkout uses.

    Args:
        root: The checkout.
        gone: Files that may be there no more, but are used as if they were.
    """
    sources = [
        folder
        for pattern in ("packages/*/src", "integration/*/src", "integration/*/*/src")
        for folder in sorted(root.glob(pattern))
    ]
    modules = {
        _module(file, folder): file
        for folder in sources
        for file in [
            *(one for one in gone if one.is_relative_to(folder)),
            *sorted(folder.rglob("*.py")),
        ]
    }
    stubs = {
        name: _homes(file.with_suffix(".pyi").read_text("utf-8"))
        for name, file in modules.items()
        if file.with_suffix(".pyi").exists()
    }
    plugins = frozenset(
        modules[module]
        for module in _entry_points(root)
        if module in modules  # others are not of this checkout
    )
    edges = {}
    for file in _python_files(root):
        is_source = _is_source(file.relative_to(root))
        near = modules if is_source else {**modules, **_beside(file, root)}
        wanted = references(file.read_text("utf-8"))
        found = files_used(wanted, near, stubs)
        if not is_source:
            found |= {path for path in _conftests(file, root) if path != file}
            if file.is_relative_to(root / "integration"):
                # All packages are installed there, and are found by their entry points.
                found |= plugins
        edges[file] = frozenset(found - {file})
    return edges


def files_used(
    wanted: Iterable[Reference],
    modules: Mapping[str, Path],
    stubs: Mapping[str, Mapping[str, str]],
) -> set[Path]:
    """Returns the files that stand behind references.

    Args:
        wanted: The references.
        modules: The file of each module.
        stubs: Of modules whose names are loaded when they are used: in which module each
            name is.
    """
    found = set()
    for module, name in wanted:
        parts = module.split(".")
        heads = [".".join(parts[: end + 1]) for end in range(len(parts))]
        # To import a module runs those above it.
        found |= {modules[head] for head in heads if head in modules}
        # A package that is run is its __main__.
        if name == "*":
            found |= {f for one, f in modules.items() if one.startswith(f"{module}.")}
        inside = f"{module}.{name or '__main__'}"
        if inside in modules:
            found.add(modules[inside])
        # In a string, the last part may be a name.
        for home, each in ((module, name), (".".join(parts[:-1]), parts[-1])):
            if stubs.get(home, {}).get(each) in modules:
                found.add(modules[stubs[home][each]])
    return found


def distances(graph: Graph, changed: Iterable[Path]) -> dict[Path, int]:
    """Returns the files that use changed ones, and over how many others at least.

    Args:
        graph: What each file uses.
        changed: Files; each is at the distance 0 of itself.
    """
    users: dict[Path, set[Path]] = {}
    for file, used in graph.items():
        for one in used:
            users.setdefault(one, set()).add(file)
    found = dict.fromkeys(changed, 0)
    waiting = deque(found)
    while waiting:
        file = waiting.popleft()
        for user in users.get(file, ()):
            if user not in found:
                found[user] = found[file] + 1
                waiting.append(user)
    return found


def _python_files(root: Path) -> list[Path]:
    found = [
        *root.glob("packages/*/src/**/*.py"),
        *root.glob("packages/*/tests/**/*.py"),
    ]
    return sorted({*found, *root.glob("integration/**/*.py")})


def _module(file: Path, folder: Path) -> str:
    parts = file.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _homes(stub: str) -> dict[str, str]:
    """Returns the module of each name that a stub offers."""
    nodes = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in nodes for alias in node.names}


def _entry_points(root: Path) -> Iterable[str]:
    for file in root.glob("packages/*/pyproject.toml"):
        project = tomllib.loads(file.read_text("utf-8"))["project"]
        for group in project.get("entry-points", {}).values():
            yield from (target.partition(":")[0] for target in group.values())


def _is_source(file: Path) -> bool:
    return "src" in file.parts and "tests" not in file.parts


def _beside(file: Path, root: Path) -> dict[str, Path]:
    """Returns modules that a test finds beside it, or in a folder above, by their name."""
    folders = [file.parent, *(p for p in file.parents if p.name == "tests")]
    found = {one.stem: one for f in folders for one in sorted(f.glob("*.py"))}
    if file.is_relative_to(root / "integration"):
        # What several programs there share is a folder of its own.
        for one in sorted(root.glob("integration/*/*.py")):
            found.setdefault(f"{one.parent.name}.{one.stem}", one)
            if one.stem == "__init__":
                found.setdefault(one.parent.name, one)
    return found


def _conftests(file: Path, root: Path) -> Iterable[Path]:
    above = [folder for folder in file.parents if folder.is_relative_to(root)]
    return [p for folder in above if (p := folder / "conftest.py").exists()]
