"""Bars: what a package claims, measured beside its bound; the form of `bars.py`."""

from __future__ import annotations

import argparse
import datetime as dt
import functools
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from importlib.metadata import distributions
from typing import TYPE_CHECKING, Any

from drivetrain_core.tables import aligned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What one bar measured.

    Args:
        figure: The measured value, in words and units, with its peer's.
        holds: Whether it is within the bound; None when it was not measured.
        proven_on: Where: one of `cpu`, `cpu-gloo`, `namespaces`, `interpreter`,
            `host-driver`, `simulation`, or the name of a GPU.
        needs_gpu: Whether it was not measured for want of a GPU.
        details: Further numbers, for the JSON.
    """

    figure: str
    holds: bool | None
    proven_on: str = "cpu"
    needs_gpu: bool = False
    details: dict[str, Any] | None = None

    @property
    def status(self) -> str:
        """`pass`, `miss`, `gpu` or `skip`."""
        if self.holds is None:
            return "gpu" if self.needs_gpu else "skip"
        return "pass" if self.holds else "miss"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One claim, and how it is measured.

    Args:
        name: Short, without spaces.
        bound: What the figure must keep to, in words.
        measure: Given whether a quick form is wanted, returns the row. A form that
            has nothing quick to show returns a row with `holds=None`.
    """

    name: str
    bound: str
    measure: Callable[[bool], Row]


def slow(measure: Callable[[bool], Row]) -> Callable[[bool], Row]:
    """Leaves a bar out of the quick form, which ends within a minute.

    Args:
        measure: As of `Bar`.

    Example:
        >>> slow(lambda quick: Row(figure="2", holds=True))(True).figure
        'takes longer than the quick form'
    """

    @functools.wraps(measure)
    def run(quick: bool) -> Row:
        if quick:
            return Row(figure="takes longer than the quick form", holds=None)
        return measure(quick)

    return run


# When the last bar of a quick run of all of them begins.
_QUICK_S = 40.0
_LATE = Row(figure="left out: the minute of a quick run is over", holds=None)


def run_bars(
    bars: Sequence[Bar], argv: Sequence[str] | None = None, description: str = ""
) -> int:
    """Measures bars, prints them as a table or JSON, and returns the exit code.

    Args:
        bars: The claims of a package.
        argv: The command line: `--json`, `--only NAME` (may be given again) and
            `--quick`, which leaves out what would begin late in its minute.
        description: What the command says of itself.

    Returns:
        1 if a bar that was measured misses its bound or fails, else 0.

    Example:
        >>> bar = Bar(name="sums", bound="= 2",
        ...     measure=lambda quick: Row(figure="2", holds=True))
        >>> run_bars([bar], [])
        bar   figure  bound  status  proven on
        sums  2       = 2    pass    cpu
        0
    """
    names = [bar.name for bar in bars]
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--only", action="append", choices=names, metavar="NAME", help="these bars only"
    )
    parser.add_argument("--quick", action="store_true", help="end within a minute")
    arguments = parser.parse_args(argv)
    chosen = [bar for bar in bars if not arguments.only or bar.name in arguments.only]
    measured: list[tuple[Bar, Row]] = []
    try:
        end = time.perf_counter() + _QUICK_S
        is_short = arguments.quick and not arguments.only
        for bar in chosen:
            late = is_short and time.perf_counter() >= end
            measured.append((bar, _LATE if late else _measured(bar, arguments.quick)))
    finally:
        # A run that is interrupted shows what it has.
        _show(measured, as_json=arguments.json)
    return 1 if any(row.holds is False for _, row in measured) else 0


def _show(measured: Sequence[tuple[Bar, Row]], *, as_json: bool) -> None:
    if as_json:
        entries = [
            {"name": bar.name, "bound": bar.bound, "status": row.status, **asdict(row)}
            for bar, row in measured
        ]
        report = {"rows": entries, **surroundings()}
        # Figures come out of numpy as well, whose numbers JSON does not take.
        _print(json.dumps(report, indent=2, default=lambda value: value.item()))
        return
    header = ("bar", "figure", "bound", "status", "proven on")
    cells = [
        (bar.name, row.figure, bar.bound, row.status, row.proven_on)
        for bar, row in measured
    ]
    _print("\n".join(aligned([header, *cells])))


def _measured(bar: Bar, quick: bool) -> Row:
    started = time.perf_counter()
    try:
        row = bar.measure(quick)
    except Exception as error:  # noqa: BLE001
        # One bar that fails must not hide the others.
        text = str(error).strip().splitlines()
        last = text[-1] if text else ""
        row = Row(figure=f"failed: {type(error).__name__}: {last}", holds=False)
        traceback.print_exc()
    seconds = time.perf_counter() - started
    sys.stderr.write(f"{bar.name}: {row.status} in {seconds:.0f} s: {row.figure}\n")
    return row


def surroundings() -> dict[str, Any]:
    """Returns hardware, versions, commit and date: what a number is worth without."""
    versions = {
        name: d.version
        for d in distributions()
        for name in d.metadata.get_all("Name") or ()
        if name.startswith(("drivetrain", "torch", "triton"))
    }
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
        "commit": _commit(),
    }


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
