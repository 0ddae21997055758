"""Records what each file of tests takes, from what the last run of all tests has kept.

nox -s tests
python integration/selection/seconds.py .nox/tests/report.xml
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET

from choose import SECONDS

__all__ = ["seconds_of"]


def seconds_of(report: str) -> dict[str, float]:
    """Returns the seconds that the tests of each file took, from a report of pytest."""
    found: defaultdict[str, float] = defaultdict(float)
    for case in ET.fromstring(report).iter("testcase"):
        found[case.get("file", "")] += float(case.get("time", 0.0))
    return {file: round(found[file], 1) for file in sorted(found) if file}


if __name__ == "__main__":
    text = Path(sys.argv[1]).read_text("utf-8")
    SECONDS.write_text(json.dumps(seconds_of(text), indent=0) + "\n", encoding="utf-8")
