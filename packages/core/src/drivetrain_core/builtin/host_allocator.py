"""The allocator of the C library, told to keep what tensors free on a CPU."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import TYPE_CHECKING

from drivetrain_core._choice import Choice, Config, Ok, Phase, Reject, Slot
from drivetrain_core._errors import Code
from drivetrain_core._optimization import BaseOptimization

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from drivetrain_core._context import Context
    from drivetrain_core._state import TrainingState

# Parameters of mallopt (glibc, malloc.h), and what they are before anybody sets them.
_TRIM_THRESHOLD, _USUAL_TRIM_THRESHOLD = -1, 128 * 1024
_MMAP_MAX, _USUAL_MMAP_MAX = -4, 65_536
_NEVER = -1
# What tells glibc the same from outside, and cannot be read back (mallopt(3)).
_TUNED_BY = (
    "MALLOC_MMAP_MAX_",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
)


class HostAllocator(BaseOptimization):
    """Keeps freed memory in the process, instead of giving it back at each step.

    glibc maps large tensors one by one, and unmaps them when they are freed, so that the
    kernel clears every page of the next step's tensors anew. With this, the process keeps
    its peak of memory until it ends or the plan is closed. (glibc manual, 3.2.3.6,
    M_MMAP_MAX and M_TRIM_THRESHOLD.) Only glibc's main heap keeps what is large: a thread
    has another one, and so has a thread whose memory has once run out.
    """

    name = "host_allocator"
    slot = Slot.ALLOCATOR
    phase = Phase.ENVIRONMENT

    def configs(self, context: Context) -> Iterable[Config]:
        """Returns one configuration on a CPU with glibc, else none."""
        return [{}] if context.device.type == "cpu" and _is_glibc() else []

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Rejects accelerators, other C libraries, and one that the user has tuned."""
        del config, plan
        if context.device.type != "cpu":
            return Reject(
                Code.NEEDS_DEVICE, f"the model trains on {context.device.name}"
            )
        if not _is_glibc():
            return Reject(Code.NEEDS_DEVICE, "the C library is not glibc")
        tuned = _tuned_by(os.environ)
        if tuned:
            return Reject(
                Code.CONFLICT,
                f"{tuned} tunes the allocator, which could not be put back",
                f"unset {tuned}",
            )
        return Ok()

    def apply(self, state: TrainingState, config: Config) -> None:
        """Tells the C library, and how to take it back."""
        del config
        libc = ctypes.CDLL(None)
        state.undo.append(lambda: _give_back(libc))
        libc.mallopt(_MMAP_MAX, 0)
        libc.mallopt(_TRIM_THRESHOLD, _NEVER)


def _tuned_by(environment: Mapping[str, str]) -> str:
    """Returns the variable by which the user has tuned glibc's allocator, or nothing.

    Example:
        >>> _tuned_by({"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1"})
        'GLIBC_TUNABLES'
    """
    if "glibc.malloc" in environment.get("GLIBC_TUNABLES", ""):
        return "GLIBC_TUNABLES"
    return next((name for name in _TUNED_BY if name in environment), "")


def _is_glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"


def _give_back(libc: ctypes.CDLL) -> None:
    libc.mallopt(_MMAP_MAX, _USUAL_MMAP_MAX)
    libc.mallopt(_TRIM_THRESHOLD, _USUAL_TRIM_THRESHOLD)
    libc.malloc_trim(0)
