"""Whether a script can come to a function of Drivetrain's at all, told from its source.

A script that never does so is not started: its training would be over before that shows.
Source tells it only where all of it is known. What is imported by a name that is computed,
or from a library that nobody knows here, may come to anything, and is left to the run.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

_OURS = "drivetrain"
_MOST_FILES = 400
_IMPORTED = (".py", ".pyc", ".pyd", ".so")
_NONE = ("\0",)  # no name begins with it

# Libraries that come to nothing of ours, and to nothing by a name out of a file.
_KNOWN = frozenset(
    """
    PIL accelerate cloudpickle cv2 datasets einops evaluate h5py huggingface_hub matplotlib
    networkx nltk numpy packaging pandas peft psutil pyarrow requests rich safetensors
    scipy seaborn sentencepiece sklearn sympy tensorboard tokenizers torch torchaudio
    torchdata torchtext torchvision tqdm transformers triton typing_extensions wandb yaml
    """.split()  # noqa: SIM905 - read as words
)
# What runs a program that no import names: in this process, or in another one.
_DYNAMIC = frozenset(
    """
    builtins cProfile code ctypes imp importlib pdb pkgutil profile runpy trace zipimport
    """.split()  # noqa: SIM905 - likewise
)
_HARMLESS = ("importlib.metadata", "importlib.resources")
_STARTING = frozenset(("pty", "subprocess"))
_DYNAMIC_NAMES = frozenset(("__builtins__", "__import__", "compile", "eval", "exec"))
_DYNAMIC_PARTS: dict[str, tuple[str, ...]] = {"hub": ("load",)}
_STARTING_PARTS: dict[str, tuple[str, ...]] = {
    "asyncio": ("create_subprocess",),
    "os": ("exec", "popen", "posix_spawn", "spawn", "system"),
}


class Reach(NamedTuple):
    """What the source of a script says of a function.

    Args:
        is_named: Whether it is named there.
        unknown: What may come to it unseen, such as "it imports trainers"; empty where
            all is known.
    """

    is_named: bool
    unknown: str

    @property
    def is_never(self) -> bool:
        """Whether the script cannot come to it."""
        return not self.is_named and not self.unknown


def reach_of(
    program: str,
    *,
    names: Collection[str],
    modules: Collection[str] = (),
    in_children: bool = False,
    is_module: bool = False,
    folder: str = ".",
) -> Reach:
    """Looks through a script and the modules of its own that it imports.

    Args:
        program: The path of the script, or the name of a module.
        names: What the function is called; several that lead to the same.
        modules: Of ours that come to it without its name.
        in_children: Whether it counts in a process that the script starts.
        is_module: Whether the program is a module's name.
        folder: Where it is run.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     script = Path(folder, "train.py")
        ...     _ = script.write_text("import torch")
        ...     reach_of(str(script), names=["accelerate"]).is_never
        True
    """
    first = Path(folder) if is_module else Path(folder, program).parent
    first = first.resolve()
    search = _Search(
        path=[str(first), *sys.path[1:]],
        first=first,
        dynamic=_DYNAMIC | _STARTING if in_children else _DYNAMIC,
        parts=_DYNAMIC_PARTS | _STARTING_PARTS if in_children else _DYNAMIC_PARTS,
    )
    if is_module:
        if program.partition(".")[0].startswith(_OURS):
            return Reach(is_named=True, unknown="")
        search.visit_import(program)
    else:
        search.visit_file(Path(folder, program).resolve())
    search.run()
    if search.ours and search.named & set(names):
        return Reach(is_named=True, unknown=search.unknown)
    unseen = (*modules, f"{_OURS}.")  # The package of all others runs whole programs.
    for module in sorted(search.ours):
        if f"{module}.".startswith(tuple(unseen)) or "examples" in module.split("."):
            return Reach(is_named=False, unknown=f"it imports {module}")
    return Reach(is_named=False, unknown=search.unknown)


@dataclass(slots=True)
class _Search:
    """Goes from file to file.

    Args:
        path: Where modules are found, as in `sys.path`.
        first: The folder that comes first there.
        dynamic: Modules that run what no import names.
        parts: How functions that do so begin, by the name of their module.
    """

    path: list[str]
    first: Path
    dynamic: frozenset[str]
    parts: dict[str, tuple[str, ...]]
    ours: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    unknown: str = ""
    _files: dict[Path, None] = field(default_factory=dict)

    def run(self) -> None:
        """Looks through all files, those that they import included."""
        done = 0
        while done < len(self._files):
            if done == _MOST_FILES:
                self.unknown = f"it imports more than {_MOST_FILES} files"
                return
            self._look(list(self._files)[done])
            done += 1

    def visit_file(self, file: Path) -> None:
        self._files.setdefault(file)

    def _look(self, file: Path) -> None:
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            self.unknown = f"{file.name} cannot be read"
            return
        for node in ast.walk(tree):
            self.named.update(_names_of(node))
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self.visit_import(alias.name)
            elif isinstance(node, ast.ImportFrom):
                self._visit_from(node, file)
            self.unknown = self.unknown or _dynamic(node, self.parts)

    def _visit_from(self, node: ast.ImportFrom, file: Path) -> None:
        members = [alias.name for alias in node.names]
        if not node.level:
            self.visit_import(node.module or "", members)
            return
        folder = file.parents[node.level - 1]
        base = [node.module] if node.module else []
        for parts in (base, *([*base, member] for member in members)):
            self._visit_files(".".join(parts), [str(folder)])
        if (folder / "__init__.py").is_file():
            self.visit_file(folder / "__init__.py")

    def visit_import(self, module: str, members: Sequence[str] = ()) -> None:
        """Follows an import to files, if they are the script's own.

        Args:
            module: Its name, with dots.
            members: What is taken from it, which may be modules too.
        """
        top = module.partition(".")[0]
        if top.startswith(_OURS):
            self.ours |= {module, *(f"{module}.{member}" for member in members)}
            return
        spec = PathFinder.find_spec(top, self.path)
        places = [spec.origin] if spec and spec.origin else []
        places += list(spec.submodule_search_locations or []) if spec else []
        is_own = any(Path(p).is_relative_to(self.first) for p in places)
        if not is_own and (top in _KNOWN or _is_standard(top, places)):
            if top in self.dynamic and not module.startswith(_HARMLESS):
                self.unknown = self.unknown or f"it imports {top}"
            return
        if not places or any("site-packages" in p or not _is_source(p) for p in places):
            self.unknown = self.unknown or f"it imports {top}"
            return
        for name in (module, *(f"{module}.{member}" for member in members)):
            self._visit_files(name, self.path)

    def _visit_files(self, module: str, path: Sequence[str]) -> None:
        for file in _files_of(module, path) if module else ():
            self.visit_file(file.resolve())


def _files_of(module: str, path: Sequence[str]) -> Iterator[Path]:
    """Yields the files that an import of a module runs, as far as they are there."""
    folders = [Path(one) for one in path]
    for part in module.split("."):
        # As Python does: the first folder that has it, or all that only lead further.
        found = next((files for f in folders if (files := _sources(f, part))), [])
        yield from found
        if found and found[0].name != "__init__.py":
            return
        inner = (folder / part for folder in folders)
        folders = [f.parent for f in found] or [one for one in inner if one.is_dir()]


def _sources(folder: Path, part: str) -> list[Path]:
    """Returns what is run for a module that lies in a folder; nothing if none does."""
    package = folder / part / "__init__.py"
    if package.is_file():
        return [package]
    # Beside source there may be what is compiled, which nobody can read.
    found = sorted(folder.glob(f"{part}.*"))
    return [one for one in found if one.suffix in _IMPORTED]


def _is_standard(top: str, places: Sequence[str]) -> bool:
    """Whether a module is one of Python's own, and not of a file of the same name."""
    if top not in sys.stdlib_module_names:
        return False
    own = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    return not places or places[0] == "frozen" or places[0].startswith(tuple(own))


def _is_source(place: str) -> bool:
    return place.endswith(".py") or Path(place).is_dir()


def _names_of(node: ast.AST) -> Iterator[str]:
    """Yields what a node may mean: a name, an attribute, a text, an import under another."""
    match node:
        case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name):
            yield name
        case ast.Constant(value=str(text)):
            yield text
        case ast.alias(name=name, asname=str()):
            yield name


def _dynamic(node: ast.AST, parts: dict[str, tuple[str, ...]]) -> str:
    """Says what a node may run that no import names; empty if it does not."""
    found: list[str] = []
    match node:
        case ast.Name(id=name):
            found = [name] if name in _DYNAMIC_NAMES else []
        case ast.Attribute(
            value=ast.Name(id=owner) | ast.Attribute(attr=owner), attr=name
        ):
            found = (
                [f"{owner}.{name}"] if name.startswith(parts.get(owner, _NONE)) else []
            )
        case ast.ImportFrom(module=str(module), names=aliases):
            starts = parts.get(module.rpartition(".")[2])
            if starts is not None:
                found = [a.name for a in aliases if a.name.startswith((*starts, "*"))]
        case ast.Import(names=aliases):
            found = [a.name for a in aliases if a.asname and a.name in parts]
    return f"it uses {found[0]}" if found else ""
