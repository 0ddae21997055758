"""What is known of a host and its network; None, or nothing, where it is not known."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Literal

from drivetrain_fabric.adviser._errors import AdviserError
from drivetrain_fabric.adviser._versions import strtoll
from drivetrain_fabric.topology import Nic  # noqa: TC001  (the reference resolves it)

Transport = Literal["sockets", "infiniband", "roce", "erdma", "efa"]

# PCI vendors: those whose cards NCCL itself knows, and Alibaba.
_AMAZON, _GOOGLE, _ALIBABA = "0x1d0f", "0x1ae0", "0x1ded"
_ERDMA_DEVICE = "0x107f"
_OFF = ("", "0")
# The kernel has none with more digits.
_INTEGER = re.compile(r"-?[0-9]{1,20}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Gid:
    """An address of an RDMA port.

    Args:
        index: Its place in the table of the port.
        address: Eight groups of four hexadecimal digits.
        kind: As the kernel calls it: `IB/RoCE v1` or `RoCE v2`; None where unknown.
    """

    index: int
    address: str
    kind: str | None = None

    @property
    def is_ipv4(self) -> bool:
        """Whether it stands for an IPv4 address.

        Example:
            >>> Gid(index=3, address="0000:0000:0000:0000:0000:ffff:0a00:0001").is_ipv4
            True
        """
        return self.address.startswith("0000:0000:0000:0000:0000:ffff:")


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """A network card, with what only an adviser asks.

    Args:
        nic: What the topology says of it.
        vendor: Its PCI vendor: `0x15b3`.
        device: Its PCI device.
        gids: The addresses of its RDMA port.
        trust: Which mark of a packet decides its priority: `dscp` or `pcp`.
        roce_accl: The fields of its register ROCE_ACCL, as `mlxreg` shows them; none
            where nobody may look.
    """

    nic: Nic
    vendor: str | None = None
    device: str | None = None
    gids: tuple[Gid, ...] = ()
    trust: str | None = None
    roce_accl: tuple[tuple[str, int], ...] = ()

    @property
    def rdma_device(self) -> str:
        """What its RDMA port is called; empty if it has none."""
        return self.nic.rdma.device if self.nic.rdma is not None else ""

    @property
    def is_erdma(self) -> bool:
        """Whether it is Alibaba's elastic RDMA."""
        named = self.nic.driver == "erdma" or self.rdma_device.startswith("erdma")
        return named or (self.vendor, self.device) == (_ALIBABA, _ERDMA_DEVICE)

    @property
    def is_efa(self) -> bool:
        """Whether it is Amazon's elastic fabric adapter."""
        return self.nic.driver == "efa"

    @property
    def is_active_rdma(self) -> bool:
        """Whether it has an RDMA port that is up."""
        return self.nic.rdma is not None and self.nic.rdma.state == "ACTIVE"

    @property
    def cloud(self) -> Literal["amazon", "google"] | None:
        """Whose card NCCL takes it for when it picks a number of sockets."""
        if self.vendor == _AMAZON:
            return "amazon"
        return "google" if self.vendor == _GOOGLE else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """A setting as it stands now.

    Args:
        name: The variable.
        value: Its value.
        where: `environment`, or the file and the line.
    """

    name: str
    value: str
    where: str = "environment"


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """A host, its network, and what is set on it.

    Args:
        nccl: The version of NCCL: `(2, 29, 7)`.
        nccl_from: Who says so, or why it is assumed.
        is_nccl_assumed: Whether nobody says so.
        adapters: The network cards, virtual ones left out.
        has_erdma_card: Whether a PCI card for eRDMA is there, with a driver or without.
        num_gpus: How many GPUs NCCL can use.
        gdr_distance: How far the farthest GPU is from its nearest RDMA card.
        delay_s: Of a short message to another host, one way.
        port_bytes_per_s: What a host sends at most.
        flow_bytes_per_s: What one TCP connection carries at most.
        num_paths: Over how many equal ways switches spread connections.
        dscp: The mark of packets that switches do not drop.
        shares_switch: Whether all network cards of a host hang on the same switch.
        ranks: Of the job.
        sysctl: Of the kernel, by its name: `net.ipv4.tcp_wmem`.
        memlock_bytes: How much memory a process may pin; -1 for all of it.
        modules: The kernel's modules.
        kernel: Its version: `(6, 8)`.
        has_open_driver: Whether NVIDIA's kernel module is the open one.
        is_virtual: Whether this is a virtual machine.
        acs_bridges: PCI bridges that send what GPUs send each other to the processor.
        interface_names: All network interfaces, virtual ones as well.
        default_route: The interface of the default route.
        own_address: What /etc/hosts says that this host's name means.
        settings: What is set, what counts first.
        bad_lines: Lines of NCCL's files that say nothing: where, and the text.
        unreadable: Values of the kernel that make no sense: where, and the text.

    Raises:
        AdviserError: A number is negative or zero where it must not be.

    Example:
        >>> Facts(nccl=(2, 29, 7), delay_s=0.001, port_bytes_per_s=1.25e9).bdp_bytes
        2500000
    """

    nccl: tuple[int, ...] = (2, 29, 7)
    nccl_from: str = "given"
    is_nccl_assumed: bool = False
    adapters: tuple[Adapter, ...] = ()
    has_erdma_card: bool = False
    num_gpus: int | None = None
    gdr_distance: str | None = None
    delay_s: float | None = None
    port_bytes_per_s: float | None = None
    flow_bytes_per_s: float | None = None
    num_paths: int | None = None
    dscp: int | None = None
    shares_switch: bool | None = None
    ranks: int | None = None
    sysctl: tuple[tuple[str, str], ...] = ()
    memlock_bytes: int | None = None
    modules: frozenset[str] | None = None
    kernel: tuple[int, ...] | None = None
    has_open_driver: bool | None = None
    is_virtual: bool | None = None
    acs_bridges: tuple[str, ...] | None = None
    interface_names: frozenset[str] | None = None
    default_route: str | None = None
    own_address: str | None = None
    settings: tuple[Assignment, ...] = ()
    bad_lines: tuple[tuple[str, str], ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Checks the numbers that people and files give."""
        above_zero = ("port_bytes_per_s", "flow_bytes_per_s", "num_paths", "ranks")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in above_zero and value is not None and not 0 < value < 1e18:
                message = f"{field.name} must be more than 0, got {value}"
                raise AdviserError(message)
        if self.delay_s is not None and not 0 <= self.delay_s <= 60:
            message = f"delay_s must be 0 to 60 seconds, got {self.delay_s}"
            raise AdviserError(message)
        if self.dscp is not None and not 0 <= self.dscp <= 63:
            message = f"dscp must be 0 to 63, got {self.dscp}"
            raise AdviserError(message)

    def value_of(self, name: str) -> str | None:
        """Returns what a variable is set to, or None.

        Args:
            name: The variable.
        """
        return next((s.value for s in self.settings if s.name == name), None)

    def number_of(self, name: str) -> int | None:
        """Returns what a variable is read as, if that is a number that C can hold.

        Args:
            name: The variable; NCCL reads the beginning of a text, torch the whole.
        """
        text = self.value_of(name)
        number, rest = strtoll(text or "")
        is_read = bool(text) and (not rest or name.startswith("NCCL_"))
        return number if is_read and abs(number) < 2**63 else None

    def kernel_numbers(self, name: str) -> tuple[int, ...]:
        """Returns the numbers of a sysctl; none where it is not known.

        Args:
            name: Its name: `net.ipv4.tcp_wmem`.
        """
        words = dict(self.sysctl).get(name, "").split()
        is_known = all(map(_INTEGER.fullmatch, words))
        return tuple(int(word) for word in words) if is_known else ()

    @property
    def transport(self) -> Transport | None:
        """How NCCL reaches other hosts; None where no network card is known.

        What it is told comes first, then RDMA ports that are up, then sockets. eRDMA
        and EFA go by their own rules even where they look like RoCE.
        """
        told = (self.value_of("NCCL_NET") or "").lower()
        if told == "socket" or self.value_of("NCCL_IB_DISABLE") not in (None, *_OFF):
            return "sockets"
        if self.has_erdma_card or any(one.is_erdma for one in self.adapters):
            return "erdma"
        if any(one.is_efa for one in self.adapters):
            return "efa"
        layers = {one.nic.rdma.link_layer for one in self.rdma if one.nic.rdma}
        if "InfiniBand" in layers:
            return "infiniband"
        if "Ethernet" in layers:
            return "roce"
        return "sockets" if self.adapters else None

    @property
    def rdma(self) -> tuple[Adapter, ...]:
        """The cards with an RDMA port that is up."""
        return tuple(one for one in self.adapters if one.is_active_rdma)

    @property
    def interfaces(self) -> tuple[Adapter, ...]:
        """The cards that are up and carry IP."""
        return tuple(
            one
            for one in self.adapters
            if one.nic.state in ("up", "unknown") and not self._is_bare_rdma(one)
        )

    @property
    def fastest_bytes_per_s(self) -> float | None:
        """What the fastest card carries, or what was said or measured."""
        speeds = [one.nic.best_mbit_per_s for one in self.adapters if one.nic.is_up]
        best = max((speed for speed in speeds if speed), default=None)
        if self.port_bytes_per_s is not None:
            return self.port_bytes_per_s
        return best * 1e6 / 8 if best is not None else None

    @property
    def bdp_bytes(self) -> int | None:
        """How many bytes are under way when the network is full, there and back."""
        if self.delay_s is None or self.fastest_bytes_per_s is None:
            return None
        return int(2 * self.delay_s * self.fastest_bytes_per_s)

    @staticmethod
    def _is_bare_rdma(one: Adapter) -> bool:
        return one.nic.rdma is not None and one.nic.name.startswith(one.nic.rdma.device)
