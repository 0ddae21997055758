"""Trees of tensors by path: where a tensor lies in what a module takes or returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

Path = tuple[str | int, ...]
"""Keys, indices and field names that lead from the whole to one tensor."""

_PLAIN = (str, int, float, bool, type(None))


def walk_tensors(tree: Any, path: Path = ()) -> Iterator[tuple[Path, torch.Tensor]]:
    """Yields each tensor of a tree with the path that leads to it.

    Args:
        tree: Tensors in tuples, lists, mappings and dataclasses; all else is skipped.
        path: Where the tree itself lies.

    Example:
        >>> [path for path, _ in walk_tensors((torch.ones(1), {"x": torch.ones(1)}))]
        [(0,), (1, 'x')]
    """
    if isinstance(tree, torch.Tensor):
        yield path, tree
    elif isinstance(tree, Mapping):
        for key, part in tree.items():
            if isinstance(key, str | int):
                yield from walk_tensors(part, (*path, key))
    elif isinstance(tree, tuple | list):
        for index, part in enumerate(tree):
            yield from walk_tensors(part, (*path, index))
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in dataclasses.fields(tree):
            yield from walk_tensors(
                getattr(tree, field.name, None), (*path, field.name)
            )


def tensor_at(tree: Any, path: Path) -> torch.Tensor | None:
    """Returns the tensor at a path, or None where there is none.

    Example:
        >>> tensor_at(({"x": torch.ones(2)},), (0, "x"))
        tensor([1., 1.])
    """
    for key in path:
        if isinstance(tree, Mapping):
            tree = tree.get(key)
        elif isinstance(tree, tuple | list):
            inside = isinstance(key, int) and key < len(tree)
            tree = tree[key] if inside else None  # type: ignore[index]
        else:
            tree = getattr(tree, key, None) if isinstance(key, str) else None
    return tree if isinstance(tree, torch.Tensor) else None


def describe_tree(tree: Any) -> Any:
    """Returns the structure of a tree as plain JSON, each tensor by its number.

    Raises:
        TypeError: It holds something else than tensors, plain values, tuples, lists
            and dictionaries with text for keys.

    Example:
        >>> describe_tree((torch.ones(1), None))
        {'tuple': [{'tensor': 0}, {'value': None}]}
    """
    count = -1

    def visit(part: Any) -> Any:
        nonlocal count
        if isinstance(part, torch.Tensor):
            count += 1
            return {"tensor": count}
        if type(part) in (tuple, list):
            return {type(part).__name__: [visit(item) for item in part]}
        if type(part) is dict and all(isinstance(key, str) for key in part):
            return {"dict": {key: visit(item) for key, item in part.items()}}
        if isinstance(part, _PLAIN):
            return {"value": part}
        message = (
            f"a {type(part).__name__} cannot be rebuilt; only tensors, plain values, "
            "tuples, lists and dictionaries can"
        )
        raise TypeError(message)

    return visit(tree)


def fill_tree(description: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """Returns the tree of a description with tensors in it, by their numbers.

    Example:
        >>> fill_tree({"tuple": [{"tensor": 0}, {"value": None}]}, [torch.zeros(1)])
        (tensor([0.]), None)
    """
    ((kind, part),) = description.items()
    if kind == "tensor":
        return tensors[part]
    if kind == "dict":
        return {key: fill_tree(item, tensors) for key, item in part.items()}
    if kind in ("tuple", "list"):
        items = [fill_tree(item, tensors) for item in part]
        return tuple(items) if kind == "tuple" else items
    return part
