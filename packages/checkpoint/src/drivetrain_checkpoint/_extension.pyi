"""
Copies, checksums and direct writes.
"""
from __future__ import annotations
import typing
import typing_extensions
__all__: list[str] = ['Progress', 'checksums', 'copy', 'crc32c', 'populate', 'read_file', 'write_file']
class Progress:
    """
    How far a write is; any thread may look at it, and stop it.
    """
    def __init__(self, done: typing.SupportsInt | typing.SupportsIndex = 0, stop: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        ...
    @property
    def done(self) -> int:
        """
        The bytes that were written.
        """
    @done.setter
    def done(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    @property
    def stop(self) -> int:
        """
        Set it to 1, and the write ends with ECANCELED before its next block.
        """
    @stop.setter
    def stop(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
def checksums(memory: typing_extensions.Buffer, block_bytes: typing.SupportsInt | typing.SupportsIndex, num_threads: typing.SupportsInt | typing.SupportsIndex) -> list[int]:
    """
    Returns the CRC-32C of each block of some memory.
    """
def copy(sources: typing_extensions.Buffer, targets: typing_extensions.Buffer, sizes: typing_extensions.Buffer, num_threads: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Copies memory between addresses, of type code `Q`; blocks must not overlap.
    """
def crc32c(data: typing_extensions.Buffer) -> int:
    """
    Returns the CRC-32C of some bytes.
    """
def populate(memory: typing_extensions.Buffer) -> None:
    """
    Makes the pages of a mapping present.
    """
def read_file(fd: typing.SupportsInt | typing.SupportsIndex, memory: typing_extensions.Buffer, at: typing.SupportsInt | typing.SupportsIndex, num_threads: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Fills memory from part of a file.
    """
def write_file(fd: typing.SupportsInt | typing.SupportsIndex, memory: typing_extensions.Buffer, block_bytes: typing.SupportsInt | typing.SupportsIndex, num_threads: typing.SupportsInt | typing.SupportsIndex, progress: Progress) -> tuple[list[int], bool]:
    """
    Writes memory to the beginning of an empty file; returns the CRC-32C of each block, and whether the page cache was passed by.
    """
