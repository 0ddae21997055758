"""Which interface TCP goes through: that of NCCL's start and sockets, and Gloo's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_fabric.adviser._advice import Gap
from drivetrain_fabric.adviser._rules._say import env
from drivetrain_fabric.adviser._rules._sources import issue, manual, torch_source

if TYPE_CHECKING:
    from drivetrain_fabric.adviser._advice import Advice
    from drivetrain_fabric.adviser._facts import Facts

_GLOO, _NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"


def matching(pattern: str, names: frozenset[str]) -> frozenset[str]:
    """Returns the names that NCCL takes: prefixes, `=` for exact ones, `^` for all but.

    Args:
        pattern: What NCCL_SOCKET_IFNAME or NCCL_IB_HCA says; ports are left out.
        names: What there is.

    Example:
        >>> sorted(matching("=mlx5_1:1", frozenset({"mlx5_1", "mlx5_10"})))
        ['mlx5_1']
        >>> sorted(matching("^mlx5_1", frozenset({"mlx5_0", "mlx5_1", "mlx5_10"})))
        ['mlx5_0']
    """
    is_not = pattern.startswith("^")
    rest = pattern[is_not:]
    is_exact = rest.startswith("=")
    words = [word.split(":")[0] for word in rest[is_exact:].split(",")]
    found = frozenset(
        name
        for name in names
        if any(name == w if is_exact else name.startswith(w) for w in words if w)
    )
    return names - found if is_not else found


def advise_interfaces(facts: Facts) -> list[Advice | Gap]:
    """Returns the interface to name where the one that is picked is not the best.

    Args:
        facts: What is known.
    """
    found = [*_missing(facts)]
    if found:
        return found
    fast = _faster_than_default(facts)
    if fast is not None:
        because = (
            f"the default route goes through {facts.default_route}, which is slower; "
            f"sure only if other hosts are reached through {fast}"
        )
        if facts.value_of(_GLOO) is None:
            found.append(env(_GLOO, fast, "try", because, issue("pytorch/gloo#335")))
        if facts.value_of(_NCCL) is None and facts.transport == "sockets":
            found.append(env(_NCCL, f"={fast}", "try", because))
        return found
    is_loopback = (facts.own_address or "").startswith("127.")
    if not is_loopback or facts.value_of(_GLOO) is not None:
        return found
    if facts.default_route is None:
        lacks = "the interface of the default route"
        give = f"set {_GLOO} to the interface that reaches other hosts"
        return [Gap(subject="Gloo's interface", lacks=lacks, give=give)]
    because = (
        f"/etc/hosts says that this host is {facts.own_address}, an address that other "
        "hosts cannot reach, and Gloo tells them just that; it matters as soon as "
        "there is another host"
    )
    source = torch_source("ProcessGroupGloo.cpp")
    return [env(_GLOO, facts.default_route, "warn", because, source)]


def _missing(facts: Facts) -> list[Advice | Gap]:
    """Returns advice against names that no interface has."""
    names = facts.interface_names
    found: list[Advice | Gap] = []
    if not names:
        return found
    gloo = facts.value_of(_GLOO)
    wrong = [word for word in (gloo or "").split(",") if word and word not in names]
    if wrong:
        because = f"there is no interface {', '.join(wrong)}; there are {_list(names)}"
        source = torch_source("ProcessGroupGloo.cpp")
        found.append(env(_GLOO, None, "bad", because, source))
    nccl = facts.value_of(_NCCL)
    if nccl and not matching(nccl, names):
        because = f"no interface matches {nccl!r}; there are {_list(names)}"
        found.append(env(_NCCL, None, "bad", because, manual(_NCCL)))
    return found


def _faster_than_default(facts: Facts) -> str | None:
    """Returns the only fastest interface, if the default route is through another."""
    speeds = {
        one.nic.name: one.nic.speed_mbit_per_s
        for one in facts.interfaces
        if one.nic.speed_mbit_per_s and one.nic.state == "up"
    }
    here = speeds.get(facts.default_route or "")
    if here is None:
        return None
    most = max(speeds.values())
    fastest = [name for name, speed in speeds.items() if speed == most]
    return fastest[0] if most > here and len(fastest) == 1 else None


def _list(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))
