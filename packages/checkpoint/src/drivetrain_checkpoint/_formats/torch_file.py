"""Files of `torch.save` with checksums, which appear whole or not at all.

The file is the zip archive that `torch.save` writes, with checksums in the comment that
the format of zip provides for: whoever reads archives reads it.
"""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch

from drivetrain_checkpoint._errors import CorruptCheckpointError, ForeignCheckpointError
from drivetrain_checkpoint._native import BLOCK_BYTES, checksum
from drivetrain_checkpoint._storage.atomic_write import atomic_write
from drivetrain_checkpoint._storage.protocol import as_storage_error

if TYPE_CHECKING:
    from collections.abc import Iterator

_END = b"PK\x05\x06"
_END_BYTES = 22
"""How long the last record of a zip archive is, without a comment."""

_FOOTER = struct.Struct("<QIII8s")
"""The bytes covered, blocks to a sum, number of sums, checksum of the sums, magic."""
_MAGIC = b"dtckptT1"
_MOST_SUMS = 16_000  # a comment has at most 65,535 bytes


def torch_save(
    obj: object, path: str | os.PathLike[str], *, pickle_protocol: int = 2
) -> None:
    """Saves as `torch.save` does; the file appears whole and durable, or not at all.

    A file that was there before stays until then. `torch.load` reads it, and
    `torch_load` finds any damage.

    Args:
        obj: What to save.
        path: The file.
        pickle_protocol: The version of pickle, for what is no tensor.

    Raises:
        StorageError: The disk is full, or fails.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "state.pt"
        >>> torch_save({"a": torch.ones(2)}, file)
        >>> torch.load(file), torch_load(file)
        ({'a': tensor([1., 1.])}, {'a': tensor([1., 1.])})
    """
    with atomic_write(path) as file:
        stream = _Summing(file)
        torch.save(obj, stream, pickle_protocol=pickle_protocol)  # type: ignore[arg-type]
        stream.end()


def torch_load(
    path: str | os.PathLike[str],
    *,
    map_location: Any = None,
    weights_only: bool = True,
    mmap: bool | None = None,
) -> Any:
    """Loads what `torch_save` or `torch.save` saved, after looking for damage.

    Args:
        path: The file. Only those of `torch_save` have checksums.
        map_location: Where tensors go, as for `torch.load`.
        weights_only: Whether only tensors, plain data and allowed classes are loaded.
            Otherwise the file may run any code.
        mmap: Whether tensors are mapped, and read when they are used.

    Raises:
        FileNotFoundError: There is no such file.
        CorruptCheckpointError: It is damaged or cut.
        ForeignCheckpointError: It holds what is not allowed, or is no file of torch.
    """
    with as_storage_error("read", path, may_miss=True), Path(path).open("rb") as file:
        _verify(file, str(path))
    try:
        return torch.load(
            path, map_location=map_location, weights_only=weights_only, mmap=mmap
        )
    except pickle.UnpicklingError as error:
        first = str(error).partition("\n")[0]
        message = (
            f"{path} is not loaded: {first}. If you trust it, allow its classes with "
            "torch.serialization.add_safe_globals, or give weights_only=False"
        )
        raise ForeignCheckpointError(message) from error
    except LookupError as error:  # instructions that no pickle has
        message = f"{path} is no file of torch"
        raise ForeignCheckpointError(message) from error
    except (RuntimeError, EOFError) as error:
        text = str(error).partition("\n")[0]
        if isinstance(error, EOFError) or "PytorchStreamReader" in text:
            message = f"{path} is damaged or cut: {text or 'it is empty'}"
            raise CorruptCheckpointError(message) from error
        raise


class _Summing:
    """Writes an archive, and its checksums behind it.

    Args:
        file: Where it goes.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._held = bytearray()
        self._sums: list[int] = []
        self._size_bytes = 0

    def write(self, data: bytes) -> int:
        """Takes some bytes."""
        self._held += data
        # The last record stays here until it is known to be the last.
        while len(self._held) >= BLOCK_BYTES + _END_BYTES:
            self._emit(BLOCK_BYTES)
        return len(data)

    def flush(self) -> None:
        """Does nothing: `end` does all that is left."""

    def end(self) -> None:
        """Writes what is left, and the checksums as the archive's comment."""
        end = bytes(self._held[-_END_BYTES:])
        assert end.startswith(_END), "torch writes archives without a comment"
        num_blocks = -(-(self._size_bytes + len(self._held)) // BLOCK_BYTES)
        group = -(-num_blocks // _MOST_SUMS)
        num_sums = -(-num_blocks // group)
        self._held[-2:] = struct.pack("<H", 4 * num_sums + _FOOTER.size)
        while self._held:
            self._emit(min(BLOCK_BYTES, len(self._held)))
        sums = _packed(_grouped(self._sums, group))
        footer = (self._size_bytes, group, num_sums, checksum(sums), _MAGIC)
        self._file.write(sums + _FOOTER.pack(*footer))

    def _emit(self, size_bytes: int) -> None:
        block = bytes(self._held[:size_bytes])
        del self._held[:size_bytes]
        self._sums.append(checksum(block))
        self._size_bytes += size_bytes
        self._file.write(block)


def _verify(file: IO[bytes], name: str) -> None:
    """Compares a file with its checksums, if it has any.

    Raises:
        CorruptCheckpointError: It is not what was saved.
    """
    size_bytes = file.seek(0, os.SEEK_END)
    if size_bytes == 0:
        message = f"{name} is empty"
        raise CorruptCheckpointError(message)
    file.seek(max(0, size_bytes - _FOOTER.size))
    tail = file.read()
    if not tail.endswith(_MAGIC) or len(tail) < _FOOTER.size:
        _check_plain(file, name, size_bytes)
        return
    covered, group, num_sums, sum_of_sums, _ = _FOOTER.unpack(tail)
    is_plausible = size_bytes == covered + 4 * num_sums + _FOOTER.size and group
    if is_plausible:
        file.seek(covered)
        sums = file.read(4 * num_sums)
    if not is_plausible or checksum(sums) != sum_of_sums:
        message = f"{name} is damaged in its checksums, or cut"
        raise CorruptCheckpointError(message)
    file.seek(0)
    found = _packed(_grouped(_block_sums(file, covered), group))
    for number in range(num_sums):
        part = slice(4 * number, 4 * number + 4)
        if found[part] != sums[part]:
            start = number * group * BLOCK_BYTES
            end = min(covered, start + group * BLOCK_BYTES)
            message = f"{name} is damaged between bytes {start:,} and {end:,}"
            raise CorruptCheckpointError(message)


def _check_plain(file: IO[bytes], name: str, size_bytes: int) -> None:
    """Finds an archive that has lost its end; what else is damaged is not known here."""
    file.seek(0)
    if file.read(4) != b"PK\x03\x04":
        return  # of the form that torch had before 1.6, or none of its files
    file.seek(max(0, size_bytes - _END_BYTES))
    end = file.read()
    # A comment is announced in the last two bytes; the one that is meant is not there.
    if not (end.startswith(_END) and end.endswith(b"\0\0")):
        message = f"{name} is cut: it has lost its end"
        raise CorruptCheckpointError(message)


def _block_sums(file: IO[bytes], size_bytes: int) -> Iterator[int]:
    for start in range(0, size_bytes, BLOCK_BYTES):
        yield checksum(file.read(min(BLOCK_BYTES, size_bytes - start)))


def _grouped(sums: Any, group: int) -> list[int]:
    """Returns one checksum for several blocks; for one block its own."""
    every = list(sums)
    if group == 1:
        return every
    starts = range(0, len(every), group)
    return [checksum(_packed(every[at : at + group])) for at in starts]


def _packed(sums: list[int]) -> bytes:
    return struct.pack(f"<{len(sums)}I", *sums)
