"""Hosts that are not there: a /sys in a folder, written from a description in JSON.

    nodes            {"0": {"cpulist": "0-3", "meminfo": "Node 0 MemTotal: 8 kB"}}
    kinds            attributes by the name of a kind: {"gpu": {"class": "0x030200"}}
    pci              [path below /sys/devices, kind, further attributes]
    net              [name, address of its PCI device or folder, attributes]
    infiniband       [name, address of its PCI device, ports by number]

An attribute that is null cannot be read; a list is a folder of files 0, 1 and so on.
`driver` and `physfn` are where a symbolic link leads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class RecordedMachine:
    r"""A host whose /sys is written from what is known of it.

    Args:
        facts: Its parts, by the names that the module's description tells.

    Example:
        >>> import pathlib, tempfile
        >>> card = ["eth0", "0000:00:01.0", {"operstate": "up"}]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sysfs = RecordedMachine({"net": [card]}).write_sysfs(pathlib.Path(folder))
        ...     (sysfs / "class/net/eth0/operstate").read_text()
        'up\n'
    """

    facts: Mapping[str, Any]

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
            _write_class(root / "class/net" / name, device, attributes)
        for name, device, ports in self.facts.get("infiniband", ()):
            folder = _write_class(root / "class/infiniband" / name, device, {})
            for number, attributes in ports.items():
                _write(folder / "ports" / number, attributes)
        return root


def _write_class(
    link: Path, device: str | None, attributes: Mapping[str, str | None]
) -> Path:
    """Writes a device of a class below the one that carries it, and a link to it."""
    root = link.parents[2]
    own = {name: text for name, text in attributes.items() if name != "driver"}
    above = root / "devices/virtual"
    if device is not None:
        address, _, below = device.partition("/")
        known = root / "bus/pci/devices" / address
        above = known.resolve() if known.exists() else root / "devices" / address
        above /= below
        _write(above, {n: text for n, text in attributes.items() if n not in own})
    folder = above / link.parent.name / link.name
    _write(folder, own)
    if device is not None:
        _link(folder / "device", above)
    _link(link, folder)
    return folder


def _write(folder: Path, attributes: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in attributes.items():
        if name in ("driver", "physfn"):
            target = folder.parent / f".{name}s" / str(value)
            target.mkdir(parents=True, exist_ok=True)
            _link(folder / name, target)
        elif isinstance(value, list):
            _write(folder / name, {str(i): one for i, one in enumerate(value)})
        elif value is None:
            (folder / name).mkdir()  # reading a folder fails like an I/O error
        else:
            (folder / name).write_text(f"{value}\n", encoding="utf-8")


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
