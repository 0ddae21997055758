"""The commands `drivetrain-health faults`."""

from __future__ import annotations

import argparse
import json
import signal
import threading
import time
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from drivetrain_core.commands import add_commands
from drivetrain_health.faults._chaos import KINDS, Chaos
from drivetrain_health.faults._chaos_plan import ChaosSpec
from drivetrain_health.faults._kill import kill
from drivetrain_health.faults._slow import slow
from drivetrain_health.faults._stop import stop
from drivetrain_health.faults._target import Held, children_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from drivetrain_health.faults._chaos import Happening

_PATIENCE_S = 0.2


def populate_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the commands to a parser.

    Each sets `run`, a function from the parsed arguments to the exit status.

    Args:
        parser: The parser, empty or a sub-parser of another command.
    """
    add_commands(
        parser, files(__package__) / "commands.toml", signal=_signal, kinds=_kinds
    )


def _signal(text: str) -> signal.Signals:
    """Returns a signal by its name, with SIG or without."""
    name = f"SIG{text.upper().removeprefix('SIG')}"
    if name not in signal.Signals.__members__:
        message = f"there is no signal {text}"
        raise argparse.ArgumentTypeError(message)
    return signal.Signals[name]


def _kinds(text: str) -> list[str]:
    """Returns kinds of faults, which have commas between them."""
    kinds = text.split(",")
    if not set(kinds) <= set(KINDS):
        message = f"takes {', '.join(KINDS)}, with commas between them, got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return kinds


def run_kill(arguments: argparse.Namespace) -> int:
    """Carries out the command `kill`, and returns the exit status."""
    number: signal.Signals = arguments.signal
    for pid in arguments.pids:
        kill(pid, number, tree=arguments.tree)
        print(f"process {pid}: {number.name}")
    return 0


def run_stop(arguments: argparse.Namespace) -> int:
    """Carries out the command `stop`, and returns the exit status."""
    return _last(arguments, lambda pid: stop(pid, tree=arguments.tree), "stopped")


def run_slow(arguments: argparse.Namespace) -> int:
    """Carries out the command `slow`, and returns the exit status."""
    share = arguments.share
    return _last(
        arguments,
        lambda pid: slow(pid, share, tree=arguments.tree),
        f"slowed to {share:g} of a core",
    )


def _last(
    arguments: argparse.Namespace,
    fault: Callable[[int], AbstractContextManager[None]],
    what: str,
) -> int:
    """Makes a fault of every process until its time is over or a signal comes."""
    with _signals() as ending, ExitStack() as stack:
        for pid in arguments.pids:
            stack.enter_context(fault(pid))
            print(f"process {pid} is {what}", flush=True)
        ending.wait(arguments.for_s)
    print("healed")
    return 0


def run_chaos(arguments: argparse.Namespace) -> int:
    """Carries out the command `chaos`, and returns the exit status."""
    with _signals() as ending, Held(arguments.pid) as parent:
        spec = ChaosSpec(
            seed=arguments.seed,
            num_targets=max(1, len(children_of(parent.pid))),
            every_s=arguments.every_s,
            kinds=dict.fromkeys(arguments.kinds, 1.0),
        )
        for_s = float("inf") if arguments.for_s is None else arguments.for_s
        end_s = time.monotonic() + for_s
        shown = 0
        with Chaos(lambda: children_of(parent.pid), spec) as chaos:
            while not (
                ending.wait(_PATIENCE_S)
                or time.monotonic() > end_s
                or chaos.wait(0)
                or parent.wait(0)
            ):
                shown = _show(chaos.log, shown, arguments)
    _show(chaos.log, shown, arguments)
    return 0


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """Yields an event that the signals which end a program set, so that it heals."""
    ending = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: ending.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(log: Sequence[Happening], shown: int, arguments: argparse.Namespace) -> int:
    """Prints what has happened since the last time; returns how much that is in all."""
    for one in log[shown:]:
        if arguments.json:
            fields: dict[str, Any] = {**one._asdict(), "strike": one.strike._asdict()}
            print(json.dumps(fields), flush=True)
            continue
        because = f": {one.reason}" if one.reason else ""
        length = f" for {one.strike.lasts_s:.1f} s" if one.what == "begun" else ""
        whom = one.target or f"a child of {arguments.pid}"
        print(
            f"{one.at_s:8.1f} s {one.what} {one.strike.kind} of {whom}{length}{because}",
            flush=True,
        )
    return len(log)
