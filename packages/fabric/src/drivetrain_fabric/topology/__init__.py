"""Hosts and the links between them: read, measured, judged and drawn.

`read_topology` says what a host is made of, `measure_links` what its ranks reach; all
else are pure functions of the two. Only `measure_links` imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from drivetrain_fabric.topology._affinity import (
    closeness,
    distance,
    gpus_by_numa_node,
    nearest_nic,
)
from drivetrain_fabric.topology._cluster import (
    Flaw,
    find_flaws,
    find_hosts,
    find_levels,
)
from drivetrain_fabric.topology._draw_host import host_svg
from drivetrain_fabric.topology._draw_links import links_svg
from drivetrain_fabric.topology._errors import TopologyError
from drivetrain_fabric.topology._file import (
    load_topology,
    topology_from_json,
    topology_to_json,
)
from drivetrain_fabric.topology._graph import Topology
from drivetrain_fabric.topology._matrix import LinkMatrix
from drivetrain_fabric.topology._nvml import Nvml, NvmlFacts, read_nvml
from drivetrain_fabric.topology._order import ring_cost, ring_order
from drivetrain_fabric.topology._parts import (
    Gpu,
    HostBridge,
    Nic,
    NumaNode,
    NvLink,
    NvSwitch,
    PciBridge,
    PciLink,
    PciSlot,
    RdmaPort,
)
from drivetrain_fabric.topology._read import read_topology

if TYPE_CHECKING:
    from drivetrain_fabric.topology._command import populate_topo
    from drivetrain_fabric.topology._draw_text import (
        host_rich,
        host_text,
        links_rich,
        links_text,
    )
    from drivetrain_fabric.topology._export import to_cluster_spec, to_node_group
    from drivetrain_fabric.topology._measure import measure_links

__all__ = [
    "Flaw",
    "Gpu",
    "HostBridge",
    "LinkMatrix",
    "Nic",
    "NumaNode",
    "NvLink",
    "NvSwitch",
    "Nvml",
    "NvmlFacts",
    "PciBridge",
    "PciLink",
    "PciSlot",
    "RdmaPort",
    "Topology",
    "TopologyError",
    "closeness",
    "distance",
    "find_flaws",
    "find_hosts",
    "find_levels",
    "gpus_by_numa_node",
    "host_rich",
    "host_svg",
    "host_text",
    "links_rich",
    "links_svg",
    "links_text",
    "load_topology",
    "measure_links",
    "nearest_nic",
    "populate_topo",
    "read_nvml",
    "read_topology",
    "ring_cost",
    "ring_order",
    "to_cluster_spec",
    "to_node_group",
    "topology_from_json",
    "topology_to_json",
]

# What needs torch, rich or core's services is imported when it is first used.
_HOMES = {
    "host_rich": "_draw_text",
    "host_text": "_draw_text",
    "links_rich": "_draw_text",
    "links_text": "_draw_text",
    "measure_links": "_measure",
    "populate_topo": "_command",
    "to_cluster_spec": "_export",
    "to_node_group": "_export",
}


def __getattr__(name: str) -> object:
    """Loads a public name when it is first used."""
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Returns the public names, loaded or not."""
    return sorted({*globals(), *__all__})
