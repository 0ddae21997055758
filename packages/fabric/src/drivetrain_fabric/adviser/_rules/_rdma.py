"""What RDMA needs to survive: time to wait for a link, memory to pin, large packets."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from drivetrain_fabric.adviser._rules._say import env, host
from drivetrain_fabric.adviser._rules._sources import NETWORKING, manual
from drivetrain_fabric.adviser._versions import ACCELERATION, default_of

if TYPE_CHECKING:
    from drivetrain_fabric.adviser._advice import Advice, Gap
    from drivetrain_fabric.adviser._facts import Facts

_TIMEOUT, _RETRIES = "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT"
_UNIT_S = 4.096e-6
_LONG_ENOUGH = 20
_MOST_RETRIES = 7
# Torch's process groups give up after 10 minutes unless told otherwise.
_GROUP_TIMEOUT_S = 600
_LEAST_S = 30
# An RDMA packet of 4096 bytes and its headers.
_FULL_MTU = 4200
_CONNECTX = "mlx5_core"


def patience_s(timeout: int, retries: int) -> float:
    """Returns how long a lost link is waited for: 4.096 us x 2^timeout x retries.

    Args:
        timeout: NCCL_IB_TIMEOUT; 0 and 32 or more mean for ever.
        retries: NCCL_IB_RETRY_CNT.

    Example:
        >>> [round(patience_s(timeout, 7), 1) for timeout in (18, 20, 22)]
        [7.5, 30.1, 120.3]
    """
    if timeout <= 0 or timeout >= 32:
        return math.inf
    return _UNIT_S * 2.0**timeout * retries


def advise_rdma(facts: Facts) -> list[Advice | Gap]:
    """Returns time-outs, limits and packet sizes.

    Args:
        facts: What is known.
    """
    if facts.transport not in ("infiniband", "roce"):
        return []
    return [*_patience(facts), *_acceleration(facts), *_memlock(facts), *_mtu(facts)]


def longest_flap(facts: Facts) -> str:
    """Returns for how long a link may be gone, and how that is counted.

    Args:
        facts: What is known.

    Returns:
        Nothing where NCCL does not use queue pairs of its own.
    """
    if facts.transport not in ("infiniband", "roce"):
        return ""
    timeout, retries = _waits(facts)
    adaptive = [
        o.nic.name for o in facts.rdma if dict(o.roce_accl).get("roce_adp_retrans_en")
    ]
    own = (
        f"; {', '.join(adaptive)} send again by a profile of their own (adaptive "
        "retransmission), and may give up at another time"
    )
    now = patience_s(timeout, retries)
    return (
        f"a link may be gone {'for ever' if math.isinf(now) else f'for {now:.3g} s'}: "
        f"4.096 us x 2^{timeout} x {retries} ({_TIMEOUT} and {_RETRIES}; InfiniBand "
        "specification, 9.7.6.1.3: cards may wait up to 4 times as long)"
        f"{own if adaptive else ''}"
    )


def _waits(facts: Facts) -> tuple[int, int]:
    """Returns the time-out and the number of retries that NCCL asks for."""
    timeout = facts.number_of(_TIMEOUT)
    if timeout is None:
        timeout = int(default_of(_TIMEOUT, facts.nccl) or _LONG_ENOUGH)
    retries = facts.number_of(_RETRIES)
    if retries is None or not 0 <= retries <= _MOST_RETRIES:
        retries = _MOST_RETRIES
    return timeout, retries


def _patience(facts: Facts) -> list[Advice | Gap]:
    timeout, retries = _waits(facts)
    found: list[Advice | Gap] = []
    now = patience_s(timeout, retries)
    then = patience_s(_LONG_ENOUGH, _MOST_RETRIES)
    shown = f"4.096 us x 2^{timeout} x {retries}"
    better = f"{_LONG_ENOUGH} and {_MOST_RETRIES} give {then:.0f} s"
    if math.isinf(now):
        because = f"{timeout} waits for ever: a lost link hangs the job; {better}"
        found.append(env(_TIMEOUT, _LONG_ENOUGH, "bad", because))
    elif now < _LEAST_S and timeout < _LONG_ENOUGH:
        because = (
            f"a link that is gone for {now:.2g} s ({shown}) ends the job; {better}, "
            "NCCL's own since 2.23"
        )
        found.append(env(_TIMEOUT, _LONG_ENOUGH, "warn", because))
    elif now >= _GROUP_TIMEOUT_S:
        because = (
            f"{now:.0f} s ({shown}) are longer than the {_GROUP_TIMEOUT_S} s after "
            f"which torch gives up, and it cannot say why; {better}"
        )
        found.append(env(_TIMEOUT, _LONG_ENOUGH, "warn", because))
    if retries < _MOST_RETRIES:
        because = f"{retries} of {_MOST_RETRIES} tries shorten the wait to {now:.2g} s"
        found.append(env(_RETRIES, _MOST_RETRIES, "warn", because, manual(_RETRIES)))
    return found


def _acceleration(facts: Facts) -> list[Advice | Gap]:
    """Returns how cards should send again what was lost, where their tool shows it."""
    found: list[Advice | Gap] = []
    for row in ACCELERATION:
        field, wanted = row["field"], row["wanted"]
        cards = [
            (one.nic.name, one.nic.slot.address)
            for one in facts.rdma
            if one.nic.slot is not None
            and dict(one.roce_accl).get(f"{field}_field_select") == 1
            and dict(one.roce_accl).get(f"{field}_en") == 1 - wanted
        ]
        if cards:
            names = ", ".join(name for name, _ in cards)
            because = f"{names} with {field}_en {1 - wanted}: {row['because']}"
            value = f"--reg_name ROCE_ACCL --set {field}_en={wanted} --yes"
            do = "; ".join(f"mlxreg -d {address} {value}" for _, address in cards)
            found.append(host(f"{field}_en", do, "try", because, row["source"]))
    return found


def _memlock(facts: Facts) -> list[Advice | Gap]:
    if facts.memlock_bytes is None or facts.memlock_bytes < 0:
        return []
    because = (
        f"a process may pin {facts.memlock_bytes} bytes, and RDMA pins each buffer: "
        "making queue pairs or registering memory fails"
    )
    do = "soft and hard memlock unlimited in limits.conf, LimitMEMLOCK=infinity"
    return [host("memlock", do, "bad", because, NETWORKING)]


def _mtu(facts: Facts) -> list[Advice | Gap]:
    if facts.transport != "roce":
        return []
    small = [
        one.nic
        for one in facts.rdma
        if one.nic.mtu is not None
        and one.nic.mtu < _FULL_MTU
        and one.nic.driver == _CONNECTX
    ]
    if not small:
        return []
    names = ", ".join(f"{nic.name} {nic.mtu}" for nic in small)
    because = (
        f"the largest packets are {names} bytes, and RDMA packets of 4096 do not fit; "
        "the switches must carry them as well"
    )
    do = "; ".join(f"ip link set {nic.name} mtu {_FULL_MTU}" for nic in small)
    source = "NVIDIA, MTU considerations for RoCE based applications"
    return [host("mtu", do, "try", because, source)]
