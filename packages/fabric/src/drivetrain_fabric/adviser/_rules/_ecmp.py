"""Queue pairs against connections that take the same way through the switches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_fabric._collision_probability import shared_bin_probability
from drivetrain_fabric.adviser._advice import Gap
from drivetrain_fabric.adviser._collisions import expected_paths, queue_pairs
from drivetrain_fabric.adviser._rules._say import env
from drivetrain_fabric.adviser._rules._sources import TUNING, answer

if TYPE_CHECKING:
    from drivetrain_fabric.adviser._advice import Advice
    from drivetrain_fabric.adviser._facts import Facts

_QPS, _SPLIT = "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_SPLIT_DATA_ON_QPS"
_ROUTING, _LEVEL = "NCCL_IB_ADAPTIVE_ROUTING", "NCCL_IB_SL"
_LIKELY = 0.1
_SPLIT_SINCE, _ROUND_ROBIN_SINCE = (2, 18), (2, 20)


def advise_ecmp(facts: Facts) -> list[Advice | Gap]:
    """Returns how many queue pairs a connection needs, and how data are dealt to them.

    Args:
        facts: What is known.
    """
    if facts.transport == "infiniband":
        return _routing_off(facts)
    if facts.transport != "roce":
        return []
    found = _queue_pairs(facts)
    is_advised = any(not isinstance(one, Gap) for one in found)
    has_several = (facts.number_of(_QPS) or 1) > 1
    found += _split(facts, several=is_advised or has_several)
    if facts.number_of(_ROUTING) == 1 and facts.value_of(_LEVEL) is None:
        lacks = "which service level the switches route adaptively"
        found.append(Gap(subject="adaptive routing", lacks=lacks, give=f"set {_LEVEL}"))
    return found


def _routing_off(facts: Facts) -> list[Advice | Gap]:
    """Returns that InfiniBand chooses ways by itself, unless it was told not to."""
    if facts.number_of(_ROUTING) != 0:
        return []
    because = "InfiniBand routes around full links, as NCCL asks for unless it is 0"
    return [env(_ROUTING, None, "try", because)]


def _queue_pairs(facts: Facts) -> list[Advice | Gap]:
    now = facts.number_of(_QPS) or 1
    bonded = [one.rdma_device for one in facts.rdma if "bond" in one.rdma_device]
    if facts.num_paths is None and not bonded:
        lacks = "over how many equal ways the switches spread connections"
        return [Gap(subject="queue pairs", lacks=lacks, give="--paths")]
    if facts.num_paths is None or facts.num_paths == 1:
        if not bonded or now >= 2:
            return []
        because = f"{', '.join(bonded)} has two links: one queue pair uses one of them"
        return [env(_QPS, 2, "warn", because, answer("NVIDIA/nccl#1015"))]
    flows, paths = len(facts.rdma), facts.num_paths
    chance = shared_bin_probability(flows, paths)
    wanted = max(queue_pairs(flows, paths), 2 if bonded else 1)
    if chance < _LIKELY or wanted <= now:
        return []
    because = (
        f"{flows} connections of a host on {paths} equal ways: two share one with a "
        f"chance of {chance:.0%}, and {expected_paths(flows, paths):.1f} ways are used "
        f"on average; with {wanted} queue pairs each, which have UDP source ports of "
        f"their own, {expected_paths(flows * wanted, paths):.1f}"
    )
    return [
        env(_QPS, wanted, "try", because, f"{TUNING}; the closed form of collisions")
    ]


def _split(facts: Facts, *, several: bool) -> list[Advice | Gap]:
    """Returns how data are dealt: in turns, or split where switches spread packets."""
    is_split = facts.number_of(_SPLIT)
    if not several or facts.nccl < _SPLIT_SINCE:
        return []
    if facts.number_of(_ROUTING) == 1:
        if is_split == 1 or (is_split is None and facts.nccl < _ROUND_ROBIN_SINCE):
            return []
        because = (
            "together with adaptive routing over RoCE it raised the peak of an "
            "all-reduce by 70%, on four rails of 800 Gb/s"
        )
        source = "NVIDIA/cluster-readiness-engine#287, settings for GB300 on OCI"
        return [env(_SPLIT, 1, "try", because, source)]
    if is_split is None and facts.nccl < _ROUND_ROBIN_SINCE:
        because = (
            "2.18 and 2.19 split each message over all queue pairs, which delays small "
            "ones; since 2.20 they take turns"
        )
        return [env(_SPLIT, 0, "try", because)]
    return []
