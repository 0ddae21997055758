"""Tells cheaply whether something is still made of the objects that it was made of.

All is compared by identity, in loops that run in C: 10,000 objects take about 0.3 ms.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from itertools import chain
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core.services._own_state import HOOKS, makes_its_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import nn

_MAPPINGS = {dict, OrderedDict, Counter, defaultdict}
_HOLDERS = {set, *_MAPPINGS}
_SEQUENCES = {list, tuple, torch.Size}
_MEMBERS = attrgetter(
    "_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"
)


class Fingerprint:
    """The objects that a value is made of, in order.

    It keeps them alive, so that none of them can be mistaken for another that was put
    at its address. Objects that are changed in place, which is to say containers and
    tensors, must be looked into further by whoever makes one.
    """

    __slots__ = ("counts", "objects")

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.objects: list[object] = []

    def add(self, parts: Iterable[object]) -> None:
        """Adds a run of objects."""
        before = len(self.objects)
        self.objects.extend(parts)
        self.counts.append(len(self.objects) - before)

    def add_contents(self, mappings: Sequence[Mapping[Any, object]]) -> None:
        """Adds the keys and the values of plain dictionaries."""
        self.counts.extend(map(len, mappings))
        self.objects.extend(chain.from_iterable(mappings))
        self.objects.extend(_values_of(mappings))

    def same(self, other: Fingerprint | None) -> bool:
        """Says whether another one is of the very same objects."""
        return (
            other is not None
            and self.counts == other.counts
            and len(self.objects) == len(other.objects)
            and all(map(is_, self.objects, other.objects))
        )


def _values_of(mappings: Iterable[Mapping[Any, object]]) -> Iterator[object]:
    # The method of the class is called without a lookup.
    method: Any = dict.values
    return chain.from_iterable(map(method, filter(None, mappings)))


def of_tree(value: object) -> Fingerprint | None:
    """Returns the fingerprint of nested plain data.

    Args:
        value: Nested dicts, lists and tuples; whatever else is in them is taken as one
            object.

    Returns:
        None where a container is of a class of the user's, which may answer otherwise
        each time it is asked.

    Example:
        >>> data = {"order": [3, 1]}
        >>> before = of_tree(data)
        >>> of_tree(data).same(before)
        True
        >>> data["order"].append(2)
        >>> of_tree(data).same(before)
        False
    """
    found = Fingerprint()
    found.add([value])
    pending: list[Any] = [value]
    # Each container is looked into once, or a cycle would have no end.
    seen: set[int] = set()
    for node in pending:
        kind = type(node)
        if kind in _MAPPINGS:
            inner = node.values()
            found.add_contents([node])
        elif kind in _SEQUENCES:
            inner = node
            found.add(node)
        elif isinstance(node, dict):
            return None
        else:
            continue
        kinds = set(map(type, inner))
        if not any(issubclass(k, dict | list | tuple) for k in kinds):
            continue
        for child in inner:
            if isinstance(child, dict | list | tuple) and id(child) not in seen:
                seen.add(id(child))
                pending.append(child)
    return found


def of_modules(modules: Sequence[nn.Module]) -> Fingerprint | None:
    """Returns the fingerprint of modules: their classes, children and tensors.

    Args:
        modules: All modules of a model, so that what is below the last is known too.

    Returns:
        None where a module keeps its members in something else than dictionaries.
    """
    found = Fingerprint()
    kinds: list[type[nn.Module]] = list(map(type, modules))
    found.add(kinds)
    found.add(kind.get_extra_state for kind in dict.fromkeys(kinds))
    # Methods that were replaced on a module, and hooks.
    found.counts.extend(map(len, map(vars, modules)))
    found.counts.extend(map(len, chain.from_iterable(map(HOOKS, modules))))
    members: list[Any] = list(chain.from_iterable(map(_MEMBERS, modules)))
    if not _HOLDERS.issuperset(map(type, members)):
        return None
    found.counts.extend(map(len, members))
    # The keys of the dictionaries and the names in the sets.
    found.objects.extend(chain.from_iterable(filter(None, members)))
    del members[3::4]
    found.objects.extend(_values_of(members))
    return found


def of_optimizer(optimizer: torch.optim.Optimizer) -> Fingerprint | None:
    """Returns the fingerprint of an optimizer but for the options of its groups.

    Args:
        optimizer: An optimizer with flat state a parameter.

    Returns:
        None where it keeps its state in something else than dictionaries.
    """
    found = Fingerprint()
    masters = getattr(optimizer, "master_weights", None)
    found.add([type(optimizer), makes_its_state(optimizer), masters is None])
    found.add(chain.from_iterable(masters or ()))
    for group in optimizer.param_groups:
        found.add(group["params"])
    state = optimizer.state
    slots = list(state.values())
    if not _MAPPINGS.issuperset(map(type, (state, *slots))):
        return None
    found.add(state)
    found.add_contents(slots)
    return found
