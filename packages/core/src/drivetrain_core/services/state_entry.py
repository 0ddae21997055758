"""Entries of a state that say themselves how they are saved and restored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from drivetrain_core.services._plain_tree import equal_plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from drivetrain_core.services.packed_state import Entry
    from drivetrain_core.services.restoration import Restoration
    from drivetrain_core.services.tensor_spec import TensorSpec

_PARTIAL = "is_partial"


class StateEntry(ABC):
    """One entry of a state, of which this rank may hold a part.

    Its tensors are what `torch.distributed.checkpoint` takes: plain tensors, DTensors
    and those of class `ChunkedTensor`. Their names, and the merged plain half, are the same under any
    mesh. A checkpointer calls it between steps, from one thread; nothing in it
    communicates.

    Attributes:
        kind: The kind of its plain half: `model` or `optimizer`.
    """

    kind: str

    @abstractmethod
    def pack(
        self, key: str, state: Mapping[str, object]
    ) -> tuple[Entry, dict[str, torch.Tensor]]:
        """Returns the plain half, and the tensors of this rank by name.

        A plain half with `is_partial` is merged with those of the other ranks, by
        `merge_entries`.

        Args:
            key: The entry's name in the state.
            state: All that is saved.

        Raises:
            TypeError: It holds what a checkpoint cannot.
            ValueError: Two tensors have one name.
            NamesError: A tensor has no clear name.
        """

    @abstractmethod
    def plan(
        self,
        key: str,
        into: Mapping[str, object],
        plan: Restoration,
        entry: Entry,
        specs: Sequence[TensorSpec],
        saved: Mapping[str, TensorSpec],
    ) -> None:
        """Adds to a plan what restores this entry; changes nothing.

        Args:
            key: The entry's name in the state.
            into: All that is restored.
            plan: What does not fit goes to its `mismatches`.
            entry: The plain half in the checkpoint, merged.
            specs: The tensors of the entry in the checkpoint.
            saved: All tensors in the checkpoint, by name.
        """


def is_partial(entry: Entry) -> bool:
    """Returns whether a plain half is one rank's, and has to be merged."""
    return bool(entry.get(_PARTIAL))


def merge_entries(key: str, of_ranks: Sequence[Entry]) -> Entry:
    """Returns the plain half of an entry of which each rank holds a part.

    Args:
        key: The entry's name.
        of_ranks: What each rank has packed.

    Raises:
        ValueError: Ranks have different values of one name.

    Example:
        >>> one = {"kind": "optimizer", "plain": ["dict", [["lr", ["value", 1.0]]]],
        ...        "tensors": ["o.a"], "is_partial": True}
        >>> merge_entries("o", [one, {**one, "tensors": ["o.b"]}])["tensors"]
        ['o.a', 'o.b']
    """
    first = of_ranks[0]
    values: dict[str, Any] = {}
    for rank, entry in enumerate(of_ranks):
        for part in ("kind", "groups"):
            if not equal_plain(entry.get(part), first.get(part)):
                message = f"rank 0 and rank {rank} save different {part} of {key!r}"
                raise ValueError(message)
        for name, value in entry["plain"][1]:
            if name in values and not equal_plain(values[name], value):
                message = (
                    f"rank {rank} and a rank before it save different values of "
                    f"{name!r} of {key!r}: {value!r:.80} and {values[name]!r:.80}"
                )
                raise ValueError(message)
            values.setdefault(name, value)
    names = dict.fromkeys(name for entry in of_ranks for name in entry["tensors"])
    merged = {k: v for k, v in first.items() if k != _PARTIAL}
    plain = [first["plain"][0], [[name, value] for name, value in values.items()]]
    return {**merged, "plain": plain, "tensors": list(names)}
