"""Parts of a host: processors, bridges, devices and links, as pure data."""

from __future__ import annotations

from dataclasses import dataclass

# Bits that reach the other side of 1 bit sent: 8b/10b coding, 128b/130b, then flits.
_CODING = ((5.0, 0.8), (32.0, 128 / 130), (float("inf"), 236 / 256))


@dataclass(frozen=True, kw_only=True, slots=True)
class NumaNode:
    """Processors and the memory that is near them.

    Args:
        index: Its number.
        cpus: Its processors as the kernel lists them: `0-55,112-167`.
        memory_bytes: Its memory; None where unknown.
    """

    index: int
    cpus: str = ""
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PciLink:
    """The PCI Express link of a device, to the bridge above it.

    Args:
        gt_per_s: Transfers a second of one lane, in units of 10^9.
        width: How many lanes it has.
        max_gt_per_s: What the device could do; 0 where unknown.
        max_width: Likewise.

    Example:
        >>> link = PciLink(gt_per_s=32.0, width=16)
        >>> link.generation, round(link.bytes_per_s / 1e9)
        (5, 63)
    """

    gt_per_s: float
    width: int
    max_gt_per_s: float = 0.0
    max_width: int = 0

    @property
    def generation(self) -> int:
        """The generation of PCI Express that has this speed."""
        return next((n for n, gt in _GENERATIONS if self.gt_per_s <= gt), 7)

    @property
    def bytes_per_s(self) -> float:
        """What it carries in one direction, before headers of packets."""
        share = next(share for most, share in _CODING if self.gt_per_s <= most)
        return self.gt_per_s * 1e9 * share * self.width / 8

    @property
    def is_narrow(self) -> bool:
        """Whether fewer lanes are in use than the device has."""
        return self.width < self.max_width


_GENERATIONS = ((1, 2.5), (2, 5.0), (3, 8.0), (4, 16.0), (5, 32.0), (6, 64.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class PciSlot:
    """Where a device sits in the PCI tree.

    Args:
        address: Domain, bus, device and function: `0000:18:00.0`.
        parent: The address of the bridge above, or the name of the host bridge; None
            where that cannot be seen, as in many virtual machines.
        numa_node: The NUMA node it is near; None where unknown.
        link: Its link to what is above; None where there is none.
    """

    address: str
    parent: str | None = None
    numa_node: int | None = None
    link: PciLink | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HostBridge:
    """A root of the PCI tree, part of a processor.

    Args:
        name: As the kernel calls it: `pci0000:15`.
        numa_node: The NUMA node it belongs to; None where unknown.
    """

    name: str
    numa_node: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PciBridge:
    """A root port, or one port of a PCI switch.

    Args:
        slot: Where it sits.
    """

    slot: PciSlot


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A graphics card or another accelerator.

    Args:
        index: Its number as the driver counts.
        name: Its model.
        slot: Where it sits.
        uuid: Its identity; None where no driver tells.
        memory_bytes: Its memory; None where no driver tells.
    """

    index: int
    name: str
    slot: PciSlot
    uuid: str | None = None
    memory_bytes: int | None = None

    @property
    def label(self) -> str:
        """How links and pictures refer to it: `gpu0`."""
        return f"gpu{self.index}"


@dataclass(frozen=True, kw_only=True, slots=True)
class NvSwitch:
    """A switch between the NVLinks of GPUs.

    Args:
        index: Its number.
        address: Its PCI address; None where it belongs to another machine, or to the
            host of this virtual one.
    """

    index: int
    address: str | None = None

    @property
    def label(self) -> str:
        """How links and pictures refer to it: `nvswitch0`."""
        return f"nvswitch{self.index}"


@dataclass(frozen=True, kw_only=True, slots=True)
class NvLink:
    """All NVLinks between a GPU and another GPU, or a switch.

    Args:
        gpu: The label of the GPU; of two GPUs, of the first.
        peer: The label of the other end.
        count: How many links.
        bytes_per_s: What one link carries in one direction; None where unknown.
    """

    gpu: str
    peer: str
    count: int
    bytes_per_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RdmaPort:
    """A port of a network card that writes to memory of other hosts.

    Args:
        device: Its name: `mlx5_0`.
        port: Its number on the device, from 1.
        rate_mbit_per_s: How fast it is; None where unknown.
        link_layer: `InfiniBand` or `Ethernet`.
        state: `ACTIVE`, `DOWN` and so on.
        num_gids: How many addresses it has.
    """

    device: str
    port: int
    rate_mbit_per_s: int | None
    link_layer: str
    state: str
    num_gids: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Nic:
    """A network interface, or an RDMA port without one.

    Args:
        name: Of the interface; of the RDMA device where there is no interface.
        slot: Where it sits; None where it is no PCI device.
        speed_mbit_per_s: How fast it is; None where it does not say.
        driver: Its driver; None where unknown.
        mtu: The largest packet in bytes; None where unknown.
        state: `up`, `down`, or `unknown`.
        rdma: Its RDMA port, if it has one.
    """

    name: str
    slot: PciSlot | None = None
    speed_mbit_per_s: int | None = None
    driver: str | None = None
    mtu: int | None = None
    state: str = "unknown"
    rdma: RdmaPort | None = None

    @property
    def best_mbit_per_s(self) -> int | None:
        """What it does at best: of IP and RDMA, the faster."""
        rates = [self.speed_mbit_per_s, self.rdma and self.rdma.rate_mbit_per_s]
        return max((rate for rate in rates if rate), default=None)

    @property
    def is_up(self) -> bool:
        """Whether it may be used: some virtual cards do not know that they are up."""
        active = self.rdma is not None and self.rdma.state == "ACTIVE"
        return active or self.state != "down"


@dataclass(frozen=True, kw_only=True, slots=True)
class HostParts:
    """The parts of a host, not yet held against each other; see `Topology`."""

    name: str
    numa_nodes: tuple[NumaNode, ...]
    host_bridges: tuple[HostBridge, ...] = ()
    bridges: tuple[PciBridge, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    nvswitches: tuple[NvSwitch, ...] = ()
    nvlinks: tuple[NvLink, ...] = ()
    nics: tuple[Nic, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def slots(self) -> dict[str, PciSlot]:
        """Where each device sits that is in the PCI tree, by its label."""
        found = {f"bridge {b.slot.address}": b.slot for b in self.bridges}
        found |= {gpu.label: gpu.slot for gpu in self.gpus}
        return found | {nic.name: nic.slot for nic in self.nics if nic.slot is not None}
