"""How many blocks of the GPU NCCL may use: names that changed, limits that cross."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_fabric.adviser._rules._say import env
from drivetrain_fabric.adviser._rules._sources import answer, manual
from drivetrain_fabric.adviser._versions import settings_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_fabric.adviser._advice import Advice, Gap
    from drivetrain_fabric.adviser._facts import Facts

_MAX, _MIN = "NCCL_MAX_CTAS", "NCCL_MIN_CTAS"
_OLD_MAX, _OLD_MIN = "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS"
_OF_SENDS = "NCCL_MAX_P2P_NCHANNELS"


def advise_ctas(facts: Facts) -> list[Advice | Gap]:
    """Returns limits that say what somebody meant.

    Args:
        facts: What is known.
    """
    is_new = _MAX in settings_of(facts.nccl)
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
    settings = settings_of(facts.nccl)
    numbers = (facts.number_of(name) for name in names if name in settings)
    values = [number for number in numbers if number and number > 0]
    # NCCL_MAX_NCHANNELS takes any number, where the others have a most.
    return min(settings[_OLD_MIN].range[1], pick(values)) if values else None
