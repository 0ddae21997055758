"""What a row's process leaves behind, read into what the report says of it."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree as ET

__all__ = ["read_bars", "read_facts", "read_junit"]

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
    return {"status": "pass", "figure": figure or "no GPU", "facts": facts}
