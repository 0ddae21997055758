"""How packets of RoCE are marked, so that switches treat them as lossless."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_fabric.adviser._advice import Gap
from drivetrain_fabric.adviser._rules._say import env, host
from drivetrain_fabric.adviser._rules._sources import NETWORKING

if TYPE_CHECKING:
    from drivetrain_fabric.adviser._advice import Advice
    from drivetrain_fabric.adviser._facts import Facts

_TC = "NCCL_IB_TC"
_CAN_MARK = 2


def traffic_class(dscp: int) -> int:
    """Returns the byte of an IP header: the DSCP, then that switches may mark it.

    Args:
        dscp: 0 to 63.

    Example:
        >>> traffic_class(26)
        106
    """
    return dscp << 2 | _CAN_MARK


def advise_congestion(facts: Facts) -> list[Advice | Gap]:
    """Returns the traffic class, and which mark cards must go by.

    Args:
        facts: What is known.
    """
    if facts.transport != "roce":
        return []
    found: list[Advice | Gap] = []
    now = facts.number_of(_TC)
    if facts.dscp is None and now is None:
        lacks = "the DSCP of packets that the switches do not drop; without a class "
        lacks += "RDMA shares the queue that drops"
        found.append(Gap(subject="traffic class", lacks=lacks, give="--dscp"))
    elif facts.dscp is not None and (now is None or now >> 2 != facts.dscp):
        because = (
            f"switches know packets by DSCP {facts.dscp}: {facts.dscp} x 4 + 2, where "
            f"2 lets them mark packets (ECN); now it is {now or 0}, DSCP "
            f"{(now or 0) >> 2}"
        )
        source = f"{NETWORKING}; RFC 2474 and RFC 3168"
        found.append(env(_TC, traffic_class(facts.dscp), "warn", because, source))
    cards = [one.nic.name for one in facts.rdma if one.trust == "pcp"]
    if cards and (facts.dscp is not None or now):
        because = (
            f"{', '.join(cards)} goes by the priority in a VLAN header, so that the "
            "DSCP counts for nothing"
        )
        do = "; ".join(f"mlnx_qos -i {name} --trust dscp" for name in cards)
        source = "NVIDIA, manual of mlnx_qos"
        found.append(host("trust", do, "warn", because, source))
    return found
