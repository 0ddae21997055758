"""Systems by name: what recovery takes in them, and where each number is from.

The table is `presets.toml`, beside this file.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from enum import StrEnum
from importlib.resources import files
from typing import Any, NamedTuple

from drivetrain_cloud.goodput._checks import check_known
from drivetrain_cloud.goodput._config import GoodputConfig
from drivetrain_cloud.goodput._profile import CheckpointPlan, RecoveryProfile
from drivetrain_core import ProgramError


class Origin(StrEnum):
    """Where a number is from.

    Example:
        >>> Origin("measured")
        <Origin.MEASURED: 'measured'>
    """

    STATED = "stated"
    """The system's own authors say so."""
    MEASURED = "measured"
    """We measured it, and the note says on what."""
    BORROWED = "borrowed"
    """Others say so, of their own system."""
    ASSUMED = "assumed"
    """Nobody says so; the note says why it is plausible."""
    FITTED = "fitted"
    """It was chosen to meet a figure."""


class Sourced(NamedTuple):
    """A number, and where it is from.

    Attributes:
        value: The number.
        origin: What kind of source it has.
        note: Which.
    """

    value: float
    origin: Origin
    note: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A system: its numbers, each with its source.

    Args:
        name: Which system.
        recovery: Fields of `RecoveryProfile`.
        checkpoint: Fields of `CheckpointPlan`.
        job: Fields of `GoodputConfig` that go with the system.

    Raises:
        ProgramError: A field does not exist.
    """

    name: str
    recovery: dict[str, Sourced]
    checkpoint: dict[str, Sourced]
    job: dict[str, Sourced]

    def __post_init__(self) -> None:
        """Checks that the fields exist."""
        for kind, given in (
            (RecoveryProfile, self.recovery),
            (CheckpointPlan, self.checkpoint),
            (GoodputConfig, self.job),
        ):
            known = {one.name for one in fields(kind)}
            for name in set(given) - known:
                message = f"preset {self.name!r}: {kind.__name__} has no field {name!r}"
                raise ProgramError(message)

    def profile(self) -> RecoveryProfile:
        """Returns what recovery takes."""
        return RecoveryProfile(name=self.name, **_plain(self.recovery))

    def plan(self) -> CheckpointPlan:
        """Returns when checkpoints are made."""
        return CheckpointPlan(**_plain(self.checkpoint))

    def config(self, **options: Any) -> GoodputConfig:
        """Returns a job that is trained with this system.

        Args:
            options: Arguments of `GoodputConfig`, which go before those of the preset.
        """
        made: dict[str, Any] = {
            "recovery": self.profile(),
            "checkpoint": self.plan(),
            **_plain(self.job),
        }
        return GoodputConfig(**{**made, **options})


def preset(name: str) -> Preset:
    """Returns a system by its name.

    Args:
        name: One of `PRESETS`.

    Raises:
        ProgramError: There is none of that name.

    Example:
        >>> preset("drivetrain").recovery["node_timeout_s"].value
        2.0
    """
    check_known("preset", name, PRESETS)
    return PRESETS[name]


def _plain(given: dict[str, Sourced]) -> dict[str, Any]:
    return {name: one.value for name, one in given.items()}


def _read_presets() -> dict[str, Preset]:
    text = files(__package__).joinpath("presets.toml").read_text()
    return {
        name: Preset(
            name=name,
            **{
                kind: {
                    field: Sourced(value, Origin(origin), note)
                    for field, (value, origin, note) in given.get(kind, {}).items()
                }
                for kind in ("recovery", "checkpoint", "job")
            },
        )
        for name, given in tomllib.loads(text).items()
    }


PRESETS = _read_presets()
"""The systems that are known, by name."""
