"""A wall clock that is wrong, for the processes of an environment.

A library that is preloaded stands between a process and the C library, so that the clock
is wrong for everything in it: Python, torch, gRPC. It is compiled when it is first used.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_core import ProgramError
from drivetrain_health.faults._errors import FaultError, MissingPrivilegeError
from drivetrain_health.faults._privileges import find_compiler, require

if TYPE_CHECKING:
    from collections.abc import Mapping

_VARIABLE = "DRIVETRAIN_FAULT_CLOCK"
_SOURCE = Path(__file__).with_name("clock_skew.c")
# So that a time of the wall clock is never small enough for one of the time since boot.
_MOST_S = 1e9


def skew_clock(
    seconds: float, *, drift: float = 0.0, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns an environment whose processes have a wall clock that is off.

    It is off for `time.time`, `datetime` and whatever asks the C library. Timeouts and
    deadlines take as long as the process expects on its own clock. The monotonic clock
    and the times of files are true. All processes of one environment agree. Programs
    that are linked statically, and those that gain privileges, have the true clock.

    Args:
        seconds: How far ahead the clock is; behind, if negative.
        drift: How much more it gains in each second from now on, in seconds. It must be
            over -1, with which it would stand still.
        environ: What the environment has otherwise; that of this process by default.

    Returns:
        The environment, for `subprocess.Popen(..., env=)`.

    Raises:
        ProgramError: An argument is out of range.
        MissingPrivilegeError: There is no C compiler.
        FaultError: The library cannot be compiled, or not be kept.

    Example:
        >>> import subprocess, sys
        >>> ask = [sys.executable, "-c", "import time; print(time.time())"]
        >>> done = subprocess.run(ask, env=skew_clock(3600), capture_output=True)
        >>> round((float(done.stdout) - time.time()) / 60)
        60
    """
    if not abs(seconds) <= _MOST_S:
        message = f"a clock can be off by {_MOST_S:g} seconds at most, got {seconds}"
        raise ProgramError(message)
    if not drift > -1:
        message = f"the drift of a clock must be over -1, got {drift}"
        raise ProgramError(message)
    found = dict(os.environ if environ is None else environ)
    found[_VARIABLE] = f"{round(seconds * 1e9)} {drift:.17g} {time.time_ns()}"
    library = str(_library())
    others = [one for one in found.get("LD_PRELOAD", "").split(":") if one]
    found["LD_PRELOAD"] = ":".join([library, *(o for o in others if o != library)])
    return found


def _library() -> Path:
    """Returns the compiled library; it is compiled where the cache lacks this source."""
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "drivetrain" / "elastic"
    file = folder / f"clock-skew-{digest}-{os.uname().machine}.so"
    if set(str(file)) & set(" :"):
        message = f"a library in {folder} cannot be preloaded: no spaces, no colons"
        raise FaultError(message)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.stat()
    # Whoever can write there runs in every process of the environment.
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        message = f"{folder} must be yours, and writable for nobody else"
        raise MissingPrivilegeError(message)
    if not file.exists():
        require("clock")
        part = file.with_suffix(f".{os.getpid()}")
        options = ["-O2", "-shared", "-fPIC", "-o", str(part), str(_SOURCE)]
        command = [str(find_compiler()), *options, "-ldl", "-lpthread"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            message = f"`{' '.join(command)}` failed: {done.stderr.strip()}"
            raise FaultError(message)
        part.rename(file)
    return file
