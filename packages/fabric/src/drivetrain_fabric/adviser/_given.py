"""Facts that people give: flags, what `drivetrain comm tune` measured, a cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_core.commands import reason_of
from drivetrain_core.strict_json import unique_keys
from drivetrain_fabric.adviser._errors import AdviserError
from drivetrain_fabric.adviser._versions import parse_version

if TYPE_CHECKING:
    import os

    from drivetrain_core.services import ClusterSpec
    from drivetrain_fabric.adviser._facts import Facts

_ABOVE_ZERO = ("gbps", "flow_gbps", "ranks", "paths")
_SPANS = {"delay_ms": 60_000, "dscp": 63}
_MOST = 1e9
_RATES = ("delay_s", "port_bytes_per_s", "flow_bytes_per_s")


def _refusal(name: str, value: float | None) -> str | None:
    """Returns what is wrong with a number that `with_given` takes, or None."""
    if value is None:
        return None
    if name in _SPANS and not 0 <= value <= _SPANS[name]:
        return f"must be 0 to {_SPANS[name]}, got {value}"
    if name in _ABOVE_ZERO and not 0 < value <= _MOST:
        return f"must be more than 0, and {_MOST:g} at most, got {value}"
    return None


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
        >>> from drivetrain_fabric.adviser import Facts
        >>> with_given(Facts(), delay_ms=1, gbps=10).bdp_bytes
        2500000
    """
    given = locals()
    for name in ("delay_ms", "gbps", "flow_gbps", "ranks", "paths", "dscp"):
        wrong = _refusal(name, given[name])
        if wrong is not None:
            message = f"{name} {wrong}"
            raise AdviserError(message)
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
        text = Path(path).read_text(encoding="utf-8-sig")
        report = json.loads(text, object_pairs_hook=unique_keys)
        ranks, num_hosts, rates = _measured(report)
    # Very long numbers are a ValueError of json; deep lists end its recursion.
    except (OSError, ValueError, RecursionError) as error:
        message = (
            f"{path}: it must be what drivetrain comm tune --json printed: "
            f"{reason_of(error)}"
        )
        raise AdviserError(message) from error
    if num_hosts < 2:
        message = f"{path}: nothing was measured between hosts, it saw {num_hosts}"
        raise AdviserError(message)
    try:
        return replace(facts, **rates, ranks=ranks)
    except AdviserError as error:
        message = f"{path}: {error}"
        raise AdviserError(message) from error


def _measured(report: Any) -> tuple[int, int, dict[str, Any]]:
    """Returns ranks, hosts and rates of a report; ValueError if it says something else."""
    if not isinstance(report, dict) or not {"hosts", "network"} <= report.keys():
        message = "it must be an object with the keys hosts and network"
        raise ValueError(message)
    hosts, network = report["hosts"], report["network"]
    are_hosts = isinstance(hosts, list) and all(map(_are_ranks, hosts))
    if not are_hosts or not isinstance(network, dict):
        message = (
            "hosts must be a list with a list of ranks for each host, and network an "
            "object"
        )
        raise ValueError(message)
    rates = {name: _rate(network, name) for name in _RATES}
    return sum(len(host) for host in hosts), len(hosts), rates


def _are_ranks(host: Any) -> bool:
    return isinstance(host, list) and all(type(rank) is int for rank in host)


def _rate(network: dict[str, Any], name: str) -> float:
    value = network.get(name)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            message = f"{name} is larger than any number of bytes or seconds"
            raise ValueError(message) from None
    message = f"{name} of the network must be a number"
    raise ValueError(message)


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
