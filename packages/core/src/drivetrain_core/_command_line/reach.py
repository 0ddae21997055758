"""Whether a script can come to a function of Drivetrain's at all, told from its source.

A script that never does so is not started: its training would be over before that shows.
Source tells it only where all of it is known. What is imported by a name that is computed,
or from a library that nobody knows here, may come to anything, and is left to the run.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

_OURS = "drivetrain"
_MOST_FILES = 400

# Libraries that come to nothing of ours, and to nothing by a name out of a file.
_KNOWN = frozenset(
    """
    PIL accelerate cloudpickle cv2 datasets einops evaluate h5py huggingface_hub matplotlib
    networkx nltk numpy packaging pandas peft psutil pyarrow requests rich safetensors
    scipy seaborn sentencepiece sklearn sympy tensorboard tokenizers torch torchaudio
    torchdata torchtext torchvision tqdm transformers triton typing_extensions wandb yaml
    """.split()  # noqa: SIM905 - read as words
)
# What runs a program that no import names: as it is imported, or as it is used. A star
# is what takes all of a module, or the module under another name.
_DYNAMIC = re.compile(
    r"import (builtins|cProfile|code|ctypes|imp|pdb|pkgutil|profile|runpy|trace|zipimport"
    r"|importlib(?!\.metadata|\.resources))\b.*"
    r"|use (__builtins__|__import__|compile|eval|exec|hub\.(load.*|\*))"
)
# Likewise in another process.
_STARTING = re.compile(
    r"import (pty|subprocess)\b.*"
    r"|use (asyncio\.create_subprocess|os\.(exec|popen|posix_spawn|spawn|system)).*"
    r"|use (asyncio|os)\.\*"
)


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
    if is_module and program.startswith(_OURS):
        return Reach(is_named=True, unknown="")
    importlib.invalidate_caches()  # A file may be newer than the last look at its folder.
    script = Path(folder, program).resolve()
    first = Path(folder).resolve() if is_module else script.parent
    search = _Search(first=str(first), in_children=in_children)
    if is_module:
        search.visit_import(program, [program])
    else:
        search.files.append(script)
    search.run()
    if search.ours and search.named & set(names):
        return Reach(is_named=True, unknown=search.unknown)
    unseen = (*modules, f"{_OURS}.")  # The package of all others runs whole programs.
    for module in sorted(search.ours):
        if f"{module}.".startswith(unseen) or "examples" in module.split("."):
            return Reach(is_named=False, unknown=f"it imports {module}")
    return Reach(is_named=False, unknown=search.unknown)


@dataclass(slots=True, kw_only=True)
class _Search:
    """Goes from file to file.

    Args:
        first: The folder where modules are looked for first.
        in_children: Whether a process that is started counts.
        files: Those to look through; it grows with what they import.
        ours: The modules of ours that they import.
        named: All names in them.
        unknown: The first thing in them that may come to anything.
    """

    first: str
    in_children: bool
    files: list[Path] = field(default_factory=list)
    ours: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    unknown: str = ""

    def run(self) -> None:
        """Looks through all files, those that they import included."""
        for number, file in enumerate(self.files):
            if number == _MOST_FILES:
                self.unknown = f"it imports more than {_MOST_FILES} files"
                return
            try:
                tree = ast.parse(file.read_bytes())
            except (OSError, SyntaxError, ValueError, RecursionError):
                self.unknown = f"{file.name} cannot be read"
                continue
            for node in ast.walk(tree):
                self._look(node, file)

    def _look(self, node: ast.AST, file: Path) -> None:
        self.named.update(_names_of(node))
        for use in _uses_of(node):
            if self._is_dynamic(f"use {use}"):
                self.unknown = self.unknown or f"it uses {use}"
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    self.visit_import(alias.name, [alias.name])
            case ast.ImportFrom(module=module, names=aliases, level=level):
                base = [module] if module else []
                inner = [".".join([*base, alias.name]) for alias in aliases]
                if level:
                    self._visit_files([*base, *inner], [str(file.parents[level - 1])])
                else:
                    self.visit_import(module or "", [*base, *inner])

    def visit_import(self, module: str, names: Sequence[str]) -> None:
        """Follows an import to files, if they are the script's own.

        Args:
            module: Its name, with dots.
            names: It, and what is taken from it, which may be modules too.
        """
        top = module.partition(".")[0]
        if top.startswith(_OURS):
            self.ours.update(names)
            return
        is_known = top in _KNOWN or top in sys.stdlib_module_names
        others = [one for one in sys.path[1:] if "site-packages" not in one]
        if self._visit_files(names, [self.first, *([] if is_known else others)]):
            return
        if not is_known or self._is_dynamic(f"import {module}"):
            self.unknown = self.unknown or f"it imports {top}"

    def _is_dynamic(self, text: str) -> bool:
        starting = self.in_children and _STARTING.fullmatch(text)
        return bool(starting or _DYNAMIC.fullmatch(text))

    def _visit_files(self, names: Sequence[str], path: Sequence[str]) -> bool:
        found = [file for name in names for file in _files_of(name, path)]
        self.files += [one for one in dict.fromkeys(found) if one not in self.files]
        return bool(found)


def _files_of(module: str, path: Sequence[str]) -> Iterator[Path]:
    """Yields the files that an import of a module runs, as far as they are there."""
    for part in module.split("."):
        spec = PathFinder.find_spec(part, path)
        if spec is None:
            return
        if spec.origin and spec.has_location:
            yield Path(spec.origin).resolve()
        path = list(spec.submodule_search_locations or ())


def _names_of(node: ast.AST) -> Iterator[str]:
    """Yields what a node may mean: a name, an attribute, a text, an import under another."""
    match node:
        case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name):
            yield name
        case ast.Constant(value=str(text)):
            yield text
        case ast.alias(name=name, asname=str()):
            yield name


def _uses_of(node: ast.AST) -> list[str]:
    """Returns what a node uses, by the last part of its module's name and its own."""
    match node:
        case ast.Name(id=name):
            return [name]
        case ast.Attribute(
            value=ast.Name(id=owner) | ast.Attribute(attr=owner), attr=name
        ):
            return [f"{owner}.{name}"]
        case ast.ImportFrom(module=str(module), names=aliases):
            return [f"{module.rpartition('.')[2]}.{alias.name}" for alias in aliases]
        case ast.Import(names=aliases):
            return [f"{alias.name}.*" for alias in aliases if alias.asname]
    return []
