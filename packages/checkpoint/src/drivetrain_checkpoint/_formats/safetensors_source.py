"""Source of tensors by name: safetensors files, as Hugging Face lays them out."""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint import _native
from drivetrain_checkpoint._errors import CorruptCheckpointError, ForeignCheckpointError
from drivetrain_checkpoint._fields import MISSHAPEN
from drivetrain_checkpoint._layout.partition import specs_of
from drivetrain_checkpoint._layout.safetensors_layout import read_header
from drivetrain_checkpoint._layout.shard_source import ShardSource
from drivetrain_checkpoint._layout.tensor_layout import Layout, Mesh, TensorLayout
from drivetrain_checkpoint._rank_group import RankGroup
from drivetrain_checkpoint._restore.read_blocks import read_blocks, wanted_blocks
from drivetrain_checkpoint._storage.protocol import as_storage_error
from drivetrain_core.strict_json import unique_keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from drivetrain_core.services import TensorSpec

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"

_MOST_HEADER_BYTES = 100_000_000  # as in the reference implementation


class _File(ShardSource):
    """One safetensors file.

    Args:
        path: The file.

    Raises:
        CorruptCheckpointError: It is cut.
        ForeignCheckpointError: It is no such file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with as_storage_error("read", path), path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            start = file.read(8)
            header_bytes = int.from_bytes(start, "little")
            if size_bytes < 10 or not 2 <= header_bytes <= _MOST_HEADER_BYTES:
                message = f"{path} is no safetensors file"
                raise ForeignCheckpointError(message)
            if 8 + header_bytes > size_bytes:
                raise CorruptCheckpointError(_cut(path, size_bytes, 8 + header_bytes))
            try:
                self.slots = read_header(start + file.read(header_bytes))
            except ValueError as error:
                message = f"{path}: {error}"
                raise ForeignCheckpointError(message) from error
        ends = (slot.start + slot.size_bytes for slot in self.slots.values())
        end = max(ends, default=8 + header_bytes)
        if end != size_bytes:
            raise CorruptCheckpointError(_cut(path, size_bytes, end))

    def read(self, start: int, size_bytes: int) -> memoryview:
        """Returns bytes of the file."""
        memory = memoryview(mmap.mmap(-1, max(1, size_bytes)))[:size_bytes]
        with (
            as_storage_error("read", self._path),
            self._path.open("rb", buffering=0) as file,
        ):
            _native.read_file(file.fileno(), memory, start, 2)
        return memory


class SafetensorsSource:
    """Some safetensors files that belong together.

    Args:
        where: What a user calls them.
        names: The tensors of each file; None for all that it has.

    Raises:
        CorruptCheckpointError: A file is missing or cut, or lacks a tensor.
        ForeignCheckpointError: A file is no such file, or holds what torch does not.
    """

    kind = "safetensors"

    def __init__(self, where: Path, names: Mapping[Path, set[str] | None]) -> None:
        self.where = str(where)
        missing = [path.name for path in names if not path.is_file()]
        if missing:
            message = f"{where} lacks {', '.join(missing)}"
            raise CorruptCheckpointError(message)
        self._files = [_File(path) for path in names]
        # Each file is a rank that saved some tensors as a whole.
        everyone = tuple(Mesh((1,), (number,)) for number in range(len(self._files)))
        tensors: list[TensorLayout] = []
        for number, (path, wanted) in enumerate(names.items()):
            slots = self._files[number].slots
            lacking = sorted((wanted or set()) - slots.keys())
            if lacking:
                message = f"{path} lacks {', '.join(lacking[:5])}, which the index says"
                raise CorruptCheckpointError(message)
            for name in slots if wanted is None else wanted:
                slot = slots[name]
                tensors.append(
                    TensorLayout(name, slot.dtype, slot.shape, number, ("R",), 0)
                )
        self._layout = Layout(everyone, tuple(tensors))
        self.tensors: Mapping[str, TensorSpec] = specs_of(self._layout)

    def values(self) -> dict[str, Any]:
        """Returns nothing: such files hold tensors only."""
        return {}

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Reads only the rows that are needed."""
        wanted = wanted_blocks(self._layout, targets, RankGroup())
        read_blocks(self._layout, self._files.__getitem__, wanted)


def read_safetensors(path: str | os.PathLike[str]) -> SafetensorsSource:
    """Opens a safetensors file, or a folder of them as Hugging Face lays them out.

    Args:
        path: A file; or a folder with `model.safetensors.index.json`, or with one
            safetensors file.

    Raises:
        CorruptCheckpointError: A file is missing or cut, or lacks a tensor.
        ForeignCheckpointError: There are no such files, or they are not of this format.

    Example:
        >>> import tempfile
        >>> from drivetrain_checkpoint._layout.safetensors_layout import plan_safetensors
        >>> file = Path(tempfile.mkdtemp()) / "model.safetensors"
        >>> _ = file.write_bytes(plan_safetensors([("a", "F32", (2,))]).header + bytes(8))
        >>> read_safetensors(file).tensors["a"].global_shape
        (2,)
    """
    place = Path(path)
    if place.is_file():
        return SafetensorsSource(place, {place: None})
    index = place / INDEX_FILE
    if index.is_file():
        return SafetensorsSource(place, _weight_map(index))
    files = sorted(place.glob("*.safetensors"))
    if len(files) != 1:
        message = (
            f"{place} has {len(files)} safetensors files and no {INDEX_FILE}: name one "
            "of them"
        )
        raise ForeignCheckpointError(message)
    return SafetensorsSource(place, {files[0]: None})


def _weight_map(index: Path) -> dict[Path, set[str] | None]:
    found: dict[Path, set[str] | None] = {}
    try:
        text = index.read_bytes()
        weight_map = json.loads(text, object_pairs_hook=unique_keys)["weight_map"]
        for name, file in weight_map.items():
            if Path(file).name != file:
                message = f"it names {file!r}, which is not a file beside it"
                raise ValueError(message)
            names = found.setdefault(index.parent / file, set())
            assert names is not None
            names.add(name)
    except MISSHAPEN as error:
        message = f"{index} is no index of safetensors files: {error}"
        raise ForeignCheckpointError(message) from error
    return found


def _cut(path: Path, size_bytes: int, end: int) -> str:
    said = (
        "is cut: it has" if size_bytes < end else "goes on behind its tensors: it has"
    )
    return f"{path} {said} {size_bytes:,} of {end:,} bytes"
