"""Asks NVIDIA's driver for GPUs and NVLinks, through the package `nvidia-ml-py`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

from drivetrain_fabric.topology._parts import Gpu, NvLink, NvSwitch, PciLink, PciSlot

_INSTALL = "pip install 'drivetrain-fabric[nvml]'"
_MAX_LINKS = 36
_IS_SWITCH = 2
# What a link carries one way, by the enumeration of versions, whose 6 is NVLink 4.
_LINK_BYTES_PER_S = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 25e9, 6: 25e9, 7: 50e9}
_GT_PER_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
# What stands for a device that a virtual machine cannot see.
_HIDDEN = ("0000:00:00.0", "ffffffff:ff:ff.0")


class Nvml(Protocol):
    """What is used of the module `pynvml`; a fake with these is enough for tests."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None:  # noqa: N802
        """Loads the driver's library."""

    def nvmlShutdown(self) -> None:  # noqa: N802
        """Gives it back."""

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        """Returns the number of GPUs."""

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        """Returns what stands for a GPU in other calls."""

    def nvmlDeviceGetName(self, handle: Any) -> str | bytes:  # noqa: N802
        """Returns its model."""

    def nvmlDeviceGetUUID(self, handle: Any) -> str | bytes:  # noqa: N802
        """Returns its identity."""

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:  # noqa: N802
        """Returns its memory, with `total`."""

    def nvmlDeviceGetPciInfo(self, handle: Any) -> Any:  # noqa: N802
        """Returns its PCI address, as `busId`."""

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Any) -> int:  # noqa: N802
        """Returns what it and its slot can do."""

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: Any) -> int:  # noqa: N802
        """Returns how many lanes it and its slot have."""

    def nvmlDeviceGetNvLinkState(self, handle: Any, link: int) -> int:  # noqa: N802
        """Returns whether a link is on."""

    def nvmlDeviceGetNvLinkVersion(self, handle: Any, link: int) -> int:  # noqa: N802
        """Returns the generation of a link, as an enumeration."""

    def nvmlDeviceGetNvLinkRemoteDeviceType(  # noqa: N802
        self, handle: Any, link: int
    ) -> int:
        """Returns what is at its other end."""

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: Any, link: int) -> Any:  # noqa: N802
        """Returns the PCI address of what is at its other end, as `busId`."""


@dataclass(frozen=True, slots=True)
class NvmlFacts:
    """What the driver knows.

    Args:
        gpus: The GPUs, without their place in the PCI tree.
        nvswitches: The switches that NVLinks lead to.
        nvlinks: The links.
        missing: Why there is nothing, or what of it is missing; None if all is there.
    """

    gpus: tuple[Gpu, ...] = ()
    nvswitches: tuple[NvSwitch, ...] = ()
    nvlinks: tuple[NvLink, ...] = ()
    missing: str | None = None


def read_nvml(nvml: Nvml | None = None) -> NvmlFacts:
    """Returns what NVIDIA's driver knows; nothing, with the reason, where it is absent.

    Args:
        nvml: By default the module `pynvml`, if it is installed.

    Example:
        >>> class NoDriver:
        ...     NVMLError = OSError
        ...     def nvmlInit(self):
        ...         raise OSError("Driver Not Loaded")
        >>> read_nvml(NoDriver()).missing
        'NVML does not answer: Driver Not Loaded'
    """
    if nvml is None:
        try:
            nvml = cast("Nvml", import_module("pynvml"))
        except ImportError:
            return NvmlFacts(missing=f"NVML is not asked for GPUs: {_INSTALL}")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return NvmlFacts(missing=f"NVML does not answer: {error}")
    try:
        return _read(nvml)
    except nvml.NVMLError as error:
        return NvmlFacts(missing=f"NVML gave up: {error}")
    finally:
        nvml.nvmlShutdown()


def _read(nvml: Nvml) -> NvmlFacts:
    handles: dict[str, Any] = {}
    gpus, lost = [], []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            gpu = _read_gpu(nvml, handle, index)
        except nvml.NVMLError as error:  # a GPU that fell off the bus
            lost.append(f"GPU {index} does not answer: {error}")
            continue
        gpus.append(gpu)
        handles[gpu.label] = handle
    nvlinks, switches = _join(nvml, handles, gpus)
    return NvmlFacts(tuple(gpus), switches, nvlinks, "; ".join(lost) or None)


def _join(
    nvml: Nvml, handles: dict[str, Any], gpus: list[Gpu]
) -> tuple[tuple[NvLink, ...], tuple[NvSwitch, ...]]:
    """Returns the links, those between the same two ends as one, and the switches."""
    order = [gpu.label for gpu in gpus]
    labels = {gpu.slot.address: gpu.label for gpu in gpus}
    switches: dict[str | None, NvSwitch] = {}
    counts: Counter[tuple[str, str]] = Counter()
    speeds: dict[tuple[str, str], float | None] = {}
    for label in order:
        for address, is_switch, bytes_per_s in _read_links(nvml, handles[label]):
            if is_switch:
                new = NvSwitch(index=len(switches), address=address)
                peer = switches.setdefault(address, new).label
            else:
                peer = labels.get(address or "", "")
            # Both GPUs of a pair list their link: the first one's word counts.
            if is_switch or (peer and order.index(label) < order.index(peer)):
                counts[label, peer] += 1
                speeds[label, peer] = speeds.get((label, peer)) or bytes_per_s
    links = (
        NvLink(gpu=gpu, peer=peer, count=count, bytes_per_s=speeds[gpu, peer])
        for (gpu, peer), count in counts.items()
    )
    return tuple(links), tuple(switches.values())


def _read_gpu(nvml: Nvml, handle: Any, index: int) -> Gpu:
    return Gpu(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        memory_bytes=_memory_bytes(nvml, handle),
        slot=PciSlot(
            address=_address(nvml.nvmlDeviceGetPciInfo(handle)),
            link=_pci_link(nvml, handle),
        ),
    )


def _memory_bytes(nvml: Nvml, handle: Any) -> int | None:
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError:  # GPUs that share the memory of the processor have none
        return None


def _pci_link(nvml: Nvml, handle: Any) -> PciLink | None:
    """Returns the link at full speed: what sysfs says of an idle GPU is much less."""
    try:
        generation = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
        width = nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
    except nvml.NVMLError:
        return None
    if generation not in _GT_PER_S or width < 1:
        return None
    return PciLink(gt_per_s=_GT_PER_S[generation], width=width)


def _read_links(nvml: Nvml, handle: Any) -> list[tuple[str | None, bool, float | None]]:
    """Returns the other end, whether that is a switch, and the speed of each link."""
    found = []
    for link in range(_MAX_LINKS):
        try:
            if not nvml.nvmlDeviceGetNvLinkState(handle, link):
                continue
        except nvml.NVMLError:  # beyond the last link, or a GPU without any
            break
        version = _ask(nvml, nvml.nvmlDeviceGetNvLinkVersion, handle, link)
        kind = _ask(nvml, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        remote = _ask(nvml, nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        address = None if remote is None else _address(remote)
        if address in _HIDDEN:
            address = None
        found.append((address, kind == _IS_SWITCH, _LINK_BYTES_PER_S.get(version)))
    return found


def _ask(nvml: Nvml, function: Any, handle: Any, link: int) -> Any:
    try:
        return function(handle, link)
    except nvml.NVMLError:
        return None


def _address(info: Any) -> str:
    """Returns a PCI address as sysfs writes it."""
    domain, _, rest = _text(info.busId).lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
