"""What the tests of every package share: hardware they need, and that they leave nothing."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

if find_spec("hypothesis"):
    from hypothesis import settings

    # A slow machine is no failure. A change is judged by the same examples each time; new
    # ones are tried where tests are shuffled, by `nox -s flakes`.
    is_shuffled = find_spec("pytest_randomly") is not None
    settings.register_profile("drivetrain", deadline=None, derandomize=not is_shuffled)
    settings.load_profile("drivetrain")

ROOT = Path(__file__).parent

# GPU kernels import Triton, which the packages do without; a `*` crosses folders.
kernels = ["packages/*/src/*/_triton_*.py"]
collect_ignore_glob = [] if find_spec("triton") else kernels
# An adapter imports the library that it is named after.
collect_ignore_glob += [
    f"packages/*/src/*/adapters/{name}.py"
    for name in ("accelerate", "lightning", "transformers")
    if not find_spec(name)
]

# Its import changes torch, for all tests of the process.
collect_ignore_glob += ["packages/comm/src/drivetrain_comm/auto.py"]

# It is imported where it is loaded.
if "torch.sim" not in sys.modules:
    collect_ignore_glob += ["integration/simulated_accelerator/src/*"]

# What torch warns of on a GPU alone, once for a process, is no fault of a test.
TORCH_WARNS = (
    "default::UserWarning:torch",
    "default:Synchronization debug mode is a prototype:UserWarning",
    "default:TensorFloat32 tensor cores for float32:UserWarning",
)


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leaves out what is marked `faults` unless `-m` asks for it; skips GPU tests.

    Tests marked `gpu` and `multigpu` are skipped where there are too few GPUs, and those of
    the simulated accelerator where the process has not loaded it.
    """
    if "torch.sim" not in sys.modules:
        skip = pytest.mark.skip(
            reason="needs the simulated accelerator: nox -s simulated"
        )
        for item in items:
            if item.get_closest_marker("simulated_accelerator"):
                item.add_marker(skip)
    if "faults" not in (config.getoption("markexpr", default="") or ""):
        long = [item for item in items if item.get_closest_marker("faults")]
        if long:
            config.hook.pytest_deselected(items=long)
            items[:] = [item for item in items if item not in long]
    needs = {"gpu": 1, "multigpu": 2}
    marked = [
        (i, n) for i in items for m, n in needs.items() if i.get_closest_marker(m)
    ]
    if not marked:
        return
    import torch

    there = torch.cuda.device_count()
    for item, count in marked:
        item.add_marker(pytest.mark.filterwarnings(*TORCH_WARNS))
        if there < count:
            reason = f"needs {count} GPU(s), this machine has {there}"
            item.add_marker(pytest.mark.skip(reason=reason))


# Each process that a test starts inherits it.
RUN = "DRIVETRAIN_TEST_RUN"
# They serve a whole process, and end with it: as its children, or in it.
SHARED_PROCESSES = ("fork_server", "resource_tracker", "forkserver", "compile_worker")
SHARED_THREADS = ("drivetrain-redis",)
# These serve the process that a daemon is, or end with a store or a server.
SHARED_CALLS = (
    "Persister._run",
    "Replicator._run",
    "PeerClient._run",
    "ScriptedWorlds._listen",
    "_end_idle",
)
GRACE_S = 15.0
SHARED_MEMORY = pytest.StashKey[dict[object, str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Gives the run a name."""
    os.environ.setdefault(RUN, str(os.getpid()))
    config.stash[SHARED_MEMORY] = files_of_shared_memory()


def pytest_collect_file(file_path: Path) -> None:
    """Imports a module of ours as a program does, so that pytest finds it imported.

    Pytest's own way runs a module again that its package has just imported.
    """
    _, src, inside = str(file_path).removeprefix(str(ROOT)).partition("/src/")
    if src and file_path.suffix == ".py":
        name = inside.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        # What cannot be imported is pytest's to tell.
        with contextlib.suppress(Exception):
            import_module(name)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Takes what was collected from the collector of garbage: it lives to the end.

    To look through it again and again takes a tenth of a run.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """A file of tests leaves no child process and none of our threads behind."""
    before = {*children(), *threads()}
    yield
    left = until_none(lambda: {**children(), **threads()}, before)
    assert not left, f"these tests have left {left}"


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """A whole run leaves no process behind, however far from its test, and no file."""
    yield
    # Some modules say at the end what was never collected.
    gc.unfreeze()
    if os.environ[RUN] != str(os.getpid()):
        return
    before = session.config.stash[SHARED_MEMORY]
    left = until_none(processes_of_run, set())
    left |= until_none(unused_shared_memory, set(before))
    for what, said in left.items():
        print(f"\nleft behind: {what}, {said}")  # noqa: T201
    if left:
        print("the run fails for what it has left behind")  # noqa: T201
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def until_none(
    find: Callable[[], dict[object, str]], before: set[object]
) -> dict[object, str]:
    """Returns what is found, and was not before, still after a while."""
    deadline = time.monotonic() + GRACE_S
    while left := {key: said for key, said in find().items() if key not in before}:
        if time.monotonic() > deadline:
            return left
        time.sleep(0.02)
    return {}


def threads() -> dict[object, str]:
    """Returns the threads that the packages started in this process, by their names."""
    found = (t for t in threading.enumerate() if is_ours(t))
    return {thread: f"thread {thread.name}" for thread in found}


def is_ours(thread: threading.Thread) -> bool:
    """Returns whether a thread is to end with its test, by its name or what it runs."""
    # That of a timer is called otherwise; what has ended runs nothing.
    call = getattr(thread, "_target", None) or getattr(thread, "function", None)
    if (
        thread.name in SHARED_THREADS
        or getattr(call, "__qualname__", "") in SHARED_CALLS
    ):
        return False
    homes = (thread.name, type(thread).__module__, getattr(call, "__module__", ""))
    return any(str(home).startswith("drivetrain") for home in homes)


def children() -> dict[object, str]:
    """Returns the running children of this process, by their commands."""
    found = {pid: command_of(pid) for pid in child_pids()}
    return {pid: said for pid, said in found.items() if said and not is_shared(said)}


def child_pids() -> set[int]:
    """Returns the children of this process, ended or not."""
    found: set[int] = set()
    for file in Path("/proc/self/task").glob("*/children"):
        # A thread that has ended has none.
        with contextlib.suppress(OSError):
            found.update(map(int, file.read_text().split()))
    return found


def is_shared(command: str) -> bool:
    """Returns whether a child with that command serves this process to its end."""
    return any(word in command for word in SHARED_PROCESSES)


def processes_of_run() -> dict[object, str]:
    """Returns the processes that tests of this run started, with the test of each."""
    found: dict[object, str] = {}
    wanted = f"{RUN}={os.getpid()}".encode()
    shared = {pid for pid in child_pids() if is_shared(command_of(pid))}
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in variables and pid not in {os.getpid(), *shared}:
            names = dict(v.partition(b"=")[::2] for v in variables)
            test = names.get(b"PYTEST_CURRENT_TEST", b"no test").decode()
            found[f"{pid} {command_of(pid)}"] = f"started in {test}"
    return found


def files_of_shared_memory() -> dict[object, str]:
    """Returns the files of this user in shared memory: who uses others' is not told."""
    found: dict[object, str] = {}
    for file in Path("/dev/shm").glob("*"):
        # Another process may have removed it meanwhile.
        with contextlib.suppress(OSError):
            if file.stat().st_uid == os.getuid():
                found[str(file)] = "a file, of this run or of one beside it"
    return found


def unused_shared_memory() -> dict[object, str]:
    """Returns the files of shared memory that no process has mapped or open."""
    found = files_of_shared_memory()
    for folder in Path("/proc").glob("[0-9]*") if found else ():
        with contextlib.suppress(OSError):
            for line in (folder / "maps").read_text(errors="replace").splitlines():
                found.pop(line[line.find("/") :], None)
            for descriptor in (folder / "fd").iterdir():
                found.pop(str(descriptor.readlink()), None)
    return found


def command_of(pid: int) -> str:
    """Returns what a process runs; nothing where it has ended."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return command.replace(b"\0", b" ").decode(errors="replace")[:200]
