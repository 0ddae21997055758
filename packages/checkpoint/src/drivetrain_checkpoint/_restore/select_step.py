"""Selection of the step to restore, and of where each rank's part of it lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_checkpoint._storage.course import Dated, choose, why_none

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
    def saved_at_ns(self) -> int:
        """When it was saved, in nanoseconds since 1970."""
        if self.stored is not None:
            return self.stored.saved_at_ns
        return next(iter(self.held.values()))[0].saved_at_ns

    @property
    def is_in_memory(self) -> bool:
        """Whether every rank's part is in some memory."""
        parts = next(iter(self.held.values()), ())
        return bool(parts) and len(self.held) == parts[0].manifest["world_size"]


class Selection(NamedTuple):
    """What was selected.

    Args:
        save: The save; None if there is none.
        damage: What is damaged: that was passed over, or that is why there is none.
        because: Why there is none.
    """

    save: SelectedSave | None
    damage: tuple[str, ...] = ()
    because: str = ""


def select_step(
    held: Iterable[HeldShard],
    stored: Sequence[StoredSave],
    step: int | None,
    damaged: Sequence[Dated] = (),
) -> Selection:
    """Returns the save to restore, or why there is none.

    It is the one that was made last of those that are whole: on storage, or with each
    of its ranks' parts in the memory of some node. Where newer ones are damaged, it is
    the newest of the same course.

    Args:
        held: What lies in the memory of all nodes.
        stored: What is on storage.
        step: The step that is wanted; None for the last.
        damaged: What does not read.

    Example:
        >>> first = StoredSave("a", step=3, save_id="x", saved_at_ns=1)
        >>> manifest = {"save_id": "y", "step": 4, "rank": 0, "world_size": 2}
        >>> half = HeldShard("node", manifest, saved_at_ns=2)
        >>> select_step([half], [first], None).save.step
        3
        >>> select_step([half], [first], 9).because
        'no checkpoint of step 9; steps there are: 3'
        >>> select_step([half], [first], None, [Dated(2, 4, "z", "4 is gone")]).damage
        ('4 is gone',)
    """
    parts: dict[str, dict[int, list[HeldShard]]] = {}
    for part in held:
        ranks = parts.setdefault(part.manifest["save_id"], {})
        ranks.setdefault(part.manifest["rank"], []).append(part)
    broken = {d.save_id: d for d in damaged}
    on_storage = {s.save_id: s for s in stored}
    whole: dict[str, SelectedSave] = {}
    dated: list[Dated] = []
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
        if save_id in broken or (found is None and not selected.is_in_memory):
            continue
        whole[save_id] = selected
        dated.append(Dated(selected.saved_at_ns, selected.step, save_id))
    fitting = [d for d in (*dated, *broken.values()) if step in {None, d.step}]
    # Of a step that was asked for, an older save is of another course.
    chosen = choose(fitting if step is None else sorted(fitting)[-1:])
    problems = tuple(save.problem for save in chosen.passed_over)
    if chosen.save is not None:
        return Selection(whole[chosen.save.save_id], problems)
    if problems:
        return Selection(None, problems, why_none(chosen))
    steps = ", ".join(map(str, sorted({d.step for d in dated}))) or "none"
    wanted = "no checkpoint" if step is None else f"no checkpoint of step {step}"
    return Selection(None, (), f"{wanted}; steps there are: {steps}")
