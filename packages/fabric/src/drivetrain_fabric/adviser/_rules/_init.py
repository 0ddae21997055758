"""How ranks find each other: roots of NCCL, lazy connections, Gloo's mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_fabric.adviser._advice import Gap
from drivetrain_fabric.adviser._rules._say import env
from drivetrain_fabric.adviser._rules._sources import manual, torch_source

if TYPE_CHECKING:
    from drivetrain_fabric.adviser._advice import Advice
    from drivetrain_fabric.adviser._facts import Facts

_ROOT = "TORCH_NCCL_RANKS_PER_ROOT"
_THRESHOLD, _RATE = "NCCL_UID_STAGGER_THRESHOLD", "NCCL_UID_STAGGER_RATE"
_CONNECT, _LAZY = "NCCL_RUNTIME_CONNECT", "TORCH_GLOO_LAZY_INIT"
_RANKS_PER_ROOT = 128
_DEFAULT_THRESHOLD, _DEFAULT_RATE = 256, 7000
_SCALABLE_SINCE = (2, 23)
# From so many ranks on all of them notice how Gloo and NCCL connect.
_MANY = 256
_SLOW_S = 1.0


def stagger_s(ranks_per_root: int, threshold: int, rate: int) -> float:
    """Returns how long the last rank waits before it calls its root.

    Args:
        ranks_per_root: How many call the same one.
        threshold: Up to how many call at once.
        rate: How many calls a second, above that.

    Example:
        >>> stagger_s(128, 256, 7000), stagger_s(14_000, 256, 7000)
        (0.0, 2.0)
    """
    return ranks_per_root / rate if ranks_per_root > threshold else 0.0


def advise_init(facts: Facts) -> list[Advice | Gap]:
    """Returns what makes the start of a large job slow.

    Args:
        facts: What is known.
    """
    if facts.ranks is None:
        lacks = "how many ranks the job has"
        return [Gap(subject="start", lacks=lacks, give="--ranks")]
    found = _roots(facts, facts.ranks)
    if facts.number_of(_CONNECT) == 0 and facts.ranks >= _MANY:
        because = f"with 0 all {facts.ranks} ranks connect before the first step"
        found.append(env(_CONNECT, None, "try", because))
    if facts.value_of(_LAZY) is None and facts.ranks >= _MANY:
        because = (
            f"Gloo connects each of {facts.ranks} ranks with all others as it starts; "
            "with 1 a pair connects when it first talks"
        )
        source = torch_source("ProcessGroupGloo.hpp")
        found.append(env(_LAZY, 1, "try", because, source))
    return found


def _roots(facts: Facts, ranks: int) -> list[Advice | Gap]:
    if facts.nccl < _SCALABLE_SINCE:
        return []
    found: list[Advice | Gap] = []
    given = facts.number_of(_ROOT)
    per_root = min(given or _RANKS_PER_ROOT, ranks)
    if given is not None and per_root > _MANY:
        because = (
            f"{per_root} ranks call the same root as they start; without it torch has a "
            f"root for each {_RANKS_PER_ROOT}"
        )
        source = torch_source("ProcessGroupNCCL.cpp")
        found.append(env(_ROOT, None, "try", because, source))
    threshold = facts.number_of(_THRESHOLD) or _DEFAULT_THRESHOLD
    rate = facts.number_of(_RATE) or _DEFAULT_RATE
    waited = stagger_s(per_root, threshold, rate) if rate > 0 else 0.0
    if waited > _SLOW_S and rate < _DEFAULT_RATE:
        because = (
            f"the last of {per_root} ranks waits {waited:.0f} s: {per_root} / {rate} "
            f"calls a second; NCCL's own rate is {_DEFAULT_RATE}"
        )
        found.append(env(_RATE, None, "warn", because, manual(_RATE)))
    return found
