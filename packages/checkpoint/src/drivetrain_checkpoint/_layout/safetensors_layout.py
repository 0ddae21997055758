"""Safetensors layout: one rank's file, laid out before its tensors are filled in.

The same bytes lie in shared memory and on disk, so that a save is one copy and a write is
one run of blocks. The header is padded to a whole page: tensors begin where direct
writes can.
"""

from __future__ import annotations

import json
import math
import reprlib
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._fields import MISSHAPEN, are_counts, is_shape
from drivetrain_core.strict_json import unique_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PAGE = 4096

_DTYPES: Mapping[str, tuple[str, int]] = tomllib.loads(
    files(__package__).joinpath("dtypes.toml").read_text("utf-8")
)

_PAIRS = "complex128"
"""What a header calls the tensors whose pairs of F64, in a last dimension of 2, are complex:
the format has no name for them."""

DTYPE_BYTES: Mapping[str, int] = {code: size for code, (_, size) in _DTYPES.items()}
"""The dtypes by their names in safetensors, and the bytes of an element."""

TORCH_NAMES: Mapping[str, str] = {code: name for code, (name, _) in _DTYPES.items()}
"""What torch calls them."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one tensor lies in a rank's file, or in its image in memory.

    Args:
        name: The tensor's name.
        dtype: A key of `DTYPE_BYTES`.
        shape: The shape of the part that lies here.
        start: Where it begins, in bytes from the beginning of the file.
        size_bytes: How long it is.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SafetensorsLayout:
    """A safetensors file before its tensors are filled in.

    Args:
        header: The bytes before the first tensor, padded.
        slots: Where each tensor lies.
        size_bytes: The length of the whole.
    """

    header: bytes
    slots: tuple[Slot, ...]
    size_bytes: int


def plan_safetensors(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]],
    *,
    align_bytes: int = PAGE,
    metadata: Mapping[str, str] | None = None,
) -> SafetensorsLayout:
    """Returns where tensors go in a safetensors file.

    Tensors of wide elements come first, so that each lies at a multiple of its
    element's size; otherwise the order is kept.

    Args:
        tensors: The name, the dtype and the shape of each.
        align_bytes: What the length of the header is a multiple of.
        metadata: What the header says beside the tensors.

    Example:
        >>> image = plan_safetensors([("flag", "BOOL", (3,)), ("weight", "F32", (2, 2))])
        >>> [(slot.name, slot.start, slot.size_bytes) for slot in image.slots]
        [('weight', 4096, 16), ('flag', 4112, 3)]
        >>> image.size_bytes
        4115
    """
    ordered = sorted(tensors, key=lambda tensor: -DTYPE_BYTES[tensor[1]])
    pairs = [name for name, dtype, _ in ordered if dtype == "C128"]
    about = {**(metadata or {}), **({_PAIRS: json.dumps(pairs)} if pairs else {})}
    entries: dict[str, object] = {"__metadata__": about} if about else {}
    places = []
    at = 0
    for name, dtype, shape in ordered:
        size = DTYPE_BYTES[dtype] * math.prod(shape)
        is_pair = dtype == "C128"
        entries[name] = {
            "dtype": "F64" if is_pair else dtype,
            "shape": [*shape, 2] if is_pair else list(shape),
            "data_offsets": [at, at + size],
        }
        places.append((name, dtype, shape, at, size))
        at += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    padded = -(-(8 + len(text)) // align_bytes) * align_bytes
    text = text.ljust(padded - 8)
    header = len(text).to_bytes(8, "little") + text
    slots = tuple(
        Slot(name, dtype, shape, padded + start, size)
        for name, dtype, shape, start, size in places
    )
    return SafetensorsLayout(header, slots, padded + at)


def read_header(
    header: bytes | memoryview, size_bytes: int | None = None
) -> dict[str, Slot]:
    """Returns where the tensors of a file lie, by name.

    As in the format's own library, they follow one another: none overlaps another, and
    between them there is nothing.

    Args:
        header: The bytes before the first tensor, or more.
        size_bytes: How long the file is; None if that is not known.

    Raises:
        ValueError: They are not the header of a safetensors file.

    Example:
        >>> image = plan_safetensors([("weight", "F32", (2, 2))])
        >>> read_header(image.header)["weight"].start
        4096
    """
    data = bytes(header)
    begin = 8 + int.from_bytes(data[:8], "little")
    try:
        entries = json.loads(data[8:begin], object_pairs_hook=unique_keys)
        pairs = json.loads((entries.pop("__metadata__", None) or {}).get(_PAIRS, "[]"))
        for name in pairs:
            *shape, two = entries[name]["shape"]
            entries[name] |= {"dtype": "C128", "shape": [*shape] if two == 2 else None}
        slots = {name: _slot(name, entry, begin) for name, entry in entries.items()}
        at = begin
        for slot in sorted(slots.values(), key=lambda one: (one.start, one.size_bytes)):
            if slot.start != at:
                message = (
                    f"{slot.name} begins at byte {slot.start - begin:,} of the data"
                )
                raise ValueError(message)
            at += slot.size_bytes
        if size_bytes not in {None, at}:
            message = f"its tensors end at byte {at:,} of {size_bytes:,}"
            raise ValueError(message)
    except MISSHAPEN as error:
        message = f"not the header of a safetensors file: {error}"
        raise ValueError(message) from error
    return slots


def _slot(name: str, entry: Mapping[str, Any], begin: int) -> Slot:
    places, shape = entry["data_offsets"], entry["shape"]
    if not are_counts(places) or not is_shape(shape):
        message = f"{name} must not lie at {reprlib.repr((places, shape))}"
        raise ValueError(message)
    first, last = places
    if last - first != DTYPE_BYTES[entry["dtype"]] * math.prod(shape):
        message = f"{name} has {last - first} bytes"
        raise ValueError(message)
    return Slot(name, entry["dtype"], tuple(shape), begin + first, last - first)
