"""Build of the native library into a cache.

A folder of the cache holds one library, and is named after all that it was built from:
torch's version, Python's binary interface, the sources and the compiler. It appears at
once, when it is whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_simulated_accelerator._errors import SimulatedAcceleratorBuildError
from drivetrain_simulated_accelerator._toolchain import (
    Compiler,
    find_compiler,
    python_abi,
    source_digest,
    source_folder,
    torch_folder,
    torch_version,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

CACHE_VARIABLE = "DRIVETRAIN_SIMULATED_ACCELERATOR_CACHE"
COMMAND = "python -m drivetrain_simulated_accelerator build"
LIBRARY = "_native.so"
FACTS = "facts.json"

# A compiler process takes about 1 GB of memory.
_MAX_JOBS = 2
_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-Wno-deprecated")
_DEFINITIONS = (
    "-D_GLIBCXX_USE_CXX11_ABI=1",
    "-DUSE_DISTRIBUTED",
    "-DUSE_C10D_GLOO",
    "-DTORCH_EXTENSION_NAME=_native",
)


def cache_folder() -> Path:
    """Returns the folder of the cache, which may not exist yet."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home, "drivetrain", "simulated_accelerator")


def is_built() -> bool:
    """Returns whether the library is there for these sources and the installed torch."""
    return find_library() is not None


def find_library() -> Path | None:
    """Returns the library for these sources and the installed torch; None without one.

    Any compiler's will do: a machine that only runs the library needs none.
    """
    prefix = f"{torch_version()}-{python_abi()}-{source_digest()}-"
    found = sorted(cache_folder().glob(f"{prefix}*/{LIBRARY}"))
    return found[0] if found else None


def versions_built() -> list[str]:
    """Returns the versions of torch that there are libraries for, of any sources."""
    files = sorted(cache_folder().glob(f"*/{FACTS}"))
    return sorted({str(json.loads(file.read_text())["torch"]) for file in files})


def build(*, verbose: bool = False) -> Path:
    """Builds the library, if it is not there yet.

    Processes may call it at once: one builds, the others wait for it.

    Args:
        verbose: Whether to say on stderr what is done.

    Returns:
        The library.

    Raises:
        SimulatedAcceleratorBuildError: There is no compiler, or it fails.
    """
    compiler = find_compiler()
    library = _folder_of(compiler) / LIBRARY
    if library.exists():
        return library
    cache_folder().mkdir(parents=True, exist_ok=True)
    with _lock(cache_folder() / "lock"):
        if not library.exists():
            _build_aside(compiler, library.parent, verbose=verbose)
    return library


def _folder_of(compiler: Compiler) -> Path:
    """Returns the folder of the cache for the library that a compiler makes."""
    its = hashlib.sha256(compiler.version.encode()).hexdigest()[:8]
    name = f"{torch_version()}-{python_abi()}-{source_digest()}-{its}"
    return cache_folder() / name


@contextmanager
def _lock(file: Path) -> Iterator[None]:
    """Holds a lock, which ends with the process at the latest."""
    with file.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build_aside(compiler: Compiler, folder: Path, *, verbose: bool) -> None:
    """Builds into a temporary folder, which then takes its name."""
    aside = Path(tempfile.mkdtemp(prefix="building-", dir=folder.parent))
    try:
        _compile(compiler, aside, verbose=verbose)
        facts = {"torch": torch_version(), "python": python_abi()}
        facts |= {"compiler": compiler.version, "sources": source_digest()}
        (aside / FACTS).write_text(json.dumps(facts, indent=2) + "\n")
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _compile(compiler: Compiler, folder: Path, *, verbose: bool) -> None:
    """Compiles each source, two at a time, and links the library."""
    sources = sorted(source_folder().glob("*.cpp"))
    # The largest ones first, so that none is left at the end.
    sources.sort(key=lambda source: -source.stat().st_size)
    objects = [folder / f"{source.stem}.o" for source in sources]
    include = torch_folder() / "include"
    headers = [
        *("-isystem", str(include)),
        *("-isystem", str(include / "torch/csrc/api/include")),
        *("-isystem", sysconfig.get_paths()["include"]),
    ]

    def compile_one(source: Path, target: Path) -> None:
        if verbose:
            sys.stderr.write(f"compiling {source.name}\n")
        options = [*_FLAGS, *_DEFINITIONS, *headers]
        _run([compiler.path, *options, "-c", str(source), "-o", str(target)])

    jobs = max(1, min(_MAX_JOBS, len(os.sched_getaffinity(0))))
    with ThreadPoolExecutor(jobs) as pool:
        # The first failure ends the wait for the others that have not begun.
        try:
            list(pool.map(compile_one, sources, objects))
        except SimulatedAcceleratorBuildError:
            pool.shutdown(cancel_futures=True)
            raise
    library = torch_folder() / "lib"
    names = ("c10", "torch_cpu", "torch", "torch_python")
    linked = [f"-L{library}", *(f"-l{name}" for name in names)]
    target = ["-o", str(folder / LIBRARY), f"-Wl,-rpath,{library}"]
    _run([compiler.path, "-shared", *map(str, objects), *linked, *target])
    for file in objects:
        file.unlink(missing_ok=True)


def _run(command: list[str]) -> None:
    """Runs the compiler; raises what it says where it fails."""
    done: subprocess.CompletedProcess[Any]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = "\n".join(done.stderr.splitlines()[:40])
        message = f"{command[0]} failed with {done.returncode}: {command[-3:]}\n{said}"
        raise SimulatedAcceleratorBuildError(message)
