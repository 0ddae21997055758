"""Hosts that are not there, for tests: a /sys in a folder, and a driver without GPUs.

A machine is one JSON file:

    name, nodes      {"0": {"cpulist": "0-3", "meminfo": "Node 0 MemTotal: 8 kB"}}
    kinds            attributes by the name of a kind: {"gpu": {"class": "0x030200"}}
    pci              [path below /sys/devices, kind, further attributes]
    net              [name, address of its PCI device or folder, attributes]
    infiniband       [name, address of its PCI device, ports by number]
    nvml             {"gpus": [...]}, or the text of the error

An attribute that is null cannot be read. `driver` is where a symbolic link leads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["FakeNvml", "FakeNvmlError", "Machine"]


class FakeNvmlError(Exception):
    """What a `FakeNvml` raises where the driver would."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A recorded host.

    Args:
        facts: What its file holds.
    """

    facts: Mapping[str, Any]

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

    def write_sysfs(self, root: Path) -> Path:
        """Writes its /sys into a folder, and returns the folder.

        Args:
            root: The folder, empty or not there yet.
        """
        root.mkdir(parents=True, exist_ok=True)
        for index, attributes in self.facts.get("nodes", {}).items():
            _write(root / f"devices/system/node/node{index}", attributes)
        kinds = self.facts.get("kinds", {})
        for path, kind, attributes in self.facts.get("pci", ()):
            folder = root / "devices" / path
            _write(folder, kinds.get(kind, {}) | attributes)
            _link(root / "bus/pci/devices" / folder.name, folder)
        for name, device, attributes in self.facts.get("net", ()):
            self._write_class(root, "net", name, device, attributes)
        for name, device, ports in self.facts.get("infiniband", ()):
            folder = self._write_class(root, "infiniband", name, device, {})
            for number, attributes in ports.items():
                port = folder / "ports" / number
                gids = attributes.get("gids", ())
                _write(port, {k: v for k, v in attributes.items() if k != "gids"})
                _write(port / "gids", {str(i): gid for i, gid in enumerate(gids)})
        return root

    def _write_class(
        self,
        root: Path,
        group: str,
        name: str,
        device: str | None,
        attributes: Mapping[str, str | None],
    ) -> Path:
        if device is None:
            folder = root / "devices/virtual" / group / name
        else:
            address = device.split("/", maxsplit=1)[0]
            known = root / "bus/pci/devices" / address
            above = known.resolve() if known.exists() else root / "devices" / address
            above /= device[len(address) + 1 :]
            folder = above / group / name
        _write(folder, {k: v for k, v in attributes.items() if k != "driver"})
        if device is not None:
            _write(above, {k: v for k, v in attributes.items() if k == "driver"})
            _link(folder / "device", above)
        _link(root / "class" / group / name, folder)
        return folder


def _write(folder: Path, attributes: Mapping[str, str | None]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in attributes.items():
        if name in ("driver", "physfn"):
            target = folder.parent / f".{name}s" / str(value)
            target.mkdir(parents=True, exist_ok=True)
            _link(folder / name, target)
        elif value is None:
            (folder / name).mkdir()  # reading a folder fails like an I/O error
        else:
            (folder / name).write_text(f"{value}\n", encoding="utf-8")


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)


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
