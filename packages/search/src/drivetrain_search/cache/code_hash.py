"""A hash of what a program's functions and modules do, for the key of the cache.

The compiled code is hashed rather than its source: it is what runs, also where the file
was edited after its import or where there is none, and comments do not change it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator

# Their versions tell what they do, and following them would take seconds.
_KNOWN = {*sys.stdlib_module_names, "drivetrain_core", "numpy", "torch"}
# A program that calls more than this is told apart by what was reached first.
_MOST = 5_000
# What every module has, such as its hooks and whether it trains.
_OF_ALL_MODULES = frozenset(vars(nn.Module()))


def hash_code(*values: object) -> str:
    """Returns a hash of functions, modules and classes, and of what they call.

    A module stands for its class, those of all modules in it, and their settings: a
    number of attention heads leaves no trace in the shapes. What a hashed function
    names counts too (functions, classes, plain values, settings of objects), but for
    the insides of torch, numpy and the standard library, which versions tell.

    Args:
        values: Functions, methods, partials, modules, classes, or None.

    Example:
        >>> one, two = (functools.partial(max, n) for n in (1, 2))
        >>> hash_code(one) == hash_code(one), hash_code(one) == hash_code(two)
        (True, False)
    """
    walk = _Walk()
    for value in values:
        walk.add(value)
    return walk.digest.hexdigest()


class _Walk:
    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.seen: dict[int, tuple[int, object]] = {}

    def add(self, value: object) -> None:
        """Hashes a value and what it leads to, each thing once."""
        waiting = [value]
        while waiting and len(self.seen) < _MOST:
            part = waiting.pop()
            if _is_plain(part):
                self._update(json.dumps(part, sort_keys=True))
            elif id(part) in self.seen:
                self._update(f"again {self.seen[id(part)][0]}")
            else:
                # Kept, so that no other object gets the same id.
                self.seen[id(part)] = len(self.seen), part
                for found in _parts(part):
                    if isinstance(found, str):
                        self._update(found)
                    else:
                        waiting.append(found[0])

    def _update(self, text: str) -> None:
        self.digest.update(f"{len(text)}:{text};".encode(errors="backslashreplace"))


def _parts(value: object) -> Iterator[str | tuple[object]]:
    """Yields texts to hash, and in tuples of one what is to be hashed later."""
    yield _name(value)
    if isinstance(value, functools.partial):
        yield from ((part,) for part in (value.func, *value.args))
        yield from ((value.keywords[key],) for key in sorted(value.keywords))
        yield " ".join(sorted(value.keywords))
    elif isinstance(value, MethodType):
        yield (value.__func__,)
        yield (value.__self__,)
    elif isinstance(value, FunctionType):
        yield from _function(value)
    elif isinstance(value, type):
        yield from _class(value)
    elif isinstance(value, nn.Module):
        for name, module in value.named_modules():
            yield f"{name}={_settings(module)}"
            yield (type(module),)
            own = sorted(vars(module).items())
            yield from ((part,) for _, part in own if _is_code(part))
    else:
        yield (type(value),)
        yield _settings(value)


def _function(function: FunctionType) -> Iterator[str | tuple[object]]:
    if "__wrapped__" in vars(function):
        yield (vars(function)["__wrapped__"],)
    if _is_known(function):
        return
    yield from _code(function.__code__)
    names = _names(function.__code__)
    called = [function.__globals__.get(name) for name in names]
    for value in list(called):
        if isinstance(value, ModuleType) and not _is_known(value):
            called += [vars(value).get(name) for name in names]
    called += [cell.cell_contents for cell in function.__closure__ or () if _full(cell)]
    called += function.__defaults__ or ()
    called += [v for _, v in sorted((function.__kwdefaults__ or {}).items())]
    yield from ((part,) for part in called if not isinstance(part, ModuleType))


def _class(kind: type) -> Iterator[str | tuple[object]]:
    for base in kind.__mro__:
        if _is_known(base):
            continue
        for name, value in sorted(vars(base).items()):
            if isinstance(value, staticmethod | classmethod):
                value = value.__func__
            elif isinstance(value, property):
                value = value.fget
            # Those of two underscores hold the documentation and the file's lines.
            if _is_code(value) or (_is_plain(value) and not name.startswith("__")):
                yield name
                yield (value,)


def _code(code: CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield " ".join((*code.co_names, *code.co_varnames))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        elif isinstance(constant, frozenset):
            # The order of a set of texts is another one in every process.
            yield " ".join(sorted(map(repr, constant)))
        else:
            yield repr(constant)


def _names(code: CodeType) -> list[str]:
    inner = [c for c in code.co_consts if isinstance(c, CodeType)]
    return [*code.co_names, *(name for part in inner for name in _names(part))]


def _name(value: object) -> str:
    named = isinstance(value, BuiltinFunctionType | FunctionType | type)
    owner = value if named else type(value)
    return f"{owner.__module__}.{getattr(owner, '__qualname__', '')}"


def _is_code(value: object) -> bool:
    kinds = (BuiltinFunctionType, FunctionType, MethodType, functools.partial, type)
    return isinstance(value, kinds)


def _is_known(value: object) -> bool:
    attribute = "__name__" if isinstance(value, ModuleType) else "__module__"
    return str(getattr(value, attribute, "")).split(".")[0] in _KNOWN


def _full(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:  # The function is named before it is made.
        return False
    return True


def _is_plain(value: object, depth: int = 3) -> bool:
    if isinstance(value, dict):
        named = all(isinstance(key, str) for key in value)
        return named and _is_plain(list(value.values()), depth)
    if isinstance(value, tuple | list):
        short = depth > 0 and len(value) < 100
        return short and all(_is_plain(part, depth - 1) for part in value)
    return value is None or isinstance(value, bool | int | float | str)


def _settings(owner: object, *, deep: bool = True) -> str:
    """Returns the plain values of an object, and those of the plain objects in it."""
    found: dict[str, Any] = {}
    for name, value in getattr(owner, "__dict__", {}).items():
        # Of torch's own classes, what is private only follows from what is not.
        is_private = str(name).startswith("_") and _is_known(type(owner))
        if is_private or name in _OF_ALL_MODULES:
            continue
        if _is_plain(value):
            found[str(name)] = value
        elif deep and hasattr(value, "__dict__") and not isinstance(value, nn.Module):
            found[str(name)] = _settings(value, deep=False)
    return json.dumps(found, sort_keys=True)
