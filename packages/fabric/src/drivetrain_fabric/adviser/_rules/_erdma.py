"""Alibaba's elastic RDMA: what its provider says NCCL needs, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_fabric.adviser._rules._say import env, host

if TYPE_CHECKING:
    from drivetrain_fabric.adviser._advice import Advice, Gap
    from drivetrain_fabric.adviser._facts import Facts

_SOURCE = "Alibaba Cloud, Platform for AI, eRDMA for distributed training, October 2025"
_LEAST = (2, 19)
_PREFIX = "erdma"


def advise_erdma(facts: Facts) -> list[Advice | Gap]:
    """Returns what Alibaba sets for its own GPU instances.

    Args:
        facts: What is known.
    """
    if facts.transport != "erdma":
        return []
    found: list[Advice | Gap] = []
    devices = [one.rdma_device for one in facts.rdma if one.is_erdma]
    if facts.nccl < _LEAST:
        because = "eRDMA needs NCCL 2.19 at least"
        found.append(host("NCCL", "install 2.19 or later", "bad", because, _SOURCE))
    if not devices:
        because = (
            "a card for eRDMA is there, but no RDMA port that is up: its driver or "
            "library is missing, or it is not enabled"
        )
        do = "install Alibaba's driver and library for eRDMA, and enable the interface"
        return [*found, host("eRDMA driver", do, "bad", because, _SOURCE)]
    because = f"{', '.join(devices)} is eRDMA; it is what Alibaba sets for it"
    if all(device.startswith(_PREFIX) for device in devices):
        found.append(env("NCCL_IB_HCA", _PREFIX, "warn", because, _SOURCE))
    fewest = "NCCL_MIN_CTAS" if facts.nccl >= (2, 17) else "NCCL_MIN_NCHANNELS"
    renamed = because
    if fewest == "NCCL_MIN_CTAS":
        renamed = f"{because}, by its name before 2.17, NCCL_MIN_NCHANNELS"
    return [
        *found,
        env("NCCL_IB_GID_INDEX", 1, "warn", because, _SOURCE),
        env("NCCL_IB_QPS_PER_CONNECTION", 8, "warn", because, _SOURCE),
        env(fewest, 16, "try", renamed, _SOURCE),
        env("NCCL_NET_PLUGIN", "none", "warn", because, _SOURCE),
    ]
