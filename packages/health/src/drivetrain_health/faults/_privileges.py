"""What faults need of the machine, and calls of the C library that Python lacks."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from drivetrain_core import ProgramError
from drivetrain_health.faults._errors import MissingPrivilegeError

# Their numbers in linux/capability.h.
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}


class _Needs(NamedTuple):
    """What a kind of fault needs: capabilities, programs, and a C compiler."""

    capabilities: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    compiler: bool = False


_NEEDS = {
    "clock": _Needs(compiler=True),
    "disk": _Needs(capabilities=("CAP_SYS_ADMIN",)),
    "network": _Needs(("CAP_NET_ADMIN", "CAP_SYS_ADMIN"), programs=("ip", "tc")),
}


def missing_because(kind: str) -> str | None:
    """Returns what this machine or this user lacks for faults of a kind, or None.

    Args:
        kind: `clock`, for `skew_clock`; `disk`, for `small_disk`; or `network`, for
            `Network`. Other faults need nothing.

    Raises:
        ProgramError: There is no such kind.

    Example:
        >>> missing_because("disk") in (None, "it needs CAP_SYS_ADMIN: run it as root")
        True
    """
    if kind not in _NEEDS:
        message = f"faults are of the kinds {', '.join(sorted(_NEEDS))}, not {kind!r}"
        raise ProgramError(message)
    needs = _NEEDS[kind]
    held = _held_capabilities()
    lacking = [one for one in needs.capabilities if not held >> _CAPABILITIES[one] & 1]
    if lacking:
        return f"it needs {' and '.join(lacking)}: run it as root"
    programs = [name for name in needs.programs if shutil.which(name) is None]
    if programs:
        return f"it needs {' and '.join(programs)} (of iproute2) in PATH"
    if needs.compiler and find_compiler() is None:
        return "it needs a C compiler: install one, or set CC to it"
    return None


def require(kind: str) -> None:
    """Checks that faults of a kind can be made.

    Raises:
        MissingPrivilegeError: They cannot.
    """
    why = missing_because(kind)
    if why:
        message = f"no {kind} faults can be made here: {why}"
        raise MissingPrivilegeError(message)


def find_compiler() -> str | None:
    """Returns the path of the C compiler, or None."""
    names = [os.environ.get("CC"), "cc", "gcc", "clang"]
    found = (shutil.which(name) for name in names if name)
    return next((path for path in found if path), None)


def call_libc(name: str, *arguments: object) -> None:
    """Calls a function of the C library that returns 0, or -1 and an error.

    Raises:
        MissingPrivilegeError: This process may not do that.
        OSError: It failed.
    """
    function = getattr(_libc(), name)
    if function(*arguments) == 0:
        return
    number = ctypes.get_errno()
    error = OSError(number, f"{name}: {os.strerror(number)}")
    if isinstance(error, PermissionError):
        message = (
            f"{name} is not permitted, although the capabilities are there: does the "
            "container forbid it?"
        )
        raise MissingPrivilegeError(message) from error
    raise error


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _held_capabilities() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (found,) = [line.split()[1] for line in lines if line.startswith("CapEff:")]
    return int(found, 16)
