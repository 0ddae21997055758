"""What lies beside an image in memory: its manifest and the plain half of the state.

Most of it is the same in every save of a run, and is turned into JSON once.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._image import plan_image
from drivetrain_checkpoint._manifest import Part
from drivetrain_checkpoint._plain import to_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drivetrain_checkpoint._image import Image
    from drivetrain_checkpoint._pieces import Piece

__all__ = ["EntryTexts", "PlannedImage", "record_text"]


class PlannedImage:
    """Where the pieces of a rank go, and how the manifest says it.

    Args:
        pieces: The pieces.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        """Plans the image."""
        self._key = _key_of(pieces)
        self.image: Image = plan_image(
            (piece.name, piece.dtype, tuple(piece.local.shape)) for piece in pieces
        )
        by_name = {piece.name: piece for piece in pieces}
        parts = [
            Part(
                name=slot.name,
                dtype=slot.dtype,
                global_shape=by_name[slot.name].global_shape,
                offset=by_name[slot.name].offset,
                shape=slot.shape,
                start=slot.start,
                size_bytes=slot.size_bytes,
            )
            for slot in self.image.slots
        ]
        self.parts_text = _text([asdict(part) for part in parts])

    def fits(self, pieces: Sequence[Piece]) -> bool:
        """Whether pieces go to the same places."""
        return _key_of(pieces) == self._key


class EntryTexts:
    """The plain half of each entry as JSON, made anew only where it changed."""

    def __init__(self) -> None:
        """Knows no entry yet."""
        self._known: dict[str, tuple[object, str]] = {}

    def text(self, entries: Mapping[str, Any]) -> str:
        """Returns all entries as the JSON of one mapping.

        Raises:
            TypeError: One holds what JSON cannot.
        """
        known = {}
        for key, entry in entries.items():
            old = self._known.get(key)
            fresh = old is None or old[0] != entry
            known[key] = (entry, _text(to_json(entry))) if fresh or old is None else old
        self._known = known
        items = (f"[{_text(key)},{text}]" for key, (_, text) in known.items())
        return f'{{"$":"dict","v":[{",".join(items)}]}}'


def record_text(
    fields: Mapping[str, object],
    manifest: Mapping[str, object],
    parts_text: str,
    entries_text: str | None,
) -> bytes:
    """Returns a record as JSON.

    Args:
        fields: What is short.
        manifest: The fields of the rank's manifest but for its parts.
        parts_text: The parts as JSON.
        entries_text: The plain half of the state as JSON; None on all ranks but one.
    """
    head = _text(fields)[1:-1]
    inner = _text(manifest)[1:-1]
    return (
        f'{{{head},"manifest":{{{inner},"parts":{parts_text}}},'
        f'"entries":{entries_text or "null"}}}'
    ).encode()


def _key_of(pieces: Sequence[Piece]) -> list[tuple[object, ...]]:
    return [(p.name, p.dtype, p.local.shape, p.global_shape, p.offset) for p in pieces]


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
