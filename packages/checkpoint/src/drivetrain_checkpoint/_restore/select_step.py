"""Selection of the step to restore, and of where each rank's part of it lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class HeldShard(NamedTuple):
    """A rank's part of a save in some node's memory, or on its disk.

    Args:
        node: The node.
        manifest: The rank's manifest, as memory holds it.
        saved_at_ns: When it was saved, in nanoseconds since 1970.
        is_on_disk: Whether it is on a disk of the node.
    """

    node: str
    manifest: Mapping[str, Any]
    saved_at_ns: int
    is_on_disk: bool = False


class StoredSave(NamedTuple):
    """A checkpoint on storage.

    Args:
        name: Its folder.
        step: The step.
        save_id: What its files have in common.
        saved_at_ns: When it was saved, in nanoseconds since 1970.
    """

    name: str
    step: int
    save_id: str
    saved_at_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectedSave:
    """The save that was chosen.

    Args:
        step: The step.
        save_id: What its files have in common.
        stored: Where it is on storage; None if it is in memory alone.
        held: Where in memory each rank's part is; a rank is left out if it is nowhere.
    """

    step: int
    save_id: str
    stored: StoredSave | None
    held: Mapping[int, tuple[HeldShard, ...]]

    @property
    def is_in_memory(self) -> bool:
        """Whether every rank's part is in some memory."""
        parts = next(iter(self.held.values()), ())
        return bool(parts) and len(self.held) == parts[0].manifest["world_size"]


def select_step(
    held: Iterable[HeldShard], stored: Sequence[StoredSave], step: int | None
) -> SelectedSave | str:
    """Returns the save that was made last of those that are whole, or why there is none.

    A save is whole if it is on storage, or if each of its ranks' parts is in the memory
    of some node.

    Args:
        held: What lies in the memory of all nodes.
        stored: What is on storage.
        step: The step that is wanted; None for the last.

    Example:
        >>> first = StoredSave("a", step=3, save_id="x", saved_at_ns=1)
        >>> manifest = {"save_id": "y", "step": 4, "rank": 0, "world_size": 2}
        >>> half = HeldShard("node", manifest, saved_at_ns=2)
        >>> select_step([half], [first], None).step
        3
        >>> select_step([half], [first], 9)
        'no checkpoint of step 9; steps there are: 3'
    """
    parts: dict[str, dict[int, list[HeldShard]]] = {}
    for part in held:
        ranks = parts.setdefault(part.manifest["save_id"], {})
        ranks.setdefault(part.manifest["rank"], []).append(part)
    on_storage = {s.save_id: s for s in stored}
    candidates: list[tuple[int, int, SelectedSave]] = []
    for save_id in parts.keys() | on_storage.keys():
        ranks = parts.get(save_id, {})
        found = on_storage.get(save_id)
        some = next(iter(ranks.values()))[0] if ranks else None
        selected = SelectedSave(
            step=found.step if found else some.manifest["step"] if some else 0,
            save_id=save_id,
            stored=found,
            held={rank: tuple(parts) for rank, parts in ranks.items()},
        )
        if found is None and not selected.is_in_memory:
            continue
        at = found.saved_at_ns if found else some.saved_at_ns if some else 0
        candidates.append((at, selected.step, selected))
    fitting = [c for c in candidates if step is None or c[1] == step]
    if fitting:
        return max(fitting, key=lambda c: c[:2])[2]
    steps = ", ".join(map(str, sorted({c[1] for c in candidates}))) or "none"
    wanted = "no checkpoint" if step is None else f"no checkpoint of step {step}"
    return f"{wanted}; steps there are: {steps}"
