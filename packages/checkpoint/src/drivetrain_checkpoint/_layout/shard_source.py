"""Shard source: reads the bytes that one rank saved, from wherever they lie."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from drivetrain_checkpoint._errors import CorruptCheckpointError
from drivetrain_checkpoint._layout.safetensors_layout import read_header

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_checkpoint._layout.safetensors_layout import Slot


class ShardSource(ABC):
    """Gives the bytes that one rank saved; used by one thread at a time or several.

    Attributes:
        is_local: Whether reading costs no more than a copy.
        where: What it is called.
        header_bytes: How many bytes come before the first tensor.
        size_bytes: How many there are in all.
    """

    is_local = False
    where: str
    header_bytes: int
    size_bytes: int

    @abstractmethod
    def read(self, start: int, size_bytes: int) -> memoryview:
        """Returns bytes of the rank's file, checked.

        Raises:
            CorruptCheckpointError: They are not what was saved.
            CheckpointError: They cannot be had.
        """

    def is_intact(self) -> bool:
        """Whether what has been read so far was the save, to its last byte."""
        return True

    @functools.cached_property
    def slots(self) -> Mapping[str, Slot]:
        """Where the tensors lie in the file.

        Raises:
            CorruptCheckpointError: It does not say so.
        """
        try:
            return read_header(self.read(0, self.header_bytes), self.size_bytes)
        except ValueError as error:
            message = f"{self.where}: {error}"
            raise CorruptCheckpointError(message) from error
