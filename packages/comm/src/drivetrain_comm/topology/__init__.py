"""Hosts, read as pure data, and what is near to what in them.

`read_topology` says what a host is made of; all else are pure functions of it.
"""

from __future__ import annotations

from drivetrain_comm.topology._affinity import (
    closeness,
    distance,
    gpus_by_numa_node,
    nearest_nic,
)
from drivetrain_comm.topology._errors import TopologyError
from drivetrain_comm.topology._file import (
    load_topology,
    topology_from_json,
    topology_to_json,
)
from drivetrain_comm.topology._graph import (
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
    Topology,
)
from drivetrain_comm.topology._nvml import Nvml, NvmlFacts, read_nvml
from drivetrain_comm.topology._read import read_topology

__all__ = [
    "Gpu",
    "HostBridge",
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
    "gpus_by_numa_node",
    "load_topology",
    "nearest_nic",
    "read_nvml",
    "read_topology",
    "topology_from_json",
    "topology_to_json",
]
