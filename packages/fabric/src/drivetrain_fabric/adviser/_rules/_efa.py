"""Amazon's elastic fabric adapter: NCCL reaches it through a plug-in only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_fabric.adviser._rules._say import env

if TYPE_CHECKING:
    from drivetrain_fabric.adviser._advice import Advice, Gap
    from drivetrain_fabric.adviser._facts import Facts

_PLUGIN = "NCCL_NET_PLUGIN"


def advise_efa(facts: Facts) -> list[Advice | Gap]:
    """Returns what keeps NCCL from the plug-in.

    Args:
        facts: What is known.
    """
    if facts.transport != "efa" or facts.value_of(_PLUGIN) != "none":
        return []
    because = (
        "EFA is there, NCCL has no way to it but aws-ofi-nccl, and none loads none"
    )
    source = "README of aws-ofi-nccl; NCCL manual 2.32, NCCL_NET_PLUGIN"
    return [env(_PLUGIN, None, "bad", because, source)]
