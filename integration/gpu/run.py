"""Tests and measures every package on a GPU machine that has torch and no network.

    python integration/gpu/run.py --minutes 9 --out gpu.json
    python integration/gpu/run.py --nodes 4 --meet HOST:29400  # on each of four hosts

It installs the packages into a temporary folder: a pure package from its wheel in
`integration/gpu/dist`, which `nox -s gpu` made on a machine with a network; a native one
from its source, with the compiler that is there. Then it runs rows, each in a process of
its own: tests side by side, then benchmarks alone. The report is written anew after each
row, so that a run that is ended loses one row at most; `--resume` runs what is missing.

The device is the one that torch means by `torch.accelerator`, of whatever vendor: it is
reported by what it tells. What asks for CUDA is skipped on another, and its row says so.

It exits with 0 when all passed, 1 when something failed or was left out, 2 when it cannot
start, 3 without a device.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from install import (
    PEERS,
    Package,
    SetupError,
    find_packages,
    find_wheel,
    install,
    missing_tools,
    requirements,
    resolve,
    wheels_of,
)
from process import Processes
from report import Report, line, table
from results import explain, read_bars, read_facts, read_junit
from rows import Row, choose, command_of, whole

ROOT = Path(__file__).parents[2]
NO_GPU = 3
_LOG = 4000
# A row is not begun when less than this part of its estimate is left.
_WORTH = 0.5


def measure_facts(
    packages: Sequence[Package],
    wheels: Mapping[str, Path],
    dist: Path,
    *,
    dry_run: bool,
) -> dict[str, Any]:
    """Returns the row of the hardware, the versions, and what the device can do at most.

    Args:
        packages: Those of the checkout; core is installed to ask the device.
        wheels: Of the pure packages, by name.
        dist: Where the wheels are that core needs beside its own.
        dry_run: Whether the device is asked what it is, and does no work.

    Raises:
        SetupError: Core cannot be installed, or torch does not run.
    """
    started = time.monotonic()
    command = [sys.executable, str(Path(__file__).with_name("facts.py"))]
    command += ["--dry-run"] * dry_run
    core = [package for package in packages if package.module == "drivetrain_core"]
    others = resolve([need for package in core for need in package.needs], dist)
    with tempfile.TemporaryDirectory(prefix="drivetrain-") as folder:
        paths, problems = (
            install(core, wheels, others, Path(folder)) if core else ([], {})
        )
        if problems:
            name, problem = next(iter(problems.items()))
            message = f"{name} {problem}"
            raise SetupError(message)
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True,
                                  timeout=120, env=_python_path(paths))  # fmt: skip
        except subprocess.TimeoutExpired as error:
            message = "torch did not answer within 120 s"
            raise SetupError(message) from error
    row = read_facts(done.stdout, done.returncode)
    if "facts" not in row:
        last = (done.stderr.strip().splitlines() or ["nothing was printed"])[-1]
        message = f"{sys.executable} cannot use torch: {last}"
        raise SetupError(message)
    return {"name": "facts", "seconds": round(time.monotonic() - started, 1), **row}


def commit(root: Path, dist: Path) -> str | None:
    """Returns the commit of the sources: as the wheels say it, or as git does."""
    if (dist / "commit.txt").exists():
        return (dist / "commit.txt").read_text().strip()
    if not shutil.which("git"):
        return None
    git = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40"]
    done = subprocess.run(git, check=False, capture_output=True, text=True)
    return done.stdout.strip() or None


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=str(__doc__).split("\n", 1)[0], allow_abbrev=False
    )
    rows = "rows by name, `first` or `second`; with --minutes `first` without it"
    parser.add_argument("--rows", nargs="+", default=[], metavar="NAME", help=rows)
    minutes = "when to have ended; rows that do not fit are left out and named"
    parser.add_argument("--minutes", type=float, help=minutes)
    resume = "keep what --out has measured already, and run what is missing"
    parser.add_argument("--resume", action="store_true", help=resume)
    only = "packages to run, by the name of their folder; all of them without it"
    parser.add_argument("--only", nargs="+", default=[], metavar="PACKAGE", help=only)
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="the report")
    logs = "the folder of what the rows print; a temporary one without it"
    parser.add_argument("--logs", type=Path, help=logs)
    dist = ROOT / "integration" / "gpu" / "dist"
    parser.add_argument("--dist", type=Path, default=dist, help="the folder of wheels")
    parser.add_argument("--quick", action="store_true", help="short benchmarks")
    no_bars = "run the tests and no benchmark"
    parser.add_argument("--no-bars", action="store_true", help=no_bars)
    dry = "try all that goes without CUDA: install, ask the device, collect, name bars"
    parser.add_argument("--dry-run", action="store_true", help=dry)
    nodes = "compare stock DDP and tuned DDP on 1 to N hosts, and run nothing else"
    parser.add_argument("--nodes", type=int, metavar="N", help=nodes)
    meet = "where the hosts of --nodes meet: the address of one of them, and a port"
    parser.add_argument("--meet", default="localhost:29400", help=meet)
    cpu = "go on without a GPU: the tests marked `gpu` are skipped, benchmarks run"
    parser.add_argument("--allow-cpu", action="store_true", help=cpu)
    return parser


def choose_rows(arguments: argparse.Namespace, root: Path) -> list[Row]:
    """Returns the rows that a command line asks for.

    Raises:
        SetupError: It names a row or a package that is not there.
    """
    # What takes hours on a CPU is no row of a GPU: a trial goes through those alone.
    given = ["first"] if arguments.minutes else []
    names = (
        arguments.rows or given or (["first", "second"] if arguments.dry_run else [])
    )
    folders = {p.name: p.folder for p in find_packages(root, arguments.only)}
    try:
        rows = choose(names, folders) if names else whole(folders)
    except ValueError as error:
        raise SetupError(str(error)) from None
    kinds = {"tests"} if arguments.no_bars else {"tests", "bars"}
    return [row for row in rows if row.kind in kinds]


class Runner:
    """Runs rows one by one, or side by side, and hands on what came of each.

    Args:
        processes: What runs them.
        environment: The variables of the rows.
        scratch: A folder for what they leave behind.
        logs: A folder for what they print.
        deadline: When all must have ended, by the monotonic clock; None for never.
        quick: Whether benchmarks take their quick form.
        device_type: Of the device that is here; None without one.
    """

    def __init__(
        self,
        processes: Processes,
        environment: dict[str, str],
        scratch: Path,
        logs: Path,
        deadline: float | None,
        *,
        quick: bool,
        device_type: str | None,
    ) -> None:
        self._processes, self._environment = processes, environment
        self._scratch, self._logs = scratch, logs
        self._deadline, self._quick = deadline, quick
        self._device_type = device_type

    def run(self, row: Row) -> dict[str, Any]:
        """Runs one row, and returns what the report says of it."""
        limit = row.limit_s
        head = {"name": row.name, "estimate_s": row.estimate_s}
        if self._deadline is not None:
            left = self._deadline - time.monotonic()
            if left < _WORTH * (row.estimate_s or 0):
                figure = f"not begun, {max(left, 0):.0f} s before the end"
                return {**head, "status": "left out", "figure": figure}
            limit = left if limit is None else min(limit, left)
        junit, output = (self._scratch / f"{row.name}.{x}" for x in ("xml", "out"))
        log = self._logs / f"{row.name}.log"
        ended = self._processes.run(
            command_of(row, ROOT, junit, quick=self._quick),
            limit_s=limit,
            environment=self._environment,
            folder=ROOT,
            output=output if row.kind == "bars" else log,
            log=log,
        )
        if row.kind == "bars":
            printed = output.read_text() if output.exists() else ""
            found = read_bars(printed, ended.code)
        elif junit.exists():
            found = read_junit(junit.read_text())
            if found["status"] != "miss" and ended.code:
                found |= {
                    "status": "miss",
                    "figure": f"pytest exited with {ended.code}",
                }
        else:
            figure = f"pytest exited with {ended.code} and left no counts"
            found = {"status": "miss", "figure": figure}
        found = explain(found, self._device_type)
        if ended.stopped:
            figure = f"stopped after {ended.seconds:.0f} s; {found['figure']}"
            found |= {"status": "stopped", "figure": figure}
        if found["status"] not in {"pass", "skip"} and log.exists():
            found["log"] = log.read_text(errors="replace")[-_LOG:]
        return {**head, "seconds": ended.seconds, **found}

    def run_all(
        self, rows: Sequence[Row], then: Callable[[dict[str, Any]], None]
    ) -> None:
        """Runs rows of tests side by side, then all others one by one."""
        tests = [row for row in rows if row.kind == "tests"]
        beside = max(1, len(os.sched_getaffinity(0)) // 3)
        with ThreadPoolExecutor(beside) as pool:
            for _ in pool.map(lambda row: then(self.run(row)), tests):
                pass
        for row in rows:
            if row.kind != "tests":
                then(self.run(row))


def run(arguments: argparse.Namespace) -> int:
    """Does what the command line asks for, and returns the exit status."""
    started = time.monotonic()
    rows = choose_rows(arguments, ROOT)
    packages = find_packages(ROOT)
    if lacking := missing_tools(packages):
        message = f"this machine lacks {', '.join(lacking)}"
        raise SetupError(message)
    wheels = wheels_of(packages, arguments.dist)
    others = resolve(requirements(packages, ROOT), arguments.dist)
    found = (find_wheel(arguments.dist, name) for name in PEERS)
    others += [wheel for wheel in found if wheel is not None]
    if arguments.dry_run:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    facts = measure_facts(packages, wheels, arguments.dist, dry_run=arguments.dry_run)
    told = facts["facts"]
    if not told["hardware"]["gpus"] and not (arguments.allow_cpu or arguments.dry_run):
        version = told["versions"]["torch"]
        print(f"no GPU: torch {version} sees none, so there is nothing to run here")
        return NO_GPU
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    head = {"date": now, "commit": commit(ROOT, arguments.dist)}
    head |= {key: told[key] for key in ("hardware", "versions")}
    report = Report(arguments.out, head, ["install", *(row.name for row in rows)])
    try:
        kept = report.resume() if arguments.resume else set()
    except ValueError as error:
        raise SetupError(str(error)) from None
    todo = [row for row in rows if row.name not in kept]

    def put(row: dict[str, Any]) -> None:
        report.put(row)
        print(line(row), flush=True)

    put(facts)
    deadline = started + 60 * arguments.minutes if arguments.minutes else None
    processes = Processes()
    signal.signal(signal.SIGTERM, lambda *_: _end(processes))
    # Rows are interrupted when they are over their limit, whatever we inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="drivetrain-") as folder:
        scratch = Path(folder)
        begun = time.monotonic()
        paths, problems = install(packages, wheels, others, scratch / "site")
        seconds = round(time.monotonic() - begun, 1)
        put(_install_row(problems, [p.name for p in packages], seconds))
        if arguments.nodes:
            num_devices = len(told["hardware"]["gpus"]) or 2
            environment = _environment(paths, scratch)
            command = command_of_nodes(arguments.nodes, num_devices, arguments.meet)
            return subprocess.run(command, check=False, env=environment).returncode
        logs = arguments.logs or scratch / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        runner = Runner(
            processes,
            _environment(paths, scratch),
            scratch,
            logs,
            deadline,
            quick=arguments.quick,
            device_type=(told["hardware"].get("accelerator") or {}).get("type"),
        )
        for row in [row for row in todo if row.package in problems]:
            figure = f"not run: {row.package} is not whole here"
            put({"name": row.name, "status": "left out", "figure": figure})
        try:
            runner.run_all([row for row in todo if row.package not in problems], put)
        finally:
            processes.close()
    print(f"\n{table(report.rows)}\n{time.monotonic() - started:.0f} s in all")
    return 0 if report.ok else 1


def command_of_nodes(num_nodes: int, num_devices: int, meet: str) -> list[str]:
    """Returns what starts the ranks of this host.

    Args:
        num_nodes: How many hosts there are.
        num_devices: Ranks of each.
        meet: Where they meet.
    """
    launcher = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d"]
    numbers = ["--nnodes", str(num_nodes), "--nproc-per-node", str(num_devices)]
    program = str(Path(__file__).with_name("nodes.py"))
    return [*launcher, *numbers, "--rdzv-endpoint", meet, program]


def _install_row(
    problems: dict[str, str], names: Sequence[str], seconds: float
) -> dict[str, Any]:
    row = {"name": "install", "seconds": seconds, "status": "pass"}
    if not problems:
        return {**row, "figure": f"{len(names)} packages, every native part is there"}
    told = [f"{name} {text.splitlines()[0]}" for name, text in problems.items()]
    return {**row, "status": "miss", "figure": "; ".join(told), "problems": problems}


def _environment(paths: Sequence[Path], scratch: Path) -> dict[str, str]:
    """Returns the variables of rows, which find the packages and share what compiles."""
    cache = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
    return {
        **_python_path(paths),
        "PYTHONUNBUFFERED": "1",
        **{name: str(scratch / part) for name, part in cache.items()},
    }


def _python_path(paths: Sequence[Path]) -> dict[str, str]:
    """Returns the variables of this process, with folders where Python looks first."""
    found = [*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(found)}


def _end(processes: Processes) -> None:
    if processes.close():
        sys.exit(128 + signal.SIGTERM)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command, with a clear line and the status 2 when it cannot start."""
    try:
        return run(make_parser().parse_args(argv))
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
