"""The fabric that a cluster file describes.

All nodes hang on one kind of leaf; the switches above it are the other tiers:

    nodes:
      - {name: gpu, count: 1536, switch: tor, devices: {...},
         nics: {count: 8, bandwidth: 200Gb/s, latency: 5us, rails: true}}
    switches:
      - {name: tor, uplink: spine, downlinks: 64, uplinks: 32, uplink_bandwidth: 400Gb/s}
      - {name: spine, uplink: core, downlinks: 32, uplinks: 32,
         uplink_bandwidth: 400Gb/s}
      - {name: core, downlinks: 64}
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from drivetrain_fabric.network._clos import Clos, Tier
from drivetrain_fabric.network._errors import FabricError

if TYPE_CHECKING:
    from drivetrain_core.services import ClusterSpec, Nic, Switch


def clos_of(spec: ClusterSpec) -> Clos:
    """Returns the fabric of a cluster.

    Args:
        spec: A cluster whose nodes have network cards that are alike, on switches that
            know their ports.

    Raises:
        FabricError: Something that a fabric needs is not in the description.
    """
    nic, leaf = _one_kind_of_node(spec)
    switches = _tiers(spec, leaf)
    tiers: list[Tier] = []
    speed = nic.bandwidth_bits_per_s
    for switch in switches:
        if not switch.downlinks:
            message = f"switch {switch.name!r} must say its downlinks to be simulated"
            raise FabricError(message)
        tier = _tier(switch, speed)
        tiers.append(tier)
        speed = tier.uplink_bits_per_s
    return Clos(
        num_nodes=spec.num_nodes,
        nics_per_node=nic.count,
        nic_bits_per_s=nic.bandwidth_bits_per_s,
        rails=nic.rails,
        tiers=tuple(tiers),
        latency_s=nic.latency_s,
    )


def _one_kind_of_node(spec: ClusterSpec) -> tuple[Nic, str]:
    first = spec.nodes[0]
    for group in spec.nodes:
        if group.nics is None or group.switch is None:
            lacks = "nics" if group.nics is None else "switch"
            message = f"nodes {group.name!r} must have a {lacks!r} to be simulated"
            raise FabricError(message)
        mine, theirs = (
            (each.nics, each.switch, each.devices.count) for each in (group, first)
        )
        if mine != theirs:
            message = (
                "all nodes of a simulated fabric have the same network cards, switch "
                f"and number of devices; {group.name!r} has others than {first.name!r}"
            )
            raise FabricError(message)
    assert first.nics is not None
    assert first.switch is not None
    return first.nics, first.switch


def _tiers(spec: ClusterSpec, leaf: str) -> list[Switch]:
    by_name = {switch.name: switch for switch in spec.switches}
    found = [by_name[leaf]]
    while (above := found[-1].uplink) is not None:
        found.append(by_name[above])
    if len(found) not in (2, 3):
        names = " -> ".join(switch.name for switch in found)
        message = f"a fabric has two or three tiers of switches, got {names}"
        raise FabricError(message)
    return found


def _tier(switch: Switch, down_bits_per_s: float) -> Tier:
    if switch.uplink is None:
        return Tier(downlinks=switch.downlinks)
    speed = switch.uplink_bandwidth_bits_per_s or down_bits_per_s
    uplinks = switch.uplinks
    if not uplinks and speed > 0:
        wanted = switch.downlinks * down_bits_per_s / switch.oversubscription
        # A port that a rounding error asks for is not bought.
        uplinks = max(1, math.ceil(wanted / speed - 1e-9))
    return Tier(downlinks=switch.downlinks, uplinks=uplinks, uplink_bits_per_s=speed)
