"""Packs one entry of a state, and does again only what changed since the last time."""

from __future__ import annotations

from dataclasses import dataclass
from operator import is_
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from drivetrain_core._model.names import named_parts, unwrap
from drivetrain_core.services._fingerprint import (
    Fingerprint,
    of_modules,
    of_optimizer,
    of_tree,
)
from drivetrain_core.services._optimizer_state import (
    OptimizerState,
    keeps_state_by_parameter,
)
from drivetrain_core.services._own_state import OWN, has_own_state
from drivetrain_core.services._part_of_model import check_is_no_part
from drivetrain_core.services._plain_tree import equal_plain, is_pickled, split_tree
from drivetrain_core.services.packed_state import RECORD
from drivetrain_core.services.state_entry import StateEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from drivetrain_core.services.packed_state import Entry

TENSORS = {torch.Tensor, nn.Parameter, DTensor}
"""The classes whose objects need not be asked whether they are something else."""


@runtime_checkable
class HasStateDict(Protocol):
    """An object that gives its state, and takes it back."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the state."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object:
        """Takes a state back."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedEntry:
    """One entry of a state.

    Args:
        value: What the entry holds in the state.
        entry: The plain half.
        tensors: The tensors by name, as they are.
        source: What `pack_entry` looks at to see what changed.
    """

    value: object
    entry: Entry
    tensors: dict[str, torch.Tensor]
    source: object = None


class NamedModel:
    """The names of a model's tensors, and whether they still hold.

    Args:
        key: The model's name in the state.
        model: The model, wrapped or not.

    Raises:
        NamesError: The tensors of the model have no clear names.
    """

    def __init__(self, key: str, model: nn.Module) -> None:
        check_is_no_part(key, model)
        parts = named_parts(model)
        self.tensors = {f"{key}.{name}": t for name, t in parts.tensors.items()}
        self.names = {id(t): f"{key}.{name}" for name, t in parts.parameters.items()}
        self.with_extra_state = with_extra_state(parts.modules)
        self.has_own_state = has_own_state(parts.modules.values())
        self.ties = parts.ties
        self.listed = list(self.tensors)
        self._model = model
        self._modules = list({id(module): module for module in parts.visited}.values())
        self._fingerprint = of_modules(self._modules)

    def fits(self, model: object) -> bool:
        """Says whether this is the model, with the modules and tensors that it had."""
        if model is not self._model or self._fingerprint is None:
            return False
        return self._fingerprint.same(of_modules(self._modules))


def with_extra_state(modules: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Returns the modules that have a state of their own beside their tensors."""
    return {
        name: module
        for name, module in modules.items()
        if type(module).get_extra_state is not nn.Module.get_extra_state
    }


class _NamedOptimizer:
    """All of an optimizer but the options of its groups.

    Args:
        key: The optimizer's name in the state.
        optimizer: The optimizer.
        names: The name of each parameter of the models, by `id`.
    """

    def __init__(
        self, key: str, optimizer: torch.optim.Optimizer, names: Mapping[int, str]
    ) -> None:
        self.state = OptimizerState(optimizer, names)
        self.groups = self.state.groups()
        self._own = {f"{key}.{name}": t for name, t in self.state.own.items()}
        self._slots: dict[str, torch.Tensor] = {}
        scalars = {}
        for name, value in self.state.slots():
            if isinstance(value, torch.Tensor):
                self._slots[f"{key}.{name}"] = value
            else:
                scalars[name] = value
        self.items = _split_items(scalars, f"{key}.scalars", {})
        self.tensors = self._own | self._slots
        self.listed = list(self.tensors)
        self._optimizer = optimizer
        self._names = names
        self._fingerprint = of_optimizer(optimizer)

    def fits(self, optimizer: object, names: Mapping[int, str]) -> bool:
        """Says whether this is the optimizer, with the parameters and state it had."""
        if optimizer is not self._optimizer or names is not self._names:
            return False
        fingerprint = of_optimizer(self._optimizer)
        return fingerprint is not None and fingerprint.same(self._fingerprint)

    def with_options(
        self, options: dict[str, torch.Tensor], inner: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Returns all tensors, with those that are options and those inside of them.

        Raises:
            ValueError: Two tensors have one name.
        """
        tensors = self._own | options | self._slots
        for name in inner:
            if name in tensors:
                message = f"two tensors of the state are named {name!r}"
                raise ValueError(message)
        return tensors | inner


def pack_entry(
    key: str,
    value: object,
    models: Mapping[str, NamedModel],
    names: Mapping[int, str],
    old: PackedEntry | None,
    state: Mapping[str, object],
) -> PackedEntry:
    """Returns an entry as a checkpoint holds it.

    Args:
        key: The name of the entry.
        value: A model, an optimizer, a tensor, an object with a state, a `StateEntry`,
            or plain data.
        models: The models of the state.
        names: The name of each parameter of the models, by `id`; the same mapping as
            the last time if nothing in it changed.
        old: What this has returned for the entry the last time.
        state: All that is packed.

    Returns:
        The entry. Its `entry` and its `tensors` are those of `old` where they are equal.

    Raises:
        TypeError: Something is of a type that a checkpoint cannot hold.
        ValueError: Two tensors have one name, or the entry has one that is taken.
        NamesError: The tensors of an optimizer have no clear names.
    """
    if key in {"", RECORD}:
        message = f"a name in the state must not be {key!r}"
        raise ValueError(message)
    if type(value) in TENSORS:
        assert isinstance(value, torch.Tensor)
        plain = {"kind": "data", "plain": ["tensor", key], "tensors": [key]}
        return _settled(PackedEntry(value, plain, {key: value}), old)
    if isinstance(value, StateEntry):
        entry, tensors = value.pack(key, state)
        return _settled(PackedEntry(value, entry, tensors), old)
    if isinstance(value, nn.Module):
        if models[key].has_own_state:
            return _pack_tree(key, OWN, value, unwrap(value).state_dict(), old)
        return _pack_model(key, value, models[key], old)
    if isinstance(value, torch.optim.Optimizer):
        source = old.source if old is not None else None
        known = isinstance(source, _NamedOptimizer) and source.fits(value, names)
        if known or keeps_state_by_parameter(value):
            if not known or not isinstance(source, _NamedOptimizer):
                source = _NamedOptimizer(key, value, names)
            return _pack_optimizer(key, value, source, old)
    if isinstance(value, HasStateDict):
        return _pack_tree(key, "object", value, value.state_dict(), old)
    return _pack_tree(key, "data", value, value, old)


def merge_tensors(entries: Iterable[PackedEntry]) -> dict[str, torch.Tensor]:
    """Returns the tensors of all entries.

    Raises:
        ValueError: Two tensors have one name.
    """
    tensors: dict[str, torch.Tensor] = {}
    for entry in entries:
        for name in entry.tensors.keys() & tensors.keys():
            message = f"two tensors of the state are named {name!r}"
            raise ValueError(message)
        tensors.update(entry.tensors)
    return tensors


def _pack_model(
    key: str, model: nn.Module, named: NamedModel, old: PackedEntry | None
) -> PackedEntry:
    if old is not None and old.source is named and not named.with_extra_state:
        return old
    tensors, listed = named.tensors, named.listed
    extra = {
        name: module.get_extra_state()
        for name, module in named.with_extra_state.items()
    }
    if extra:
        tensors = dict(tensors)
    plain = split_tree(extra, f"{key}._extra_state", tensors)
    if len(tensors) != len(listed):
        listed = list(tensors)
    entry: Entry = {"kind": "model", "plain": plain, "tensors": listed}
    if named.ties:
        entry["ties"] = named.ties
    return _settled(PackedEntry(model, entry, tensors, named), old)


def _pack_optimizer(
    key: str,
    optimizer: torch.optim.Optimizer,
    named: _NamedOptimizer,
    old: PackedEntry | None,
) -> PackedEntry:
    scalars: dict[str, object] = {}
    options: dict[str, torch.Tensor] = {}
    for name, value in named.state.options().items():
        if isinstance(value, torch.Tensor):
            options[f"{key}.{name}"] = value
        else:
            scalars[name] = value
    inner: dict[str, torch.Tensor] = {}
    items = _split_items(scalars, f"{key}.scalars", inner)
    tensors, listed = named.tensors, named.listed
    if options or inner:
        tensors = named.with_options(options, inner)
        listed = list(tensors)
    entry = {
        "kind": "optimizer",
        "plain": ["dict", items + named.items],
        "groups": named.groups,
        "tensors": listed,
    }
    return _settled(PackedEntry(optimizer, entry, tensors, named), old)


def _pack_tree(
    key: str, kind: str, value: object, tree: object, old: PackedEntry | None
) -> PackedEntry:
    fingerprint = of_tree(tree)
    if (
        old is not None
        and old.entry["kind"] == kind
        and fingerprint is not None
        and isinstance(old.source, Fingerprint)
        and fingerprint.same(old.source)
    ):
        return old
    tensors: dict[str, torch.Tensor] = {}
    plain = split_tree(tree, key, tensors)
    if is_pickled(plain):
        fingerprint = None
    entry = {"kind": kind, "plain": plain, "tensors": list(tensors)}
    return _settled(PackedEntry(value, entry, tensors, fingerprint), old)


def _settled(new: PackedEntry, old: PackedEntry | None) -> PackedEntry:
    """Returns a new entry with what of the old one is equal."""
    if old is None:
        return new
    entry, tensors = new.entry, new.tensors
    if equal_plain(entry, old.entry):
        entry = old.entry
    else:
        for part in ("tensors", "groups"):
            if part in entry and entry[part] == old.entry.get(part):
                entry[part] = old.entry[part]
    same_names = tensors is old.tensors or list(tensors) == list(old.tensors)
    if same_names and all(map(is_, tensors.values(), old.tensors.values())):
        tensors = old.tensors
    return PackedEntry(new.value, entry, tensors, new.source)


def _split_items(
    values: dict[str, object], name: str, tensors: dict[str, torch.Tensor]
) -> list[object]:
    """Returns the plain halves of the items of a dict."""
    plain: Any = split_tree(values, name, tensors)
    items: list[object] = plain[1]
    return items
