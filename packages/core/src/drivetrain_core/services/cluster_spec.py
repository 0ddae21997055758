"""One readable file that describes a cluster: its nodes, devices, links and prices.

It is read by whatever plans for hardware: `accelerate`, the search, simulators and the
cost report. A file looks like this; quantities carry their units:

    drivetrain_cluster: 1
    name: two-nodes
    nodes:
      - name: gpu
        count: 2
        cores: 128
        memory: 2TiB
        devices: {kind: NVIDIA H200, count: 8, memory: 141GB, memory_bandwidth: 4.8TB/s,
                  peak_flops: {bfloat16: 989TFLOP/s}}
        links: [{kind: NVLink, bandwidth: 450GB/s, latency: 2us}]
        nics: {count: 8, bandwidth: 400Gb/s, latency: 5us, rdma: true}
        switch: leaf
        price: {currency: USD, on_demand_per_hour: 80, spot_per_hour: 31.5}
    switches:
      - {name: leaf, uplink: spine, oversubscription: 2}
      - {name: spine}
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_core._errors import ClusterSpecError, reason_of
from drivetrain_core._plugins import ACCELERATORS, installed
from drivetrain_core._yaml import dump_yaml, load_yaml
from drivetrain_core.services._schema import (
    Amount,
    Flag,
    Kind,
    Mapped,
    Nested,
    NestedList,
    Number,
    Text,
    check_fields,
    choose,
    from_plain,
    to_plain,
)
from drivetrain_core.services._units import (
    BITS_PER_SECOND,
    BYTES,
    BYTES_PER_SECOND,
    FLOPS,
    SECONDS,
)

if TYPE_CHECKING:
    import os

VERSION = 1
_HEADER = "drivetrain_cluster"
_DTYPES = (
    "float64",
    "float32",
    "tf32",
    "bfloat16",
    "float16",
    "float8",
    "float4",
    "int8",
)
_DEVICE_TYPES = ("cpu", "cuda", "hpu", "mps", "mtia", "xpu")


def _device_types() -> tuple[str, ...]:
    """Returns torch's types, those of packages here, and the one of this process."""
    types = [*_DEVICE_TYPES, *(plugin.name for plugin in installed(ACCELERATORS))]
    torch = sys.modules.get("torch")
    here = torch.accelerator.current_accelerator() if torch else None
    return tuple(dict.fromkeys([*types, *([here.type] if here else [])]))


def _as(kind: Kind, key: str | None = None) -> dict[str, object]:
    return {"as": kind} if key is None else {"as": kind, "key": key}


class _Checked:
    """Checks its fields, so that an object made in Python is as sound as a file."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Device(_Checked):
    """The accelerators of a node, or its processor where it has none.

    Args:
        kind: The model, as its driver calls it.
        count: How many a node has.
        memory_bytes: The memory of one.
        type: The device type as torch calls it.
        peak_flops: The peak rate of one in operations a second, dense, by the name of
            the number format; what is unknown is left out.
        memory_bandwidth_bytes_per_s: What one reads and writes of its memory in all;
            0 where unknown.
    """

    kind: str = field(metadata=_as(Text()))
    count: int = field(metadata=_as(Number(minimum=1, whole=True)), default=1)
    memory_bytes: int = field(metadata=_as(Amount(BYTES), "memory"))
    type: str = field(metadata=_as(Text(choices=_device_types)), default="cuda")
    peak_flops: Mapping[str, float] = field(
        metadata=_as(Mapped(Amount(FLOPS), _DTYPES)), default_factory=dict
    )
    memory_bandwidth_bytes_per_s: float = field(
        metadata=_as(Amount(BYTES_PER_SECOND), "memory_bandwidth"), default=0.0
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Link(_Checked):
    """What connects the devices of a node.

    Args:
        kind: NVLink, PCIe, and so on.
        bandwidth_bytes_per_s: What one device sends at most, in one direction.
        latency_s: The time that a small message takes.
    """

    kind: str = field(metadata=_as(Text()))
    bandwidth_bytes_per_s: float = field(
        metadata=_as(Amount(BYTES_PER_SECOND), "bandwidth")
    )
    latency_s: float = field(metadata=_as(Amount(SECONDS), "latency"), default=0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Nic(_Checked):
    """The network cards of a node.

    Args:
        count: How many a node has.
        bandwidth_bits_per_s: What one sends at most, in one direction.
        latency_s: The time that a small message takes to another node.
        rdma: Whether they write to memory without the processor.
        rails: Whether each hangs on a switch of its own, beside the same card of other
            nodes; else all hang on one switch.
    """

    count: int = field(metadata=_as(Number(minimum=1, whole=True)), default=1)
    bandwidth_bits_per_s: float = field(
        metadata=_as(Amount(BITS_PER_SECOND), "bandwidth")
    )
    latency_s: float = field(metadata=_as(Amount(SECONDS), "latency"), default=0.0)
    rdma: bool = field(metadata=_as(Flag()), default=False)
    rails: bool = field(metadata=_as(Flag()), default=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Price(_Checked):
    """What one node costs for an hour.

    Args:
        currency: Its code of three letters.
        on_demand_per_hour: The price of a node that stays.
        spot_per_hour: The price of a node that may be reclaimed; None if there is none.
    """

    currency: str = field(metadata=_as(Text()))
    on_demand_per_hour: float = field(metadata=_as(Number()))
    spot_per_hour: float | None = field(metadata=_as(Number()), default=None)

    def __post_init__(self) -> None:
        """Checks the currency as well."""
        check_fields(self)
        if len(self.currency) != 3 or not self.currency.isupper():
            message = f"currency must be a code such as USD, got {self.currency!r}"
            raise ClusterSpecError(message)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeGroup(_Checked):
    """Nodes that are alike.

    Args:
        name: The name of the group.
        count: How many nodes it has.
        devices: The devices of one node.
        cores: The physical processor cores of one node; 0 where unknown.
        memory_bytes: The host memory of one node; 0 where unknown.
        links: What connects the devices, the fastest first.
        nics: What connects the node to others; None where nothing does.
        switch: The switch that the node hangs on.
        price: What it costs; None where unknown.
    """

    name: str = field(metadata=_as(Text()))
    count: int = field(metadata=_as(Number(minimum=1, whole=True)), default=1)
    cores: int = field(metadata=_as(Number(whole=True)), default=0)
    memory_bytes: int = field(metadata=_as(Amount(BYTES), "memory"), default=0)
    devices: Device = field(metadata=_as(Nested(Device)))
    links: tuple[Link, ...] = field(metadata=_as(NestedList(Link)), default=())
    nics: Nic | None = field(metadata=_as(Nested(Nic)), default=None)
    switch: str | None = field(metadata=_as(Text()), default=None)
    price: Price | None = field(metadata=_as(Nested(Price)), default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Switch(_Checked):
    """A switch, or a tier of them.

    Args:
        name: Its name, as nodes and other switches refer to it.
        uplink: The switch above it; None at the top.
        oversubscription: How much faster its ports down are together than those up.
        latency_s: The time that it adds.
        downlinks: How many ports down one switch has; 0 where unknown.
        uplinks: How many ports up one switch has; 0 where the oversubscription says it.
        uplink_bandwidth_bits_per_s: What one port up sends at most; 0 where it is as
            fast as a port down.
    """

    name: str = field(metadata=_as(Text()))
    uplink: str | None = field(metadata=_as(Text()), default=None)
    oversubscription: float = field(metadata=_as(Number(minimum=1)), default=1.0)
    latency_s: float = field(metadata=_as(Amount(SECONDS), "latency"), default=0.0)
    downlinks: int = field(metadata=_as(Number(whole=True)), default=0)
    uplinks: int = field(metadata=_as(Number(whole=True)), default=0)
    uplink_bandwidth_bits_per_s: float = field(
        metadata=_as(Amount(BITS_PER_SECOND), "uplink_bandwidth"), default=0.0
    )

    def __post_init__(self) -> None:
        """Checks that what lies above is described only where something does."""
        check_fields(self)
        if self.uplink is None and (self.uplinks or self.uplink_bandwidth_bits_per_s):
            message = (
                f"switch {self.name!r} has ports up, but no uplink: name the switch "
                "above it, or leave uplinks and uplink_bandwidth out"
            )
            raise ClusterSpecError(message)
        if self.uplinks and self.oversubscription != 1:
            message = (
                f"switch {self.name!r} has uplinks {self.uplinks} and "
                f"oversubscription {self.oversubscription:g}: give one of them, the "
                "other follows"
            )
            raise ClusterSpecError(message)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSpec(_Checked):
    """A cluster.

    Args:
        name: What it is called.
        nodes: Its nodes, in groups that are alike.
        switches: Its switches, if nodes refer to any.

    Raises:
        ClusterSpecError: A value is not valid, or a name is missing or doubled.

    Example:
        >>> spec = ClusterSpec.from_yaml('''
        ... drivetrain_cluster: 1
        ... name: small
        ... nodes:
        ...   - name: gpu
        ...     count: 2
        ...     devices: {kind: A100, count: 8, memory: 80GiB}
        ... ''')
        >>> spec.num_devices
        16
        >>> spec.to_yaml().splitlines()[-1].strip()
        'memory: 80GiB'
    """

    name: str = field(metadata=_as(Text()))
    nodes: tuple[NodeGroup, ...] = field(metadata=_as(NestedList(NodeGroup)))
    switches: tuple[Switch, ...] = field(metadata=_as(NestedList(Switch)), default=())

    def __post_init__(self) -> None:
        """Checks that names are there once and refer to what exists."""
        check_fields(self)
        if not self.nodes:
            message = "nodes must have at least one group"
            raise ClusterSpecError(message)
        _check_unique("nodes", [group.name for group in self.nodes])
        _check_unique("switches", [switch.name for switch in self.switches])
        known = tuple(switch.name for switch in self.switches)
        for i, group in enumerate(self.nodes):
            _check_known(f"nodes[{i}].switch", group.switch, known)
        for i, switch in enumerate(self.switches):
            _check_known(f"switches[{i}].uplink", switch.uplink, known)
        self._check_no_loop()

    @property
    def num_nodes(self) -> int:
        """Returns the number of nodes of all groups."""
        return sum(group.count for group in self.nodes)

    @property
    def num_devices(self) -> int:
        """Returns the number of devices of all nodes."""
        return sum(group.count * group.devices.count for group in self.nodes)

    @classmethod
    def from_yaml(cls, text: str, source: str = "cluster") -> ClusterSpec:
        """Returns the cluster that a text describes.

        Args:
            text: The text of a file.
            source: What to call it in errors.

        Raises:
            ClusterSpecError: It is not a valid description; the message says where.
        """
        plain = load_yaml(text, source, ClusterSpecError)
        if not isinstance(plain, Mapping) or _HEADER not in plain:
            message = f"{source}: it must begin with '{_HEADER}: {VERSION}'"
            raise ClusterSpecError(message)
        body = dict(plain)
        version = body.pop(_HEADER)
        if type(version) is not int or version != VERSION:
            message = f"{source}: {_HEADER} is {version!r}, this version of Drivetrain reads {VERSION}"
            raise ClusterSpecError(message)
        try:
            return from_plain(cls, body, "")
        except ClusterSpecError as error:
            message = f"{source}: {error}"
            raise ClusterSpecError(message) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ClusterSpec:
        """Returns the cluster that a file describes.

        Args:
            path: The file.

        Raises:
            ClusterSpecError: It cannot be read, or is not a valid description.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            message = f"{path}: cannot be read: {reason_of(error)}"
            raise ClusterSpecError(message) from error
        return cls.from_yaml(text, str(path))

    def to_yaml(self) -> str:
        """Returns the text of a file that describes this cluster."""
        return dump_yaml({_HEADER: VERSION, **to_plain(self)})

    def dump(self, path: str | os.PathLike[str]) -> None:
        """Writes a file that describes this cluster.

        Args:
            path: The file.
        """
        Path(path).write_text(self.to_yaml(), encoding="utf-8")

    def _check_no_loop(self) -> None:
        above = {s.name: [s.uplink] for s in self.switches if s.uplink is not None}
        try:
            TopologicalSorter(above).prepare()
        except CycleError as error:
            path = " -> ".join(reversed(error.args[1]))
            message = f"switches must not go in a circle: {path}"
            raise ClusterSpecError(message) from error


def _check_unique(where: str, names: list[str]) -> None:
    for i, name in enumerate(names):
        if name in names[:i]:
            message = f"{where}[{i}].name is {name!r}, which stands before already"
            raise ClusterSpecError(message)


def _check_known(where: str, name: str | None, known: tuple[str, ...]) -> None:
    if name is not None and name not in known:
        hint = choose(name, known) if known else ", but there are no switches"
        message = f"{where} is {name!r}{hint}"
        raise ClusterSpecError(message)
