"""How many blocks of the GPU NCCL may use: names that changed, limits that cross."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_fabric.adviser._rules._say import env
from drivetrain_fabric.adviser._rules._sources import answer, manual
from drivetrain_fabric.adviser._versions import most_ctas

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_fabric.adviser._advice import Advice, Gap
    from drivetrain_fabric.adviser._facts import Facts

_RENAMED_SINCE = (2, 17)
_MAX, _MIN = "NCCL_MAX_CTAS", "NCCL_MIN_CTAS"
_OLD_MAX, _OLD_MIN = "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS"
_OF_SENDS = "NCCL_MAX_P2P_NCHANNELS"


def advise_ctas(facts: Facts) -> list[Advice | Gap]:
    """Returns limits that say what somebody meant.

    Args:
        facts: What is known.
    """
    is_new = facts.nccl >= _RENAMED_SINCE
    most = _counting(facts, (_MAX, _OLD_MAX), min)
    # On eRDMA the least number is what Alibaba says.
    is_ours = facts.transport != "erdma"
    least = _counting(facts, (_MIN, _OLD_MIN), max) if is_ours else None
    crosses = most is not None and least is not None and least > most
    found: list[Advice | Gap] = []
    for old, new, value in ((_OLD_MAX, _MAX, most), (_OLD_MIN, _MIN, least)):
        if not is_new or value is None or facts.number_of(old) is None:
            continue
        because = f"{new} took its place in 2.17; of two the tighter counts, {value}"
        found.append(env(old, None, "try", because, manual(old)))
        if new != _MIN or not crosses:
            because = f"what {old} says, by its name since 2.17"
            found.append(env(new, value, "try", because))
    if crosses:
        because = f"at least {least} and at most {most} cannot both be"
        found.append(env(_MIN if is_new else _OLD_MIN, most, "bad", because))
    if most is not None and facts.value_of(_OF_SENDS) is None:
        because = (
            f"{most} limits collectives; sends and receives, as all-to-all is made of, "
            "go by a limit of their own"
        )
        source = answer("NVIDIA/nccl#1598")
        found.append(env(_OF_SENDS, most, "try", because, source))
    return found


def _counting(
    facts: Facts, names: tuple[str, str], pick: Callable[[list[int]], int]
) -> int | None:
    """Returns the limit that counts, of its new and its old name."""
    known = names if facts.nccl >= _RENAMED_SINCE else names[1:]
    values = [v for v in (facts.number_of(name) for name in known) if v and v > 0]
    # The old name takes any number, where the new one has a most.
    return min(most_ctas(facts.nccl), pick(values)) if values else None
