"""Source of tensors by name: a folder of torch's distributed checkpoint (DCP)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_checkpoint._errors import CorruptCheckpointError, ForeignCheckpointError
from drivetrain_core import CheckpointError
from drivetrain_core.services.safe_dcp import read_index, read_into, specs_of

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from torch import Tensor

    from drivetrain_core.services import TensorSpec


class DcpSource:
    """A folder that DCP wrote. It has no checksums: damage may go unnoticed.

    Args:
        path: The folder.

    Raises:
        ForeignCheckpointError: It has no index, or one that is not safe to read.
    """

    kind = "dcp"

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._path = path
        try:
            self._index = read_index(path)
        except CheckpointError as error:
            raise ForeignCheckpointError(str(error)) from error
        self._files = {entry.name for entry in path.iterdir()}
        self.tensors: Mapping[str, TensorSpec] = specs_of(self._index)

    def values(self) -> dict[str, Any]:
        """Returns what is no tensor, loaded with `weights_only`."""
        names = self._index.state_dict_metadata.keys() - self.tensors.keys()
        state: dict[str, Any] = dict.fromkeys(sorted(names))
        self._read(state)
        return state

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Reads with DCP's own planner; it reads whole chunks."""
        self._read({name: target.detach() for name, target in targets.items()})

    def _read(self, state: dict[str, Any]) -> None:
        try:
            read_into(self._path, state, self._index, self._files)
        except CheckpointError as error:
            raise CorruptCheckpointError(str(error)) from error
        # A damaged chunk may be anything: a broken archive, a pickle that asks for more.
        except Exception as error:
            text = str(error).partition("\n")[0] or type(error).__name__
            message = f"{self.where} cannot be read: {text}"
            raise CorruptCheckpointError(message) from error


def read_dcp(path: str | os.PathLike[str]) -> DcpSource:
    """Opens a folder that torch's distributed checkpoint wrote.

    Its index is read by an unpickler that knows only the classes of an index, and
    values are loaded with `weights_only`.

    Args:
        path: The folder.

    Raises:
        ForeignCheckpointError: It has no index, or one that is not safe to read.

    Example:
        >>> read_dcp("no/such/folder")
        Traceback (most recent call last):
        ...
        drivetrain_checkpoint._errors.ForeignCheckpointError: no/such/folder has no \
index (.metadata)
    """
    return DcpSource(Path(path))
