"""Which RDMA cards NCCL uses where a host has several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_fabric.adviser._advice import Gap
from drivetrain_fabric.adviser._rules._interfaces import matching
from drivetrain_fabric.adviser._rules._say import env
from drivetrain_fabric.adviser._rules._sources import manual

if TYPE_CHECKING:
    from drivetrain_fabric.adviser._advice import Advice
    from drivetrain_fabric.adviser._facts import Adapter, Facts

_HCA, _MERGE, _CROSS = "NCCL_IB_HCA", "NCCL_IB_MERGE_NICS", "NCCL_CROSS_NIC"


def advise_nics(facts: Facts) -> list[Advice | Gap]:
    """Returns which cards to name, whether to merge ports, and whether to cross.

    Args:
        facts: What is known.
    """
    if facts.transport not in ("infiniband", "roce"):
        return _hca_of_none(facts)
    return [*_hca(facts), *_merge(facts), *_cross(facts)]


def _hca(facts: Facts) -> list[Advice | Gap]:
    active = {one.rdma_device: one for one in facts.rdma}
    value = facts.value_of(_HCA)
    if value is None:
        return _only_fastest(active)
    named = matching(value, frozenset(active))
    if not named:
        because = f"no port that is up matches {value!r}; up are {', '.join(active)}"
        return [env(_HCA, None, "bad", because)]
    rest = value.removeprefix("^")
    loose = matching(rest, frozenset(active))
    words = {word.split(":")[0] for word in rest.split(",")}
    # A name that is there is meant to be that one; "mlx5" is meant as a prefix.
    if rest.startswith("=") or not words <= active.keys() or loose == words:
        return []
    sign = "^" if value.startswith("^") else ""
    because = (
        f"{value!r} is a list of prefixes: it means {', '.join(sorted(loose))}; with = "
        "it means what it says"
    )
    return [env(_HCA, f"{sign}={rest}", "warn", because)]


def _hca_of_none(facts: Facts) -> list[Advice | Gap]:
    """Returns what becomes of named cards where NCCL finds none that is up."""
    value, told = facts.value_of(_HCA), (facts.value_of("NCCL_NET") or "").lower()
    is_off = facts.value_of("NCCL_IB_DISABLE") not in (None, "", "0")
    if facts.transport != "sockets" or is_off or told not in ("", "ib"):
        return []
    if not value or value.startswith("^"):
        return []
    then = "it goes on with sockets, and says so with NCCL_DEBUG=INFO only"
    because = (
        f"{value!r} names RDMA devices, and none here is up: "
        f"{'with NCCL_NET=IB NCCL does not start' if told else then}; look for the "
        "driver, or for /dev/infiniband in the container"
    )
    return [env(_HCA, None, "bad" if told else "warn", because)]


def _only_fastest(active: dict[str, Adapter]) -> list[Advice | Gap]:
    """Returns the fast ports, where slow ones are there as well, as for storage."""
    rates = {name: one.nic.best_mbit_per_s or 0 for name, one in active.items()}
    layers = {one.nic.rdma.link_layer for one in active.values() if one.nic.rdma}
    most = max(rates.values(), default=0)
    fast = [name for name, rate in rates.items() if rate == most]
    if len(fast) == len(active) or not all(rates.values()):
        return []
    slow = [f"{name} {rate / 1e3:g}" for name, rate in rates.items() if rate < most]
    because = (
        f"beside ports of {most / 1e3:g} Gb/s there are slower ones ({', '.join(slow)} "
        f"Gb/s{', of another kind' if len(layers) > 1 else ''}), as for storage"
    )
    return [env(_HCA, f"={','.join(fast)}", "warn", because)]


def _merge(facts: Facts) -> list[Advice | Gap]:
    if facts.number_of(_MERGE) != 0 or facts.nccl < (2, 20):
        return []
    twins = _ports_of_one_card(facts.rdma)
    if not twins:
        return []
    because = f"{' and '.join(twins)} are ports of one card, and are not joined with 0"
    return [env(_MERGE, None, "try", because)]


def _cross(facts: Facts) -> list[Advice | Gap]:
    if len(facts.rdma) < 2 or facts.value_of(_CROSS) is not None:
        return []
    if facts.shares_switch is None:
        lacks = "whether all cards of a host hang on the same switch"
        give = "--cluster with a file that names the switch of each group"
        return [Gap(subject="crossing between cards", lacks=lacks, give=give)]
    if not facts.shares_switch:
        return []
    because = "all cards of a host hang on the same switch: using the same one at both "
    because += "ends avoids nothing"
    return [env(_CROSS, 1, "try", because, manual(_CROSS))]


def _ports_of_one_card(adapters: tuple[Adapter, ...]) -> tuple[str, ...]:
    cards: dict[str, list[str]] = {}
    for one in adapters:
        if one.nic.slot is not None:
            # Ports are functions of a device: what differs is behind the point.
            card = one.nic.slot.address.split(".")[0]
            cards.setdefault(card, []).append(one.rdma_device)
    return next((tuple(ports) for ports in cards.values() if len(ports) > 1), ())
