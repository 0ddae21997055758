"""The report of a search as one HTML page that needs nothing else.

Names of plug-ins, messages and logs are foreign text: all of it is escaped, and the
page's own policy lets a browser run no script but the one below, and load nothing.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_core.drawing.page_style import SCRIPT, STYLE
from drivetrain_core.drawing.svg import clean
from drivetrain_core.extending import describe
from drivetrain_core.services import write_whole
from drivetrain_search.report.plots import (
    plot_final,
    plot_memory,
    plot_progress,
    plot_speeds,
)
from drivetrain_search.report.record import count_text, speed_text

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from drivetrain_search.report.data import ReportData
    from drivetrain_search.report.record import TrialRecord

_MIB = 1 << 20


_DOCTYPE = "<!DOCTYPE html>"


def write_page(report: ReportData, path: str | os.PathLike[str]) -> Path:
    """Writes the page of a report, whole or not at all, and returns its path.

    Raises:
        OSError: The place cannot be written to.
    """
    return write_whole(path, render_page(report))


def require_writable_page(path: str | os.PathLike[str]) -> Path:
    """Raises before a search what `write_page` would raise after it.

    Raises:
        OSError: The place cannot be written to.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=target.parent):
        pass
    if target.is_dir():
        message = f"the report cannot be written to {target}: it is a directory"
        raise IsADirectoryError(message)
    if target.exists() and not _may_be_page(target):
        message = f"the report cannot be written to {target}: it is there, and no page"
        raise FileExistsError(message)
    return target


def _may_be_page(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(len(_DOCTYPE))
    return not start or start.lower() == _DOCTYPE.lower().encode()


def render_page(report: ReportData) -> str:
    """Returns the page of a report as HTML."""
    title = f"{count_text(report.trials)} in {report.seconds:.0f} s"
    parts = [
        f"<h1>Search of a plan: {clean(describe(report.chosen))}</h1>",
        f'<p class="lead">{clean(_summary(report))}</p>',
        _section("Speed", _SPEEDS, plot_speeds(report)),
        _section("Memory against speed", _SHAPES, plot_memory(report)),
        _section("The search over time", _PROGRESS, plot_progress(report)),
        _section(
            "The final",
            _FINAL if report.comparison else "",
            plot_final(report.comparison),
        ),
        _section("Trials", "", _trials(report)),
        _section("The plan", "", _plan(report)),
        _section("Rejected", "", _rejected(report)),
        _section("Numerical differences from the baseline", "", _guard(report)),
    ]
    if report.forecasts:
        parts.append(_section("Forecasts", "", _forecasts(report)))
    parts.append(_section("Surroundings", "", _surroundings(report)))
    parts.append(_logs(report.trials))
    body = "\n".join(parts)
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )
    return (
        f'{_DOCTYPE}\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>Drivetrain: {title}</title><style>{STYLE}</style></head>\n"
        f"<body><main>\n{body}\n</main><script>{SCRIPT}</script>"
        "</body></html>\n"
    )


_SPEEDS = "The thin line on a bar spans four fifths of the trial's steps."
_SHAPES = (
    "A diamond is the chosen plan, a cross one that cannot be used, a hollow circle one "
    "that an earlier search measured."
)
_PROGRESS = f"Each trial stands where it ended; the line is the best so far. {_SHAPES}"
_FINAL = "Baseline and plan ran in turns. The shorter its steps, the faster a plan."


def _summary(report: ReportData) -> str:
    text = f"{count_text(report.trials)} in {report.seconds:.0f} s; {report.stopped}."
    final = report.comparison
    if final is not None:
        text = (
            f"{final.speedup:.2f} times as fast as the baseline in the final (95% "
            f"interval {final.low:.2f} to {final.high:.2f}). {text}"
        )
    return text


def _section(title: str, note: str, body: str) -> str:
    about = f'<p class="note">{clean(note)}</p>' if note else ""
    return f"<section><h2>{clean(title)}</h2>{about}{body}</section>"


def _trials(report: ReportData) -> str:
    columns = ("trial", "plan", "speed", "vs baseline", "peak MiB", "seconds", "result")
    rows = []
    for trial in report.trials:
        cells: list[object] = [trial.name, describe(trial.choices)]
        if trial.measurement is None:
            cells += ["", "", ""]
        else:
            size = trial.measurement.peak_memory_bytes / _MIB
            ratio = f"{report.speedup(trial):.2f}x"
            cells += [speed_text(trial.measurement), ratio, f"{size:,.0f}"]
        cells += ["cached" if trial.cached else f"{trial.seconds:.1f}"]
        mark = "chosen" if trial.choices == report.chosen else ""
        cells += [f"{trial.code}: {trial.because}" if trial.code else mark]
        rows.append(cells)
    return _table(columns, rows, numbers=range(2, 6))


def _plan(report: ReportData) -> str:
    if report.plan is None or not report.plan.why:
        return _nothing("No reasons were recorded.")
    rows = [(reason.slot, reason.chose, reason.because) for reason in report.plan.why]
    return _table(("slot", "chose", "because"), rows)


def _rejected(report: ReportData) -> str:
    rows: list[Sequence[object]]
    if report.plan is not None:
        rows = [(r.plan, r.code, r.because, r.fix) for r in report.plan.rejected]
    else:
        failed = [trial for trial in report.trials if trial.code]
        rows = [(describe(t.choices), t.code, t.because, "") for t in failed]
    if not rows:
        return _nothing("Nothing was.")
    return _table(("plan", "code", "because", "fix"), rows)


def _guard(report: ReportData) -> str:
    checked = [trial for trial in report.trials if trial.guard]
    if not checked:
        return _nothing("No trial was compared.")
    keys = list(dict.fromkeys(key for t in checked for key in t.guard or {}))
    rows = [
        [t.name, describe(t.choices), *((t.guard or {}).get(key, "") for key in keys)]
        for t in checked
    ]
    return _table(("trial", "plan", *(_words(key) for key in keys)), rows)


def _forecasts(report: ReportData) -> str:
    rows: list[Sequence[object]] = []
    for trial in report.trials:
        if trial.name not in report.forecasts:
            continue
        forecast, run = report.forecasts[trial.name], trial.measurement
        measured: dict[str, float] = {}
        if run is not None:
            measured["step_time_s"] = run.quiet_step_time_s
            measured["peak_bytes"] = run.peak_memory_bytes
        for key in (each.name for each in dataclasses.fields(forecast)):
            expected, came = getattr(forecast, key), measured.get(key)
            ratio = f"{came / expected:.2f}" if expected and came is not None else ""
            cells = (trial.name, describe(trial.choices), _words(key))
            rows.append((*cells, _amount(expected), _amount(came), ratio))
    columns = ("trial", "plan", "of", "forecast", "measured", "measured / forecast")
    return _table(columns, rows, numbers=range(3, 6))


def _surroundings(report: ReportData) -> str:
    rows: list[Sequence[object]] = []
    if report.plan is not None:
        parts = (report.plan.made, report.plan.fingerprint, report.plan.measured)
        rows += [(_words(key), value) for part in parts for key, value in part.items()]
    cached = sum(trial.cached for trial in report.trials)
    known = {row[0] for row in rows}
    own = {
        "seconds": f"{report.seconds:.1f}",
        "trials": len(report.trials),
        "from the cache": cached,
        "ended": report.stopped,
    }
    rows += [(key, value) for key, value in own.items() if key not in known]
    return _table(("what", "value"), rows)


def _logs(trials: Iterable[TrialRecord]) -> str:
    logs = [
        f"<details><summary>{clean(t.name)} {clean(describe(t.choices))}: "
        f"{clean(t.code)}</summary><pre>{clean(t.log)}</pre></details>"
        for t in trials
        if t.log
    ]
    return _section("Logs of what failed", "", "".join(logs)) if logs else ""


def _table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Iterable[int] = (),
) -> str:
    right = [
        ' class="number"' if n in set(numbers) else "" for n in range(len(columns))
    ]
    head = "".join(
        f'<th scope="col"{kind}>{clean(column)}</th>'
        for column, kind in zip(columns, right, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{kind}>{clean(cell)}</td>"
            for cell, kind in zip(row, right, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _nothing(sentence: str) -> str:
    return f'<p class="nothing">{sentence}</p>'


def _words(key: object) -> str:
    return str(key).replace("_", " ")


def _amount(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,.4g}" if isinstance(value, float) else f"{value}"
