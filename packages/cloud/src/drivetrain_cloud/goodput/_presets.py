"""Systems by name: what recovery takes in them, and where each number is from."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, NamedTuple

from drivetrain_cloud.goodput._config import GoodputConfig
from drivetrain_cloud.goodput._profile import CheckpointPlan, RecoveryProfile
from drivetrain_core import ProgramError

__all__ = ["PRESETS", "Origin", "Preset", "Sourced", "preset"]


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
    if name not in PRESETS:
        close = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        message = f"no preset is called {name!r}, there are {', '.join(PRESETS)}{hint}"
        raise ProgramError(message)
    return PRESETS[name]


def _plain(given: dict[str, Sourced]) -> dict[str, Any]:
    return {name: one.value for name, one in given.items()}


def _stated(value: float, note: str) -> Sourced:
    return Sourced(value, Origin.STATED, note)


def _measured(value: float, note: str) -> Sourced:
    return Sourced(value, Origin.MEASURED, note)


def _borrowed(value: float, note: str) -> Sourced:
    return Sourced(value, Origin.BORROWED, note)


def _assumed(value: float, note: str) -> Sourced:
    return Sourced(value, Origin.ASSUMED, note)


_OURS = "docs/benchmarks/elastic_cpu_202611.md"
_DLROVER = "DLRover, stabilize_llm_training_cn.md (2023), table of times"
_FLASH = "DLRover, flash_checkpoint.md (2024)"
_MEGASCALE = "MegaScale (arXiv 2402.15627)"
_BYTEROBUST = "ByteRobust (arXiv 2509.16293)"
_BYTECHECKPOINT = "ByteCheckpoint (arXiv 2407.20143), table 8, 405B on 8,960 GPUs"

# What no system's authors state, and all need: from those who do.
_SEARCHED_BY_PEOPLE = {
    "manual_share": _borrowed(
        3 / 419, "Llama 3: three of 419 interruptions needed people (section 3.3.4)"
    ),
    "manual_s": _borrowed(7200.0, f"{_DLROVER}: two hours to find a node by hand"),
    "operator_s": _assumed(3600.0, "an hour until somebody has looked"),
    "corruption_s": _assumed(3600.0, "a probe for wrong numbers once in two hours"),
    "slow_s": _assumed(600.0, "some windows of steps"),
}
_STORAGE = {
    "stall_s": _borrowed(0.59, f"{_BYTECHECKPOINT}: time blocked"),
    "durable_s": _borrowed(51.06, f"{_BYTECHECKPOINT}: time to save"),
    "interval_s": _assumed(1800.0, "twice an hour"),
}
_LOAD = _borrowed(129.49, f"{_BYTECHECKPOINT}: time to load")
_REQUEUE = _borrowed(
    768.0, f"{_BYTEROBUST}, table 7: requeue at 16,384 GPUs; no pool of warm nodes"
)
_NCCL_TIMEOUT = _borrowed(
    600.0, f"{_BYTEROBUST}, table 3: PyTorch's time-out, about ten minutes"
)

PRESETS: dict[str, Preset] = {
    one.name: one
    for one in (
        Preset(
            name="drivetrain",
            recovery={
                "exit_s": _measured(0.0, f"in regroup_s; {_OURS} (cpu-gloo)"),
                "heartbeat_s": _stated(0.5, "the agent's heartbeat"),
                "node_timeout_s": _stated(2.0, "the master's default"),
                "hang_timeout_s": _stated(600.0, "the default of --stuck-s"),
                "regroup_s": _measured(
                    0.16, f"{_OURS}: kill -9, p99 of 100 (cpu-gloo, 4 ranks)"
                ),
                "join_s": _measured(
                    1.3,
                    f"{_OURS}: the longest step with a gigabyte of state less a usual "
                    "one (cpu-gloo, loopback)",
                ),
                "restart_s": _measured(
                    1.88, f"{_OURS}: nobody stands by, p99 of 20 (cpu-gloo)"
                ),
                "diagnose_s": _assumed(0.0, "pure functions, while survivors go on"),
                "wrong_share": _assumed(
                    0.01, "the bound of the decision layer's benchmark"
                ),
                "load_s": _LOAD,
                "provision_s": _REQUEUE,
                **_SEARCHED_BY_PEOPLE,
                "keeps_survivors": _stated(True, "survivors never restart"),
                "may_resize": _stated(True, "whole copies train"),
            },
            checkpoint=_STORAGE,
            job={
                "nodes_per_copy": _borrowed(
                    8, f"{_MEGASCALE}: 175B, 8 x 8 GPUs hold a copy"
                ),
                "num_standbys": _borrowed(
                    4, f"{_BYTEROBUST}: four for 1,024 machines (section 8.2.1)"
                ),
            },
        ),
        Preset(
            name="torchrun",
            recovery={
                "exit_s": _stated(0.1, "torch 2.13: the agent's monitor interval"),
                "heartbeat_s": _stated(5.0, "torch 2.13: keep-alive interval"),
                "node_timeout_s": _stated(15.0, "torch 2.13: three missed"),
                "hang_timeout_s": _NCCL_TIMEOUT,
                "restart_s": _measured(
                    30.9,
                    f"{_OURS}: a node is killed, with its own store, 45.9 s, less 15 s "
                    "until it is noticed (cpu-gloo, 4 ranks)",
                ),
                "load_s": _LOAD,
                "provision_s": _REQUEUE,
                "locate_s": _borrowed(
                    600.0, f"{_MEGASCALE}: detection and diagnosis, which it lacks"
                ),
                **_SEARCHED_BY_PEOPLE,
                "may_resize": _stated(True, "--nnodes MIN:MAX"),
            },
            checkpoint=_STORAGE,
            job={},
        ),
        Preset(
            name="dlrover",
            recovery={
                "diagnose_s": _stated(
                    360.0, f"{_DLROVER}: found in 5 min, nodes checked in 1 min"
                ),
                "locate_s": _stated(
                    90.0, f"{_DLROVER}: nodes checked in 2-3 min after hardware failed"
                ),
                "provision_s": _stated(120.0, f"{_DLROVER}: one pod, 2 min"),
                "may_resize": _stated(True, "min and max nodes"),
                "resize_s": _stated(180.0, f"{_DLROVER}: scaled down in 3 min"),
                "load_s": _stated(240.0, f"{_DLROVER}: loaded in 4 min"),
                "load_memory_s": _assumed(10.0, f"{_FLASH}: seconds"),
                **_SEARCHED_BY_PEOPLE,
            },
            checkpoint={
                "interval_s": _stated(5400.0, f"{_FLASH}: 250 steps, 1.5 hours"),
                "stall_s": _assumed(0.2, "stored from memory, as the copies"),
                "durable_s": _stated(60.0, f"{_DLROVER}: saved in 1 min"),
                "memory_interval_s": _stated(216.0, f"{_FLASH}: every 10 of 250 steps"),
                "memory_stall_s": _stated(0.2, f"{_FLASH}: 0.2 s blocked"),
            },
            job={},
        ),
        Preset(
            name="megascale",
            recovery={
                "diagnose_s": _stated(
                    600.0, f"{_MEGASCALE}, 6.3: found and tested in under 10 min"
                ),
                "restart_s": _stated(
                    30.0, f"{_MEGASCALE}: groups on over 10,000 GPUs in under 30 s"
                ),
                "load_s": _assumed(
                    0.0, "in the 15 min that bring it back, see interval_s"
                ),
                **_SEARCHED_BY_PEOPLE,
                "manual_share": _stated(
                    0.1, f"{_MEGASCALE}, 6.2: over 90% found by itself"
                ),
            },
            checkpoint={
                "interval_s": _assumed(
                    1740.0,
                    f"{_MEGASCALE}, 6.3: back at the step before within 15 min, of "
                    "which half a minute forms groups and half an interval is re-made",
                ),
            },
            job={},
        ),
        Preset(
            name="byterobust",
            recovery={
                "exit_s": _stated(10.0, f"{_BYTEROBUST}, table 3: a lost GPU"),
                "heartbeat_s": _stated(
                    2.0, f"{_BYTEROBUST}, table 3: host inspections"
                ),
                "node_timeout_s": _stated(
                    2.0, f"{_BYTEROBUST}, table 3: kernel faults"
                ),
                "hang_timeout_s": _stated(
                    600.0, f"{_BYTEROBUST}: no RDMA traffic for ten minutes"
                ),
                "restart_s": _stated(
                    93.0,
                    f"{_BYTEROBUST}, table 6: from the node's name to the next step, "
                    "mean for CUDA errors",
                ),
                **_SEARCHED_BY_PEOPLE,
                "operator_s": _stated(4289.0, f"{_BYTEROBUST}, table 6: mean for NaN"),
                "manual_share": _assumed(0.0, "the table's maxima have none"),
            },
            checkpoint={
                "interval_s": _stated(10.0, "every step; a step's time is not stated"),
                "stall_s": _stated(
                    0.09, f"{_BYTEROBUST}: under 0.9% for a checkpoint each step"
                ),
                "memory_interval_s": _stated(10.0, "every step"),
                "has_replicas": _stated(True, "kept outside of the own groups"),
            },
            job={
                "num_standbys": _stated(4, f"{_BYTEROBUST}: for 1,024 machines"),
            },
        ),
    )
}
"""The systems that are known, by name."""
