"""Hosts that are not there, for tests: cards, settings, and trees of sys, proc, etc.

`HOSTS` are an instance of AWS with and without EFA, RoCE with four cards, InfiniBand,
eRDMA and a plain virtual machine; `write_host` writes one into a folder for `gather`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recorded_machines import Machine

from drivetrain_fabric.adviser._advice import Gap
from drivetrain_fabric.adviser._facts import Adapter, Assignment, Facts, Gid
from drivetrain_fabric.topology import Nic, PciSlot, RdmaPort

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from drivetrain_fabric.adviser._advice import Advice

__all__ = [
    "HOSTS",
    "LINK_LOCAL",
    "PROC",
    "V4",
    "V6",
    "ethernet",
    "facts",
    "rdma",
    "said",
    "write_host",
]

V4 = "0000:0000:0000:0000:0000:ffff:0a00:0001"
V6 = "2001:0db8:0000:0000:0000:0000:0000:0001"
LINK_LOCAL = "fe80:0000:0000:0000:a088:c203:0000:0000"


def ethernet(
    name: str = "eth0",
    gbps: float | None = 10,
    *,
    vendor: str = "0x1af4",
    state: str = "up",
) -> Adapter:
    """Returns a card without RDMA.

    Args:
        name: Of the interface.
        gbps: How fast it is; None if it does not say.
        vendor: Its PCI vendor.
        state: `up` or `down`.
    """
    nic = Nic(
        name=name,
        speed_mbit_per_s=int(gbps * 1000) if gbps else None,
        driver="virtio_net",
        mtu=1500,
        state=state,
    )
    return Adapter(nic=nic, vendor=vendor)


def rdma(
    number: int = 0,
    gbps: int = 400,
    *,
    layer: str = "Ethernet",
    device: str | None = None,
    driver: str = "mlx5_core",
    gids: tuple[Gid, ...] = (),
    slot: str | None = None,
    trust: str | None = None,
    mtu: int = 4200,
    state: str = "ACTIVE",
) -> Adapter:
    """Returns a card with an RDMA port.

    Args:
        number: Of the interface and the device: `ens0`, `mlx5_0`.
        gbps: How fast it is.
        layer: `Ethernet` or `InfiniBand`.
        device: What the device is called otherwise.
        driver: Its driver.
        gids: Its addresses.
        slot: Its PCI address.
        trust: What it goes by: `dscp` or `pcp`.
        mtu: Of the interface.
        state: Of the port.
    """
    port = RdmaPort(
        device=device or f"mlx5_{number}",
        port=1,
        rate_mbit_per_s=gbps * 1000,
        link_layer=layer,
        state=state,
        num_gids=len(gids),
    )
    nic = Nic(
        name=f"ens{number}",
        slot=PciSlot(address=slot) if slot is not None else None,
        speed_mbit_per_s=gbps * 1000,
        driver=driver,
        mtu=mtu,
        state="up",
        rdma=port,
    )
    return Adapter(nic=nic, vendor="0x15b3", gids=gids, trust=trust)


def facts(
    *adapters: Adapter, set_to: Mapping[str, str] | None = None, **known: Any
) -> Facts:
    """Returns what is known of a host, of 8 ranks unless it is said.

    Args:
        adapters: Its cards.
        set_to: Variables of its environment.
        known: Other facts.
    """
    settings = [Assignment(name=k, value=v) for k, v in (set_to or {}).items()]
    known = {"ranks": 8, **known}
    return Facts(adapters=adapters, settings=tuple(settings), **known)


def said(
    rule: Callable[[Facts], list[Advice | Gap]], known: Facts
) -> tuple[dict[str, str | None], list[str]]:
    """Returns what a rule says: values by setting, and the subjects of its gaps.

    Args:
        rule: The rule.
        known: What is known.
    """
    found = rule(known)
    advice = {one.setting: one.value for one in found if not isinstance(one, Gap)}
    return advice, [one.subject for one in found if isinstance(one, Gap)]


_KINDS: dict[str, dict[str, str]] = {
    "ena": {"class": "0x020000", "vendor": "0x1d0f", "device": "0xec20"},
    "efa": {"class": "0x020000", "vendor": "0x1d0f", "device": "0xefa2"},
    "cx7": {"class": "0x020000", "vendor": "0x15b3", "device": "0x1021"},
    "hca": {"class": "0x020700", "vendor": "0x15b3", "device": "0x1021"},
    "erdma": {"class": "0x020000", "vendor": "0x1ded", "device": "0x107f"},
    "virtio": {"class": "0x020000", "vendor": "0x1af4", "device": "0x1000"},
    "gpu": {"class": "0x030200", "vendor": "0x10de", "device": "0x2330"},
    "bridge": {"class": "0x060400", "vendor": "0x1000"},
}
_UP: dict[str, str] = {"type": "1", "dev_port": "0", "operstate": "up"}


def _port(layer: str, rate: int, gids: Sequence[str]) -> dict[str, Any]:
    return {
        "1": {
            "rate": f"{rate} Gb/sec (4X NDR)",
            "state": "4: ACTIVE",
            "link_layer": layer,
            "gids": list(gids),
        }
    }


HOSTS: dict[str, dict[str, Any]] = {
    "aws": {
        "pci": [
            ["pci0000:00/0000:00:05.0", "ena", {"driver": "ena"}],
            ["pci0000:00/0000:00:06.0", "gpu", {}],
        ],
        "net": [["ens5", "0000:00:05.0", {**_UP, "speed": "100000", "mtu": "9001"}]],
    },
    "efa": {
        "pci": [
            ["pci0000:00/0000:00:05.0", "ena", {"driver": "ena"}],
            ["pci0000:00/0000:00:07.0", "efa", {"driver": "efa"}],
        ],
        "net": [["ens5", "0000:00:05.0", {**_UP, "speed": "100000", "mtu": "9001"}]],
        "infiniband": [["efa_0", "0000:00:07.0", _port("Unspecified", 100, [V6])]],
    },
    "roce": {
        "pci": [[f"pci0000:{i}0/0000:{i}0:01.0", "bridge", {}] for i in range(1, 5)]
        + [
            [
                f"pci0000:{i}0/0000:{i}0:01.0/0000:{i}1:00.0",
                "cx7",
                {"driver": "mlx5_core"},
            ]
            for i in range(1, 5)
        ]
        + [["pci0000:10/0000:10:02.0", "gpu", {}]],
        "net": [
            [f"ens{i}", f"0000:{i}1:00.0", {**_UP, "speed": "400000", "mtu": "1500"}]
            for i in range(1, 5)
        ],
        "infiniband": [
            [f"mlx5_{i}", f"0000:{i}1:00.0", _port("Ethernet", 400, [LINK_LOCAL, V4])]
            for i in range(1, 5)
        ],
    },
    "infiniband": {
        "pci": [
            [f"pci0000:{i}0/0000:{i}0:01.0", "hca", {"driver": "mlx5_core"}]
            for i in range(1, 3)
        ],
        "net": [
            [
                f"ib{i}",
                f"0000:{i}0:01.0",
                {**_UP, "type": "32", "speed": "400000", "mtu": "4092"},
            ]
            for i in range(1, 3)
        ],
        "infiniband": [
            [f"mlx5_{i}", f"0000:{i}0:01.0", _port("InfiniBand", 400, [LINK_LOCAL])]
            for i in range(1, 3)
        ],
    },
    "erdma": {
        "pci": [
            ["pci0000:00/0000:00:05.0", "virtio", {"driver": "virtio-pci"}],
            ["pci0000:00/0000:00:06.0", "erdma", {"driver": "erdma"}],
        ],
        "net": [["eth0", "0000:00:05.0/virtio0", {**_UP, "speed": "-1"}]],
        "infiniband": [["erdma_0", "0000:00:06.0", _port("Ethernet", 200, [V4])]],
    },
    "virtio": {
        "pci": [["pci0000:00/0000:00:05.0", "virtio", {"driver": "virtio-pci"}]],
        "net": [
            ["eth0", "0000:00:05.0/virtio0", {**_UP, "speed": "-1", "mtu": "1500"}]
        ],
    },
}
PROC: dict[str, str] = {
    "sys/net/core/somaxconn": "4096",
    "sys/net/core/wmem_max": "212992",
    "sys/net/ipv4/tcp_wmem": "4096\t16384\t4194304",
    "sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456",
    "sys/net/ipv4/tcp_congestion_control": "cubic",
    "sys/kernel/osrelease": "6.8.0-45-generic",
    "sys/kernel/hostname": "node-1",
    "self/limits": "Max locked memory         8388608              8388608      bytes",
    "cpuinfo": "processor\t: 0\nflags\t\t: fpu vme hypervisor\n",
    "net/route": "Iface\tDestination\tGateway\neth0\t00000000\t0100000A\n",
}


def write_host(
    root: Path,
    name: str,
    *,
    proc: Mapping[str, str] = PROC,
    hosts_file: str = "127.0.1.1 node-1\n",
) -> Path:
    """Writes the tree of a host into a folder, and returns the folder.

    Args:
        root: The folder.
        name: Which of `HOSTS`.
        proc: What files below /proc hold.
        hosts_file: What /etc/hosts holds.
    """
    known = {"name": name, "kinds": _KINDS, "nodes": {}, **HOSTS[name]}
    Machine(known).write_sysfs(root / "sys")
    for path, text in proc.items():
        file = root / "proc" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    (root / "etc").mkdir()
    (root / "etc/hosts").write_text(hosts_file, encoding="utf-8")
    return root
