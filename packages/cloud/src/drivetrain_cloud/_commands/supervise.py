"""The command `drivetrain-cloud supervise`: a job on nodes that may be taken away."""

from __future__ import annotations

import contextlib
import logging
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live

from drivetrain_cloud._commands.cost import naming_offer, prices_of, show_cost
from drivetrain_cloud._commands.supervise_table import supervise_table
from drivetrain_cloud.cost import read_trace
from drivetrain_cloud.spot.capacity import Market
from drivetrain_cloud.spot.config import AfterMaxWait, Recovery, SpotConfig
from drivetrain_cloud.spot.local_job import LocalSpotJob
from drivetrain_cloud.spot.local_pool import CapacityChange
from drivetrain_cloud.spot.worker_count import CountConfig, first_wants
from drivetrain_core import ProgramError
from drivetrain_core.commands import UsageError, as_wrong_use, reason_of
from drivetrain_elastic.extending import require_elastic

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from types import FrameType

_EXAMPLE = ("-m", "drivetrain_elastic.examples.byte_lm")
_POLL_S = 0.25
_CLOUDS = (("aws", 20.0), ("azure", 10.0))


def _read_trace(path: str) -> list[CapacityChange]:
    try:
        return [CapacityChange(*change) for change in read_trace(path).changes]
    except OSError as error:
        message = f"the trace {path} cannot be read: {reason_of(error)}"
        raise ProgramError(message) from error


def _default_trace(nodes: int) -> list[CapacityChange]:
    changes = [CapacityChange(0.0, nodes)]
    for at_s in range(30, 3600, 30):
        changes.append(CapacityChange(float(at_s), nodes - 1))
        changes.append(CapacityChange(at_s + 15.0, nodes))
    return changes


def _config(arguments: argparse.Namespace) -> SpotConfig:
    given = {one.name: getattr(arguments, one.name) for one in fields(SpotConfig)}
    given["recovery"] = Recovery(arguments.recovery)
    given["after_max_wait"] = AfterMaxWait(arguments.after_max_wait)
    return SpotConfig(**given)


def _count(arguments: argparse.Namespace, config: SpotConfig) -> CountConfig:
    count = CountConfig(
        least=config.min_nodes,
        most=config.most,
        unit=config.unit,
        min_marginal=arguments.min_marginal,
        max_cost_ratio=arguments.max_cost_ratio,
    )
    first_wants(config, count)  # Refuses what does not fit.
    return count


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns its exit status."""
    if arguments.folder is not None:
        Path(arguments.folder).mkdir(parents=True, exist_ok=True)
        return _run_in(arguments, arguments.folder)
    name = Path(arguments.script or "byte_lm").stem
    root = Path(tempfile.mkdtemp(prefix="drivetrain-spot-"))
    folder = root / name
    folder.mkdir()
    is_kept = True
    try:
        code = _run_in(arguments, str(folder))
        is_kept = code != 0
    finally:
        # Why nodes have failed stands nowhere else, where they have begun.
        if is_kept and any(folder.glob("*.txt")):
            sys.stderr.write(f"the output of each node is in {folder}\n")
        else:
            shutil.rmtree(root, ignore_errors=True)
    return code


def _program(arguments: argparse.Namespace, folder: str) -> list[str]:
    if arguments.script is None:
        checkpoints = str(Path(folder, "checkpoints"))
        steps = ["--steps", "600", "--pause-s", "0.2"]
        return [*_EXAMPLE, *steps, "--checkpoints", checkpoints]
    require_elastic(arguments.script, is_module=arguments.module)
    module = ["-m"] if arguments.module else []
    return [*module, arguments.script, *arguments.arguments]


def _run_in(arguments: argparse.Namespace, folder: str) -> int:
    if arguments.tolerate and arguments.recovery != Recovery.WAIT_FULL.value:
        message = (
            f"--tolerate {arguments.tolerate} is of --recovery wait-full; with resize, "
            "--min-nodes says how many may be missing"
        )
        raise UsageError(message)
    program = _program(arguments, folder)
    with as_wrong_use(arguments):
        config = _config(arguments)
        count = _count(arguments, config) if arguments.fit_nodes else None
    prices = prices_of(arguments.prices)
    # Before anything is paid for: whether what it costs can be said.
    with naming_offer():
        for market in Market:
            prices.at(arguments.offer, market, time.time())
    trace = _default_trace(config.nodes)
    if arguments.trace is not None:
        trace = _read_trace(arguments.trace)
    with (
        _signals_end(),
        LocalSpotJob(
            program,
            config,
            trace,
            folder=folder,
            num_workers=arguments.nproc_per_node,
            clouds=arguments.cloud or _CLOUDS,
            boot_s=arguments.boot_s,
            seed=arguments.seed,
            count=count,
            offer=arguments.offer,
        ) as job,
    ):
        is_plain = arguments.plain or not sys.stdout.isatty()
        code = _show_plain(job) if is_plain else _show_live(job)
        print(_summary(job))
        show_cost(job.record(), prices)
        if code and job.supervisor.view.ended:
            sys.stderr.write(f"drivetrain-cloud: {job.supervisor.view.ended}\n")
        return code


@contextlib.contextmanager
def _signals_end() -> Iterator[None]:
    """Lets SIGTERM and SIGHUP end the job as Ctrl-C does: nodes live in their own sessions."""

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        raise SystemExit(128 + number)

    before = {
        number: signal.signal(number, end)
        for number in (signal.SIGTERM, signal.SIGHUP)
        # As with nohup.
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show_plain(job: LocalSpotJob) -> int:
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S"
    )
    return job.run(poll_s=_POLL_S)


def _show_live(job: LocalSpotJob) -> int:
    began_s = time.monotonic()
    console = Console()
    with Live(console=console, auto_refresh=False) as live:
        code = job.run(
            poll_s=_POLL_S,
            looked=lambda supervisor: live.update(
                supervise_table(supervisor, began_s, time.monotonic()), refresh=True
            ),
        )
    console.print()
    return code


def _summary(job: LocalSpotJob) -> str:
    """Returns what has become of the job, in words."""
    taken = [one for one in job.pool.events if one.what == "noticed"]
    came = [one for one in job.pool.events if one.what == "came"]
    saves = len(job.supervisor.saves)
    counts = f"{len(came)} nodes came, {len(taken)} were taken away"
    lines = [f"{counts}, {saves} checkpoints were saved in time"]
    for path in sorted(job.folder.glob("*.txt")):
        text = path.read_text(errors="replace")
        lines += [line for line in text.splitlines() if "held-out" in line]
    return "\n".join(lines)
