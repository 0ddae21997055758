"""Facts that people give: flags, what `drivetrain comm tune` measured, a cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_comm.adviser._errors import AdviserError
from drivetrain_comm.adviser._versions import parse_version

if TYPE_CHECKING:
    import os

    from drivetrain_comm.adviser._facts import Facts
    from drivetrain_core.services import ClusterSpec

__all__ = ["with_cluster", "with_given", "with_measured"]


def with_given(
    facts: Facts,
    *,
    nccl_version: str | None = None,
    delay_ms: float | None = None,
    gbps: float | None = None,
    flow_gbps: float | None = None,
    ranks: int | None = None,
    paths: int | None = None,
    dscp: int | None = None,
) -> Facts:
    """Returns facts with what somebody knows better; None leaves a fact as it is.

    Args:
        facts: What was read.
        nccl_version: Such as `2.29.7`.
        delay_ms: Of a short message to another host, one way.
        gbps: What one network card sends at most, in 10^9 bits a second.
        flow_gbps: What one TCP connection carries at most, likewise.
        ranks: Of the job.
        paths: Over how many equal ways switches spread connections.
        dscp: The mark of packets that switches do not drop.

    Raises:
        AdviserError: One of them cannot be true.

    Example:
        >>> from drivetrain_comm.adviser import Facts
        >>> with_given(Facts(), delay_ms=1, gbps=10).bdp_bytes
        2500000
    """
    if nccl_version is not None:
        facts = replace(
            facts,
            nccl=parse_version(nccl_version),
            nccl_from="given",
            is_nccl_assumed=False,
        )
    known = {
        "delay_s": None if delay_ms is None else delay_ms * 1e-3,
        "port_bytes_per_s": None if gbps is None else gbps * 1e9 / 8,
        "flow_bytes_per_s": None if flow_gbps is None else flow_gbps * 1e9 / 8,
        "ranks": ranks,
        "num_paths": paths,
        "dscp": dscp,
    }
    changes: dict[str, Any] = {k: v for k, v in known.items() if v is not None}
    return replace(facts, **changes)


def with_measured(facts: Facts, path: str | os.PathLike[str]) -> Facts:
    """Returns facts with what `drivetrain comm tune --json` measured between hosts.

    Args:
        facts: What was read.
        path: The file with its output.

    Raises:
        AdviserError: It cannot be read, is something else, or saw one host only.
    """
    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
        network, hosts = report["network"], report["hosts"]
        ranks = sum(len(host) for host in hosts)
        delay_s, port_bytes_per_s, flow_bytes_per_s = (
            float(network[name])
            for name in ("delay_s", "port_bytes_per_s", "flow_bytes_per_s")
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = (
            f"{path}: it must be what drivetrain comm tune --json printed: "
            f"{type(error).__name__}: {error}"
        )
        raise AdviserError(message) from error
    if len(hosts) < 2:
        message = f"{path}: nothing was measured between hosts, it saw {len(hosts)}"
        raise AdviserError(message)
    return replace(
        facts,
        delay_s=delay_s,
        port_bytes_per_s=port_bytes_per_s,
        flow_bytes_per_s=flow_bytes_per_s,
        ranks=ranks,
    )


def with_cluster(facts: Facts, cluster: ClusterSpec) -> Facts:
    """Returns facts with what a cluster file says, where that is more than was read.

    Args:
        facts: What was read.
        cluster: The cluster; of groups that differ, the slower counts.
    """
    changes: dict[str, Any] = {"ranks": cluster.num_devices}
    cards = [(group, group.nics) for group in cluster.nodes if group.nics is not None]
    if cards:
        changes["port_bytes_per_s"] = (
            min(nics.bandwidth_bits_per_s for _, nics in cards) / 8
        )
        delay_s = max(nics.latency_s for _, nics in cards)
        changes |= {"delay_s": delay_s} if delay_s > 0 else {}
        if all(group.switch is not None for group, _ in cards):
            several = all(nics.count > 1 for _, nics in cards)
            changes |= {"shares_switch": True} if several else {}
    return replace(facts, **changes)
