"""Chooses which save a job goes on from, and where each rank's part of it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Choice", "Held", "Stored", "choose"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A rank's part of a save in some node's memory, or on its disk.

    Args:
        node: The node.
        rank: The rank that saved it.
        manifest: The rank's manifest, as memory holds it.
        saved_at_ns: When it was saved, in nanoseconds since 1970.
        is_on_disk: Whether it is on a disk of the node.
    """

    node: str
    rank: int
    manifest: Mapping[str, Any]
    saved_at_ns: int
    is_on_disk: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
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
class Choice:
    """The save that was chosen.

    Args:
        step: The step.
        save_id: What its files have in common.
        stored: Where it is on storage; None if it is in memory alone.
        held: Where in memory each rank's part is; a rank is left out if it is nowhere.
    """

    step: int
    save_id: str
    stored: Stored | None
    held: Mapping[int, tuple[Held, ...]]

    @property
    def is_in_memory(self) -> bool:
        """Whether every rank's part is in some memory."""
        parts = next(iter(self.held.values()), ())
        return bool(parts) and len(self.held) == parts[0].manifest["world_size"]


def choose(
    held: Iterable[Held], stored: Sequence[Stored], step: int | None
) -> Choice | str:
    """Returns the save that was made last of those that are whole, or why there is none.

    A save is whole if it is on storage, or if each of its ranks' parts is in the memory
    of some node.

    Args:
        held: What lies in the memory of all nodes.
        stored: What is on storage.
        step: The step that is wanted; None for the last.

    Example:
        >>> first = Stored(name="a", step=3, save_id="x", saved_at_ns=1)
        >>> half = Held(node="n", rank=0, saved_at_ns=2,
        ...             manifest={"save_id": "y", "step": 4, "world_size": 2})
        >>> choose([half], [first], None).step
        3
        >>> choose([half], [first], 9)
        'no checkpoint of step 9; steps there are: 3'
    """
    parts: dict[str, dict[int, list[Held]]] = {}
    for part in held:
        ranks = parts.setdefault(part.manifest["save_id"], {})
        ranks.setdefault(part.rank, []).append(part)
    on_storage = {s.save_id: s for s in stored}
    candidates: list[tuple[int, int, Choice]] = []
    for save_id in parts.keys() | on_storage.keys():
        ranks = parts.get(save_id, {})
        found = on_storage.get(save_id)
        some = next(iter(ranks.values()))[0] if ranks else None
        choice = Choice(
            step=found.step if found else some.manifest["step"] if some else 0,
            save_id=save_id,
            stored=found,
            held={rank: tuple(parts) for rank, parts in ranks.items()},
        )
        if found is None and not choice.is_in_memory:
            continue
        at = found.saved_at_ns if found else some.saved_at_ns if some else 0
        candidates.append((at, choice.step, choice))
    fitting = [c for c in candidates if step is None or c[1] == step]
    if fitting:
        return max(fitting, key=lambda c: c[:2])[2]
    steps = ", ".join(map(str, sorted({c[1] for c in candidates}))) or "none"
    wanted = "no checkpoint" if step is None else f"no checkpoint of step {step}"
    return f"{wanted}; steps there are: {steps}"
