"""Reads from /sys, /proc, tools and variables what an adviser goes by; changes nothing.

Whatever is missing or cannot be read counts as not known.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_fabric.adviser._acs import read_acs_bridges
from drivetrain_fabric.adviser._conf import read_settings
from drivetrain_fabric.adviser._facts import Adapter, Facts, Gid
from drivetrain_fabric.adviser._versions import SYSCTLS, assumed_version, parse_version
from drivetrain_fabric.topology import closeness, distance, read_topology
from drivetrain_fabric.topology._sysfs import entries, read_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_fabric.topology import Nic, Topology

_WHEELS = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
_MEMLOCK = re.compile(r"^Max locked memory\s+(\S+)", re.MULTILINE)
_FLAGS = re.compile(r"^flags\s*:(.*)$", re.MULTILINE)
_BYTES = re.compile(r"[0-9]{1,20}")
_RELEASE = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})")
_FIELD = re.compile(r"^ *(roce_\w+) *\| *(0x[0-9a-fA-F]{1,8}) *$", re.MULTILINE)
_LONGEST_TOOL_S, _NULL = 10, subprocess.DEVNULL
_ERDMA_CARD = ("0x1ded", "0x107f")


def gather(
    root: str | os.PathLike[str] = "/",
    *,
    environment: Mapping[str, str] = os.environ,
    home: str | os.PathLike[str] | None = None,
) -> Facts:
    """Returns what can be seen of a host without asking another one.

    Args:
        root: Where its `sys`, `proc` and `etc` are; a copy of another host's will do.
        environment: The variables.
        home: Where NCCL looks for `.nccl.conf`; by default the user's home, or nothing
            for a copy of another host.

    Example:
        >>> gather("/nowhere", environment={"NCCL_DEBUG": "INFO"}).settings
        (Assignment(name='NCCL_DEBUG', value='INFO', where='environment'),)
    """
    top = Path(root)
    is_here = top.resolve() == Path("/")
    if home is None and is_here:
        home = Path.home()
    nccl, nccl_from, is_assumed = _nccl() if is_here else _assumed()
    topology = _topology(top / "sys", is_here=is_here)
    settings, bad_lines = read_settings(
        environment, top, None if home is None else Path(home)
    )
    memlock_bytes, unreadable = _memlock(top / "proc/self/limits")
    return Facts(
        nccl=nccl,
        nccl_from=nccl_from,
        is_nccl_assumed=is_assumed,
        adapters=tuple(_adapter(top / "sys", nic, is_here) for nic in topology.nics)
        if topology
        else (),
        has_erdma_card=_has_erdma_card(top / "sys"),
        num_gpus=_num_gpus(topology),
        gdr_distance=_gdr_distance(topology),
        sysctl=_sysctl(top / "proc/sys"),
        memlock_bytes=memlock_bytes,
        modules=_names(top / "sys/module"),
        kernel=_kernel(top / "proc/sys/kernel/osrelease"),
        has_open_driver=_has_open_driver(top / "proc/driver/nvidia/version"),
        is_virtual=_is_virtual(top / "proc/cpuinfo"),
        acs_bridges=read_acs_bridges(top / "sys"),
        interface_names=_names(top / "sys/class/net"),
        default_route=_default_route(top / "proc/net/route"),
        own_address=_own_address(top),
        settings=settings,
        bad_lines=bad_lines,
        unreadable=unreadable,
    )


def _nccl() -> tuple[tuple[int, ...], str, bool]:
    """Returns the version of NCCL, who says so, and whether it is but assumed."""
    for wheel in _WHEELS:
        try:
            return parse_version(metadata.version(wheel)), f"the wheel {wheel}", False
        except metadata.PackageNotFoundError:
            continue
    version = _library_version()
    if version is not None:
        return version, "libnccl.so.2", False
    return _assumed()


def _assumed() -> tuple[tuple[int, ...], str, bool]:
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = None
    return *assumed_version(torch), True


def _library_version() -> tuple[int, ...] | None:
    """Asks the library that the loader finds; it starts nothing on a GPU."""
    if sys.platform != "linux":
        return None
    try:
        library = ctypes.CDLL("libnccl.so.2")
        code = ctypes.c_int()
        failed = library.ncclGetVersion(ctypes.byref(code))
    except (OSError, AttributeError):
        return None
    if failed or code.value < 20_000:
        return None
    return code.value // 10_000, code.value // 100 % 100, code.value % 100


def _topology(sysfs: Path, *, is_here: bool) -> Topology | None:
    if not sysfs.is_dir():
        return None
    topology = read_topology(sysfs, use_nvml=is_here, name="here")
    if topology.nics:
        return topology
    # In a container all there is may be a part of a card, made for it.
    every = read_topology(sysfs, use_nvml=is_here, name="here", virtual=True)
    return every if any(nic.slot is not None for nic in every.nics) else topology


def _adapter(sysfs: Path, nic: Nic, is_here: bool) -> Adapter:
    net = sysfs / "class/net" / nic.name
    device = net / "device"
    if nic.rdma is not None and not device.exists():
        device = sysfs / "class/infiniband" / nic.rdma.device / "device"
    return Adapter(
        nic=nic,
        vendor=read_text(device / "vendor"),
        device=read_text(device / "device"),
        gids=_gids(sysfs, nic),
        trust=read_text(net / "qos/trust"),
        roce_accl=_roce_accl(nic) if is_here else (),
    )


def _roce_accl(nic: Nic) -> tuple[tuple[str, int], ...]:
    """Asks the card's tool, if it is there, for how RoCE sends again; it needs root."""
    is_roce = nic.rdma is not None and nic.rdma.link_layer == "Ethernet"
    tool = shutil.which("mlxreg") or shutil.which("mstreg")
    if tool is None or not is_roce or nic.driver != "mlx5_core" or nic.slot is None:
        return ()
    command = [tool, "-d", nic.slot.address, "--reg_name", "ROCE_ACCL", "--get"]
    try:
        shown = subprocess.check_output(
            command, stdin=_NULL, stderr=_NULL, timeout=_LONGEST_TOOL_S
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    fields = _FIELD.findall(shown.decode("ascii", "replace"))
    return tuple((name, int(text, 16)) for name, text in fields)


def _gids(sysfs: Path, nic: Nic) -> tuple[Gid, ...]:
    if nic.rdma is None:
        return ()
    port = sysfs / "class/infiniband" / nic.rdma.device / "ports" / str(nic.rdma.port)
    found = []
    for file in entries(port / "gids"):
        address = read_text(file) or ""
        if file.name.isdecimal() and address.strip("0:"):
            kind = read_text(port / "gid_attrs/types" / file.name)
            found.append(Gid(index=int(file.name), address=address, kind=kind))
    return tuple(sorted(found, key=lambda gid: gid.index))


def _has_erdma_card(sysfs: Path) -> bool:
    return any(
        (read_text(card / "vendor"), read_text(card / "device")) == _ERDMA_CARD
        for card in entries(sysfs / "bus/pci/devices")
    )


def _num_gpus(topology: Topology | None) -> int | None:
    if topology is None:
        return None
    return sum(gpu.name.startswith("NVIDIA") for gpu in topology.gpus)


def _gdr_distance(topology: Topology | None) -> str | None:
    """Returns the distance of the GPU that is farthest from its nearest RDMA card."""
    if topology is None:
        return None
    gpus = [gpu.label for gpu in topology.gpus if gpu.name.startswith("NVIDIA")]
    cards = [nic.name for nic in topology.nics if nic.rdma is not None]
    if not gpus or not cards:
        return None
    nearest = [
        min((distance(topology, gpu, card) for card in cards), key=closeness)
        for gpu in gpus
    ]
    farthest = max(nearest, key=closeness)
    # NCCL has no level of its own for several host bridges of a NUMA node.
    return "PHB" if farthest == "NODE" else farthest


def _sysctl(proc_sys: Path) -> tuple[tuple[str, str], ...]:
    values = ((n, read_text(proc_sys / n.replace(".", "/"))) for n in SYSCTLS)
    return tuple((name, " ".join(text.split())) for name, text in values if text)


def _memlock(limits: Path) -> tuple[int | None, tuple[tuple[str, str], ...]]:
    """Returns how much may be pinned, and the line if it does not say so."""
    match = _MEMLOCK.search(read_text(limits) or "")
    if match is None:
        return None, ()
    if match[1] == "unlimited":
        return -1, ()
    if not _BYTES.fullmatch(match[1]):
        return None, ((f"{limits}: Max locked memory", match[1]),)
    return int(match[1]), ()


def _names(folder: Path) -> frozenset[str] | None:
    found = frozenset(entry.name for entry in entries(folder))
    return found or None


def _kernel(release: Path) -> tuple[int, ...] | None:
    match = _RELEASE.match(read_text(release) or "")
    return (int(match[1]), int(match[2])) if match is not None else None


def _has_open_driver(version: Path) -> bool | None:
    text = read_text(version)
    return "Open Kernel Module" in text if text is not None else None


def _is_virtual(cpuinfo: Path) -> bool | None:
    flags = _FLAGS.search(read_text(cpuinfo) or "")
    return "hypervisor" in flags[1].split() if flags is not None else None


def _default_route(routes: Path) -> str | None:
    for line in (read_text(routes) or "").splitlines()[1:]:
        words = line.split()
        if len(words) > 2 and words[1] == "00000000":
            return words[0]
    return None


def _own_address(top: Path) -> str | None:
    name = read_text(top / "proc/sys/kernel/hostname")
    for line in (read_text(top / "etc/hosts") or "").splitlines():
        words = line.split("#")[0].split()
        if name and name in words[1:]:
            return words[0]
    return None
