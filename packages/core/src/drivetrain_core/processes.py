"""Processes of Linux: parents, orphans, and how one has ended."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import psutil

__all__ = [
    "ASK_WITHOUT_START",
    "adopt_orphans",
    "children",
    "describe_exit",
    "end_with_parent",
    "has_lost_accelerator",
]

ASK_WITHOUT_START = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Variables with which `torch.cuda.is_available()` does not start CUDA in a process."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Makes this process the parent of those of its descendants that lose theirs.

    Raises:
        OSError: The system cannot do that.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> set[int]:
    """Returns the processes whose parent is this one."""
    return {child.pid for child in psutil.Process().children()}


def end_with_parent(parent: int | None = None, how: int = signal.SIGKILL) -> None:
    """Lets the kernel send this process a signal when its parent ends.

    Args:
        parent: Who that has to be; this process ends now if it is another one.
        how: The signal.
    """
    _prctl(_PR_SET_PDEATHSIG, how)
    # The parent may have ended before.
    if os.getppid() != (parent or os.getppid()):
        os._exit(1)


def describe_exit(exit_code: int) -> str:
    """Returns how a process has ended, in words.

    Example:
        >>> describe_exit(3), describe_exit(-9)
        ('ended with exit code 3', 'was killed by SIGKILL')
    """
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"was killed by {name}"


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"prctl: {os.strerror(code)}")


def has_lost_accelerator() -> bool:
    """Whether this is a fork of a process that had started its accelerator.

    Such a fork can never use it: torch raises "Cannot re-initialize CUDA in forked
    subprocess". `torch.cuda.is_available()` starts it, as `torch.cuda.is_initialized()`
    does not tell; torch itself notes it in each fork. Without torch there is none.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    device = torch.accelerator.current_accelerator()
    module = None if device is None else torch.get_device_module(device)
    return bool(getattr(module, "_is_in_bad_fork", bool)())
