"""Torch's watch over NCCL: what ends a job that hangs, and leaves a trace of why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_fabric.adviser._rules._say import env
from drivetrain_fabric.adviser._rules._sources import manual, torch_source

if TYPE_CHECKING:
    from drivetrain_fabric.adviser._advice import Advice, Gap
    from drivetrain_fabric.adviser._facts import Facts

_ERRORS, _BLOCKING = "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_BLOCKING_WAIT"
_WATCH, _HEARTBEAT = "TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
_DUMP, _TRACE = "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_TRACE_BUFFER_SIZE"
_DEBUG = "NCCL_DEBUG"
_DEFAULT_HEARTBEAT_S = 480
_SHORT_HEARTBEAT_S = 60
_TALKATIVE = ("INFO", "TRACE")
_MANY = 64
_SOURCE = torch_source("ProcessGroupNCCL.hpp")


def advise_torch(facts: Facts) -> list[Advice | Gap]:
    """Returns which of torch's guards are off, or in each other's way.

    Args:
        facts: What is known.
    """
    found: list[Advice | Gap] = []
    if facts.number_of(_ERRORS) == 0 and not _is_on(facts.value_of(_BLOCKING)):
        because = "with 0 no time-out ends a collective: one lost rank hangs all others"
        found.append(env(_ERRORS, None, "bad", because, _SOURCE))
    if _is_on(facts.value_of(_BLOCKING)):
        because = "wait() holds up the processor until the GPU is done, in each step"
        found.append(env(_BLOCKING, None, "try", because, _SOURCE))
    if _is_off(facts.value_of(_WATCH)):
        because = "without it a watch thread that hangs in the driver hangs the job"
        found.append(env(_WATCH, None, "warn", because, _SOURCE))
    heartbeat = facts.number_of(_HEARTBEAT)
    if heartbeat is not None and 0 < heartbeat < _SHORT_HEARTBEAT_S:
        because = (
            f"{heartbeat} s are less than a large checkpoint or a slow start may hold "
            f"the lock of the interpreter; torch's own are {_DEFAULT_HEARTBEAT_S} s"
        )
        found.append(env(_HEARTBEAT, None, "warn", because, _SOURCE))
    if _is_on(facts.value_of(_DUMP)) and facts.number_of(_TRACE) == 0:
        because = "the trace that is to be written at a time-out has no room with 0"
        found.append(env(_TRACE, None, "warn", because, _SOURCE))
    debug = (facts.value_of(_DEBUG) or "").upper()
    if debug in _TALKATIVE and (facts.ranks or 0) >= _MANY:
        because = f"{debug} on {facts.ranks} ranks is for looking for a fault"
        found.append(env(_DEBUG, "WARN", "try", because, manual(_DEBUG)))
    return found


def _is_on(text: str | None) -> bool:
    return (text or "").lower() in {"1", "y", "yes", "t", "true"}


def _is_off(text: str | None) -> bool:
    return (text or "").lower() in {"0", "n", "no", "f", "false"}
