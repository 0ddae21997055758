"""Which address of a RoCE port NCCL uses: by hand before 2.21, by itself since."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_fabric.adviser._advice import Gap
from drivetrain_fabric.adviser._rules._say import env
from drivetrain_fabric.adviser._rules._sources import NETWORKING

if TYPE_CHECKING:
    from drivetrain_fabric.adviser._advice import Advice
    from drivetrain_fabric.adviser._facts import Adapter, Facts

_INDEX, _FAMILY = "NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_FAMILY"
_ROCE = "NCCL_IB_ROCE_VERSION_NUM"
_V2 = "RoCE v2"
_CHOSEN_SINCE = (2, 21)


def advise_gids(facts: Facts) -> list[Advice | Gap]:
    """Returns how NCCL finds an address that other hosts can reach.

    Args:
        facts: What is known.
    """
    if facts.transport != "roce":
        return []
    index = facts.number_of(_INDEX)
    if facts.nccl >= _CHOSEN_SINCE:
        if index is not None and index >= 0:
            because = (
                f"{index} is right only as long as all ports of all hosts have their "
                "address there; NCCL finds it by itself since 2.21"
            )
            return [env(_INDEX, None, "warn", because, NETWORKING)]
        return _kind(facts)
    return _by_hand(facts, index)


def _kind(facts: Facts) -> list[Advice | Gap]:
    """Returns what to look for where it is not RoCE v2 over IPv4, which NCCL expects."""
    gids = [gid for one in facts.rdma for gid in one.gids]
    if not gids or any(gid.kind is None for gid in gids):
        return []
    v2 = [gid for gid in gids if gid.kind == _V2]
    if not v2:
        because = "no port has an address of RoCE v2, which NCCL looks for"
        return [env(_ROCE, 1, "bad", because)]
    # A link-local address is there on each port; it does not leave the network's part.
    routed = [gid for gid in v2 if not gid.address.startswith("fe80:")]
    if routed and not any(gid.is_ipv4 for gid in routed):
        because = "all ports have IPv6 addresses only, and NCCL looks for IPv4"
        return [env(_FAMILY, "AF_INET6", "bad", because)]
    return []


def _by_hand(facts: Facts, index: int | None) -> list[Advice | Gap]:
    wanted = [_best_index(one) for one in facts.rdma]
    if None in wanted or len(set(wanted)) != 1:
        lacks = "an index that holds a RoCE v2 address over IPv4 on all ports"
        give = "show_gids on all hosts, then NCCL_IB_GID_INDEX; or NCCL 2.21 and later"
        return [Gap(subject="RoCE address", lacks=lacks, give=give)]
    if index == wanted[0]:
        return []
    because = (
        f"before 2.21 NCCL uses the address {0 if index is None else index}; the one "
        f"of RoCE v2 over IPv4 is {wanted[0]} on all ports of this host"
    )
    return [env(_INDEX, wanted[0], "bad", because, NETWORKING)]


def _best_index(one: Adapter) -> int | None:
    return next((g.index for g in one.gids if g.kind == _V2 and g.is_ipv4), None)
