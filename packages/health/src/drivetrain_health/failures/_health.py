"""Whether a worker makes progress, as its agent sees it."""

from enum import StrEnum


class Health(StrEnum):
    """What a worker is."""

    WELL = "well"
    FROZEN = "frozen"
    STUCK = "stuck"
