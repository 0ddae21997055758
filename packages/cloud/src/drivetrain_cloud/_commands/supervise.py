"""The command `drivetrain-cloud supervise`: a job on nodes that may be taken away."""

from __future__ import annotations

import argparse
import contextlib
import math
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_cloud._commands.cost import naming_offer, prices_of, show_cost
from drivetrain_cloud.spot.capacity import Market
from drivetrain_cloud.spot.config import AfterMaxWait, Recovery, SpotConfig
from drivetrain_core import ProgramError
from drivetrain_core.commands import (
    UsageError,
    as_wrong_use,
    integer,
    number,
    reason_of,
)
from drivetrain_elastic.extending import require_elastic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from drivetrain_cloud.spot.local_job import LocalSpotJob
    from drivetrain_cloud.spot.local_pool import CapacityChange
    from drivetrain_cloud.spot.worker_count import CountConfig

__all__ = ["populate_supervise_parser"]

_EXAMPLE = ("-m", "drivetrain_elastic.examples.byte_lm")
_POLL_S = 0.25
_CLOUDS = (("aws", 20.0), ("azure", 10.0))
_OFFER = "example/zone-a/gpu-8"


def populate_supervise_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to its parser.

    Args:
        parser: Of the command.
    """
    parser.description = (
        "Trains on nodes that are processes of this machine, and are taken away and given "
        "back as a trace says. Each hears of it from a metadata endpoint of its own, as on "
        "a cloud. Without a script, a byte-level language model is trained."
    )
    _add_wants(parser)
    _add_pool(parser)
    _add_worth(parser)
    parser.add_argument(
        "--folder",
        metavar="DIR",
        help="for the journal, checkpoints of the example, the output of each node and the "
        "record of who was there (usage.json); by default one that is deleted at the end, "
        "if the job ends well",
    )
    parser.add_argument(
        "--plain",
        action="store_true",
        help="a line for each decision, and no table, as always where the output is no "
        "terminal",
    )
    parser.add_argument(
        "-m", "--module", action="store_true", help="the script is a module's name"
    )
    parser.add_argument(
        "script", nargs="?", metavar="SCRIPT", help="the training script"
    )
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="of the script"
    )
    parser.set_defaults(run=_supervise)


def _add_wants(parser: argparse.ArgumentParser) -> None:
    """Adds what the job wants."""
    wants = parser.add_argument_group("what the job wants")
    for name, default, least, says in (
        ("nodes", 4, 1, "nodes that are asked for"),
        ("min-nodes", 1, 1, "fewer do not train"),
        (
            "max-nodes",
            None,
            1,
            "idle nodes are taken up to so many; by default --nodes",
        ),
        ("unit", 1, 1, "training runs on a multiple of so many nodes"),
        ("tolerate", 0, 0, "nodes that may be missing, with --recovery wait-full"),
    ):
        wants.add_argument(
            f"--{name}",
            type=integer(least),
            default=default,
            metavar="N",
            help=says if default is None else f"{says} (%(default)s)",
        )
    wants.add_argument(
        "--recovery",
        choices=[one.value for one in Recovery],
        default=Recovery.RESIZE.value,
        help="go on with the nodes that are left, or wait for all (%(default)s)",
    )
    wants.add_argument(
        "--after-max-wait",
        choices=[one.value for one in AfterMaxWait],
        default=AfterMaxWait.FAIL.value,
        help="what happens when nodes do not come for --max-wait-s (%(default)s)",
    )
    for name, seconds, says in (
        ("max-wait-s", 600.0, "how long the job may not train for want of nodes"),
        ("resume-after-s", math.inf, "when a suspended job asks for nodes again"),
        ("settle-s", 2.0, "how long a node that came is watched before it trains"),
        ("grow-after-s", 5.0, "the least time between changes that only add nodes"),
        ("return-after-s", 60.0, "after what time spot nodes replace those on demand"),
        ("margin-s", 2.0, "what is kept of each notice for the unforeseen"),
    ):
        wants.add_argument(
            f"--{name}",
            type=number(0, can_be_inf=True),
            default=seconds,
            metavar="SECONDS",
            help=f"{says} (%(default)g)",
        )


def _add_pool(parser: argparse.ArgumentParser) -> None:
    """Adds what nodes there are."""
    pool = parser.add_argument_group("what nodes there are")
    pool.add_argument(
        "--nproc-per-node",
        type=integer(1),
        default=1,
        metavar="N",
        help="workers on each node (%(default)s)",
    )
    pool.add_argument(
        "--trace",
        metavar="FILE",
        help="how many spot nodes there can be: a CSV with the columns seconds and available; "
        "by default one goes every 30 s, and is back 15 s later",
    )
    pool.add_argument(
        "--cloud",
        type=_cloud,
        action="append",
        metavar="NAME=SECONDS",
        help="as which cloud a node's endpoint answers (aws, gcp, azure, alibaba), and how "
        "long before it is taken away; may be given again, for the next nodes "
        "(aws=20 azure=10)",
    )
    pool.add_argument(
        "--boot-s",
        type=number(0),
        default=0.0,
        metavar="SECONDS",
        help="how long a node takes until its agent starts (%(default)g)",
    )
    pool.add_argument(
        "--seed",
        type=integer(),
        default=0,
        metavar="N",
        help="of which node is taken away (%(default)s)",
    )


def _add_worth(parser: argparse.ArgumentParser) -> None:
    """Adds what nodes cost and bring."""
    worth = parser.add_argument_group("what nodes cost and bring")
    worth.add_argument(
        "--fit-nodes",
        action="store_true",
        help="the number of nodes follows what they bring, from --min-nodes to --max-nodes",
    )
    worth.add_argument(
        "--min-marginal",
        type=number(0, 1),
        default=0.5,
        metavar="SHARE",
        help="of the speed of one of the first nodes that the last one brings at least "
        "(%(default)s)",
    )
    worth.add_argument(
        "--max-cost-ratio",
        type=number(1),
        default=1.5,
        metavar="X",
        help="how much more a sample costs at most than with the cheapest number of nodes "
        "(%(default)s)",
    )
    worth.add_argument(
        "--prices",
        action="append",
        metavar="FILE",
        help="as of `cost`; by default those of the example, which are nobody's",
    )
    worth.add_argument(
        "--offer",
        default=_OFFER,
        metavar="NAME",
        help="what the prices call a node (%(default)s)",
    )


def _read_trace(path: str) -> list[CapacityChange]:
    from drivetrain_cloud.cost import read_trace
    from drivetrain_cloud.spot.local_pool import CapacityChange

    try:
        return [CapacityChange(*change) for change in read_trace(path).changes]
    except OSError as error:
        message = f"the trace {path} cannot be read: {reason_of(error)}"
        raise ProgramError(message) from error


def _default_trace(nodes: int) -> list[CapacityChange]:
    from drivetrain_cloud.spot.local_pool import CapacityChange

    changes = [CapacityChange(0.0, nodes)]
    for at_s in range(30, 3600, 30):
        changes.append(CapacityChange(float(at_s), nodes - 1))
        changes.append(CapacityChange(at_s + 15.0, nodes))
    return changes


def _cloud(text: str) -> tuple[str, float]:
    """Returns a name and seconds.

    Example:
        >>> _cloud("aws=120")
        ('aws', 120.0)
    """
    from drivetrain_cloud.notices.find_cloud import CLOUDS

    name, equals, seconds = text.partition("=")
    if not equals or name not in CLOUDS:
        message = (
            f"takes one of {', '.join(CLOUDS)} and seconds, as in aws=120, got {text!r}"
        )
        raise argparse.ArgumentTypeError(message)
    return name, number(above=0)(seconds)


def _config(arguments: argparse.Namespace) -> SpotConfig:
    return SpotConfig(
        nodes=arguments.nodes,
        min_nodes=arguments.min_nodes,
        max_nodes=arguments.max_nodes,
        unit=arguments.unit,
        recovery=Recovery(arguments.recovery),
        tolerate=arguments.tolerate,
        max_wait_s=arguments.max_wait_s,
        after_max_wait=AfterMaxWait(arguments.after_max_wait),
        resume_after_s=arguments.resume_after_s,
        settle_s=arguments.settle_s,
        grow_after_s=arguments.grow_after_s,
        return_after_s=arguments.return_after_s,
        margin_s=arguments.margin_s,
    )


def _count(arguments: argparse.Namespace, config: SpotConfig) -> CountConfig:
    from drivetrain_cloud.spot.worker_count import CountConfig, first_wants

    count = CountConfig(
        least=config.min_nodes,
        most=config.most,
        unit=config.unit,
        min_marginal=arguments.min_marginal,
        max_cost_ratio=arguments.max_cost_ratio,
    )
    first_wants(config, count)  # Refuses what does not fit.
    return count


def _supervise(arguments: argparse.Namespace) -> int:
    if arguments.folder is not None:
        Path(arguments.folder).mkdir(parents=True, exist_ok=True)
        return _run(arguments, arguments.folder)
    name = Path(arguments.script or "byte_lm").stem
    root = Path(tempfile.mkdtemp(prefix="drivetrain-spot-"))
    folder = root / name
    folder.mkdir()
    is_kept = True
    try:
        code = _run(arguments, str(folder))
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


def _run(arguments: argparse.Namespace, folder: str) -> int:
    from drivetrain_cloud.spot.local_job import LocalSpotJob

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
        _say(_summary(job))
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
    import logging

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S"
    )
    return job.run(poll_s=_POLL_S)


def _show_live(job: LocalSpotJob) -> int:
    from rich.console import Console
    from rich.live import Live

    from drivetrain_cloud._commands.supervise_table import supervise_table

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


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
