"""Entries of a state that differ from rank to rank: kept for each, and given back to it.

They are plain data and objects with a state: the position of a data loader, random
numbers. Models and optimizers are one for all ranks. A tensor within plain data counts
as part of it if it is on the CPU and small; larger ones are saved once.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core.extending import equal_plain, plain_leaf
from drivetrain_core.native_library import without_memory
from drivetrain_core.services import PackedState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from torch import Tensor

    from drivetrain_core.services.packed_state import Entry

_KINDS = ("data", "object")
RANKS = "ranks"
"""The kind of an entry that is kept for each rank."""
_SMALL_BYTES = 64 << 10


def entry_digests(packed: PackedState) -> dict[str, tuple[str, str]]:
    """Returns the kind of each entry, and a checksum of what may differ in it.

    Example:
        >>> one, two = (PackedState({}, {"seed": {"kind": "data", "plain": ["value", n],
        ...             "tensors": []}}) for n in (1, 2))
        >>> differing([entry_digests(one), entry_digests(two)])
        ({'seed'}, set())
    """
    return {
        key: (entry["kind"], _digest(entry, packed.tensors))
        for key, entry in packed.entries.items()
    }


def values_digest(packed: PackedState) -> str:
    """Returns a checksum of the plain data and the small tensors in it."""
    entries = packed.entries.values()
    found = (_digest(e, packed.tensors) for e in entries if e["kind"] in _KINDS)
    return "".join(found)


def differing(
    digests: Sequence[Mapping[str, tuple[str, str]]],
) -> tuple[set[str], set[str]]:
    """Returns the entries that differ and can be kept for each rank, and that cannot.

    Args:
        digests: What `entry_digests` returns on each rank.
    """
    found = {
        key: {of_rank.get(key, ("missing", "")) for of_rank in digests}
        for key in set().union(*digests)
    }
    apart = {key for key, seen in found.items() if len(seen) > 1}
    kept = {k for k in apart if len({kind for kind, _ in found[k]} - {*_KINDS}) == 0}
    return kept, apart - kept


def gather_entries(
    all_gather: Callable[[object], list[Any]],
    packed: PackedState,
    keys: Collection[str],
) -> PackedState:
    """Returns a state with what each rank has of some entries; all ranks call it."""
    tensors, entries = dict(packed.tensors), dict(packed.entries)
    for key in entries.keys() & keys:
        entry = entries[key]
        small = {n: tensors.pop(n) for n in entry["tensors"] if _is_small(tensors[n])}
        entries[key] = {
            **entry,
            "plain": _with_values(entry["plain"], small),
            "tensors": [name for name in entry["tensors"] if name not in small],
        }
    answers = all_gather({k: entries[k] for k in entries.keys() & keys})
    for key in entries.keys() & keys:
        if all(key in of_rank for of_rank in answers):
            merged = merge_entries([of_rank[key] for of_rank in answers])
            entries[key] = {**merged, "tensors": entries[key]["tensors"]}
    return PackedState(tensors, entries)


def merge_entries(of_ranks: Sequence[Entry]) -> Entry:
    """Returns the one entry that ranks have; or that keeps what each of them has."""
    first = of_ranks[0]
    if all(equal_plain(entry, first) for entry in of_ranks):
        return first
    plains = [entry["plain"] for entry in of_ranks]
    return {**first, "kind": RANKS, "of": first["kind"], "plain": [RANKS, plains]}


def entries_of_rank(
    entries: Mapping[str, Entry], rank: int, world_size: int
) -> tuple[dict[str, Entry], dict[str, int]]:
    """Returns the entries of a checkpoint as one rank has saved them.

    Returns:
        Those that are for this rank; and those that were kept for each of another
        number of ranks, with that number: they are nobody's now.

    Example:
        >>> entry = {"kind": "ranks", "of": "data", "tensors": [],
        ...          "plain": ["ranks", [["value", 3], ["value", 4]]]}
        >>> entries_of_rank({"seed": entry}, 1, 2)[0]["seed"]["plain"]
        ['value', 4]
        >>> entries_of_rank({"seed": entry}, 1, 3)
        ({}, {'seed': 2})
    """
    found, others = dict(entries), {}
    for key, entry in entries.items():
        if entry["kind"] != RANKS:
            continue
        plains = entry["plain"][1]
        if len(plains) == world_size:
            found[key] = {**entry, "kind": entry["of"], "plain": plains[rank]}
        else:
            others[key] = len(plains)
            del found[key]
    return found, others


def _digest(entry: Entry, tensors: Mapping[str, Tensor]) -> str:
    if entry["kind"] not in _KINDS:
        return hashlib.sha256(repr(entry).encode()).hexdigest()
    found = hashlib.sha256(repr(entry["plain"]).encode())
    for name in entry["tensors"]:
        tensor = tensors[name]
        found.update(repr((name, tuple(tensor.shape), tensor.dtype)).encode())
        if _is_small(tensor):
            values = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
            found.update(values.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _is_small(tensor: Any) -> bool:
    is_own = type(tensor) in {torch.Tensor, torch.nn.Parameter}
    is_dense = is_own and tensor.layout is torch.strided and tensor.device.type == "cpu"
    return is_dense and tensor.nbytes <= _SMALL_BYTES and not without_memory(tensor)


def _with_values(plain: Any, small: Mapping[str, Tensor]) -> Any:
    """Returns a plain half with some of its tensors in it."""
    match plain:
        case ["tensor", str(name)] if name in small:
            return plain_leaf(small[name].detach().clone(), name)
        case list(parts):
            return [_with_values(part, small) for part in parts]
    return plain
