"""What a row's process leaves behind, read into what the report says of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree as ET

__all__ = ["explain", "read_bars", "read_facts", "read_junit"]

_TEXT = 3000


def read_junit(text: str) -> dict[str, Any]:
    """Returns the status, the counts and the failures of a JUnit report."""
    counts: dict[str, Any] = {"passed": 0, "failed": 0, "skipped": 0, "failures": []}
    slowest: list[tuple[float, str]] = []
    reasons: dict[str, None] = {}
    for case in ET.fromstring(text).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        slowest.append((float(case.get("time", 0)), name))
        broken = case.find("failure")
        broken = case.find("error") if broken is None else broken
        skipped = case.find("skipped")
        if skipped is not None:
            counts["skipped"] += 1
            reasons[skipped.get("message", "")] = None
        elif broken is not None:
            counts["failed"] += 1
            text = (broken.text or "")[-_TEXT:]
            told = {"test": name, "message": broken.get("message", ""), "text": text}
            counts["failures"].append(told)
        else:
            counts["passed"] += 1
    kinds = [kind for kind in ("passed", "failed", "skipped") if counts[kind]]
    figure = ", ".join(f"{counts[kind]} {kind}" for kind in kinds) or "no test"
    # A row that chooses no test is wrong, and would hide it as one that was skipped.
    wrong = counts["failed"] or not kinds
    status = "miss" if wrong else "pass" if counts["passed"] else "skip"
    if kinds == ["skipped"]:
        figure += f": {'; '.join(filter(None, reasons))}"
    counts["slowest"] = [f"{s:.1f} s {n}" for s, n in sorted(slowest)[:-4:-1]]
    return {"status": status, "figure": figure, "tests": counts}


def read_bars(output: str, code: int) -> dict[str, Any]:
    """Returns the rows that a `bars.py` printed, and a missed one if it went wrong."""
    problem = f"exited with {code}, and no row says why" if code else ""
    try:
        bars = [dict(row) for row in json.loads(output)["rows"]]
    except (ValueError, KeyError, TypeError) as error:
        bars, problem = [], f"exited with {code} and printed no rows: {error}"
    missed = [bar for bar in bars if bar.get("status") == "miss"]
    if problem and not missed:
        row = {"name": "bars.py", "figure": problem, "bound": "", "status": "miss"}
        bars, missed = [*bars, row], [row]
    held = sum(bar.get("status") == "pass" for bar in bars)
    status = "miss" if missed else "pass" if held else "skip"
    figure = f"{held} of {len(bars)} hold"
    return {"status": status, "figure": figure, "bars": bars}


def read_facts(output: str, code: int) -> dict[str, Any]:
    """Returns what the program of facts printed."""
    try:
        facts = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError) as error:
        return {"status": "miss", "figure": f"exited with {code}: {error}"}
    ceilings = facts.get("ceilings", {})
    figure = ", ".join(f"{name} {value:.3g}" for name, value in ceilings.items())
    figure = figure or _device(facts) or "no GPU"
    return {"status": "pass", "figure": figure, "facts": facts}


def _device(facts: Mapping[str, Any]) -> str:
    """What the device is, and what is not known of it; nothing without a device."""
    first = facts.get("hardware", {}).get("accelerator")
    if not first:
        return ""
    figure = f"{first['count']} x {first['name']}, {first['memory_bytes'] / 1e9:.3g} GB"
    left_out = facts.get("left_out")
    return figure + (f"; left out: {', '.join(left_out)}" if left_out else "")


def explain(row: Mapping[str, Any], device_type: str | None) -> dict[str, Any]:
    """Returns a row that says why it went no further, where it asks for another device.

    Args:
        row: What `read_bars` or `read_junit` found.
        device_type: Of the device that is here; None without one.
    """
    wanting = [bar for bar in row.get("bars", []) if bar.get("status") == "gpu"]
    figure = row["figure"]
    if wanting:
        figure += f", no GPU for {len(wanting)}"
    skipped = wanting or row.get("tests", {}).get("skipped")
    # Tests marked `gpu` and bars that need one ask for CUDA itself.
    if skipped and device_type not in {None, "cuda"}:
        figure += f"; they ask for CUDA, and the device here is {device_type}"
    return {**row, "figure": figure}
