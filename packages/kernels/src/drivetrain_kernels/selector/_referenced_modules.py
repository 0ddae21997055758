"""Modules that a function refers to: by closure, defaults, globals or its object."""

from __future__ import annotations

import functools
from collections import deque
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MOST_OBJECTS = 10_000
_MOST_ITEMS = 1_000  # more is data


def referenced_modules(*roots: object) -> list[nn.Module]:
    """Returns the outermost modules that functions can come to, each once.

    A function comes to what it closes over, its defaults, the globals that it names and
    the object that it is a method of; from there to attributes and items. Classes and
    Python's modules are not entered, nor are long lists.

    Args:
        roots: Functions, callable objects or modules; others, as None, reach nothing.

    Example:
        >>> body, head = nn.Linear(2, 2), nn.Linear(2, 1)
        >>> found = referenced_modules(lambda x: head(body(x)))
        >>> len(found), body in found, head in found
        (2, True, True)
    """
    found: dict[int, nn.Module] = {}
    # What was seen is kept, since an object made on the way would leave its id free.
    seen: dict[int, object] = {}
    left = deque(roots)  # the nearest first
    while left and len(seen) < _MOST_OBJECTS:
        one = left.popleft()
        if id(one) in seen:
            continue
        seen[id(one)] = one
        if isinstance(one, nn.Module):
            found[id(one)] = one
        else:
            left.extend(_neighbours(one))
    inner = {id(part) for m in found.values() for part in list(m.modules())[1:]}
    return [m for key, m in found.items() if key not in inner]


def _neighbours(one: object) -> Iterable[Any]:
    if isinstance(one, FunctionType):
        return _of_function(one)
    if isinstance(one, MethodType):
        return (one.__self__, one.__func__)
    if isinstance(one, functools.partial):
        return (one.func, one.args, one.keywords)
    if isinstance(one, type | ModuleType):
        return ()
    if isinstance(one, dict | list | tuple | set | frozenset):
        held = one.values() if isinstance(one, dict) else one
        return list(held) if len(one) <= _MOST_ITEMS else ()
    # A callable object's own class holds what it does when it is called.
    call = vars(type(one)).get("__call__")
    attributes = vars(one).values() if hasattr(one, "__dict__") else ()
    return [*attributes, *([call] if isinstance(call, FunctionType) else [])]


def _of_function(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]


def _names(code: CodeType) -> Iterator[str]:
    """Yields the global names of a function, and of those defined inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
