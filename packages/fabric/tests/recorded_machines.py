"""Recorded hosts of this package's tests, with a driver that has no GPUs.

A machine is one JSON file: what `drivetrain_testing.RecordedMachine` takes, and

    name             what it is called
    nvml             {"gpus": [...]}, or the text of the error
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from drivetrain_testing import RecordedMachine

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["FakeNvml", "FakeNvmlError", "Machine"]


class FakeNvmlError(Exception):
    """What a `FakeNvml` raises where the driver would."""


class Machine(RecordedMachine):
    """A recorded host, with its driver."""

    __slots__ = ()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Machine:
        """Returns the machine of a file.

        Args:
            path: The file.
        """
        return cls(json.loads(Path(path).read_text(encoding="utf-8")))

    @property
    def name(self) -> str:
        """What it is called."""
        return str(self.facts["name"])

    @property
    def nvml(self) -> FakeNvml:
        """Its driver."""
        return FakeNvml(self.facts.get("nvml", "Driver Not Loaded"))


class FakeNvml:
    """NVIDIA's driver, as far as topologies ask it.

    Args:
        facts: `{"gpus": [...]}`, each with `name`, `uuid`, `memory_bytes`, `address`,
            `pcie` (generation and width) and `nvlinks`: the version, what is at the
            other end (`gpu` or `switch`), its address or null, and how many links. Or
            the text of the error that every call raises.

    Example:
        >>> from drivetrain_fabric.topology import read_nvml
        >>> read_nvml(FakeNvml("Driver Not Loaded")).missing
        'NVML does not answer: Driver Not Loaded'
    """

    NVMLError = FakeNvmlError

    def __init__(self, facts: Mapping[str, Any] | str) -> None:
        self._facts = facts
        self.num_open = 0

    def nvmlInit(self) -> None:  # noqa: N802
        """Raises the error, if there is one."""
        if isinstance(self._facts, str):
            raise FakeNvmlError(self._facts)
        self.num_open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        """Counts back."""
        self.num_open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        """Returns the number of GPUs."""
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        """Returns the facts of a GPU; one with an `error` raises it."""
        gpu = self._gpus[index]
        if "error" in gpu:
            raise FakeNvmlError(gpu["error"])
        return gpu

    def nvmlDeviceGetName(self, handle: Any) -> str:  # noqa: N802
        """Returns its model."""
        return str(handle["name"])

    def nvmlDeviceGetUUID(self, handle: Any) -> bytes:  # noqa: N802
        """Returns its identity, as bytes like old versions."""
        return str(handle["uuid"]).encode()

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:  # noqa: N802
        """Returns its memory."""
        return SimpleNamespace(total=_known(handle, "memory_bytes"))

    def nvmlDeviceGetPciInfo(self, handle: Any) -> Any:  # noqa: N802
        """Returns its address."""
        return _pci_info(handle["address"])

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Any) -> int:  # noqa: N802
        """Returns what its slot can do."""
        return int(_known(handle, "pcie")[0])

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: Any) -> int:  # noqa: N802
        """Returns how many lanes its slot has."""
        return int(_known(handle, "pcie")[1])

    def nvmlDeviceGetNvLinkState(self, handle: Any, link: int) -> int:  # noqa: N802
        """Returns whether a link is on; one without a version is off."""
        return int(_end(handle, link)[0] is not None)

    def nvmlDeviceGetNvLinkVersion(self, handle: Any, link: int) -> int:  # noqa: N802
        """Returns the generation of a link."""
        return int(_end(handle, link)[0])

    def nvmlDeviceGetNvLinkRemoteDeviceType(  # noqa: N802
        self, handle: Any, link: int
    ) -> int:
        """Returns what is at its other end."""
        return {"gpu": 0, "switch": 2}[_end(handle, link)[1]]

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: Any, link: int) -> Any:  # noqa: N802
        """Returns the address of what is at its other end."""
        address = _end(handle, link)[2]
        if address is None:
            message = "Not Supported"
            raise FakeNvmlError(message)
        return _pci_info(address)

    @property
    def _gpus(self) -> list[Any]:
        return [] if isinstance(self._facts, str) else list(self._facts["gpus"])


def _known(handle: Any, key: str) -> Any:
    if handle.get(key) is None:
        message = "Not Supported"
        raise FakeNvmlError(message)
    return handle[key]


def _pci_info(address: str) -> Any:
    return SimpleNamespace(busId=f"0000{address}".upper().encode())


def _end(handle: Any, link: int) -> Any:
    ends = [end for end in handle.get("nvlinks", ()) for _ in range(end[3])]
    if link >= len(ends):
        message = "Invalid Argument"
        raise FakeNvmlError(message)
    return ends[link]
