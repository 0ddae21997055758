"""The page of what optimizers do in the rows of torch's own tests of optimizers.

`python integration/tests/torch_behaviour_page.py --write` runs each row with each
optimizer in each way, and makes docs/benchmarks/optim_torch_behaviour_202611.md.
Without `--write` it prints the page.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/benchmarks/optim_torch_behaviour_202611.md"
sys.path.insert(0, str(ROOT / "packages/optim/tests"))

from torch_behaviour import SUBJECTS, Row, Subject, all_rows, ways

INTRODUCTION = """# Optimizers in the rows of torch's tests, November 2026

Torch tests each of its optimizers with one list of behaviours: the tests that take an
`OptimizerInfo`, in `test/test_optim.py`, and those of CUDA graphs and of `torch.compile`
beside it. Here are these behaviours, written anew, for the optimizers of
`drivetrain-optim`: {rows} rows, of {tests} tests. A row is run by the loop, by foreach and
by the fused kernels, with each of the options of the optimizer. Rows of `torch.compile`
ask what Dynamo makes of a step, with the backend `eager`: no compiler runs.

`as torch`: what torch asks, in each way. `refused`: an error in words before a weight
changes, with the reason below, and the optimizers of torch that do not do it either.
`left out`: torch's test is not for an optimizer of this kind.
`gpu`, `two gpus`: needs one or two GPUs, and is a test with that marker; not run for this
page. Of the cells, {counted}.

Python {python}, torch {torch}, 2026-11-29, CPU. Proven on: cpu.

```console
python integration/tests/torch_behaviour_page.py --write
```

## Rows
"""


def cell(row: Row, subject: Subject) -> str:
    """Returns the verdict of a row for an optimizer, of all ways together.

    Raises:
        AssertionError: The ways differ.
    """
    if subject.name in row.left_out:
        return "left out: as torch does"
    if row.where:
        return {"gpu": "gpu", "multigpu": "two gpus"}[row.where]
    torch.manual_seed(0)
    tried = ways()[: 1 if row.once else None]
    verdicts = {row.verdict(subject, way).partition(": ") for way in tried}
    assert len({kind for kind, *_ in verdicts}) == 1, verdicts
    return ": ".join(p for p in (min(verdicts)[0], min(verdicts)[2]) if p)


def page(rows: dict[str, Row]) -> str:
    """Returns the table, and why each cell that is refused is."""
    reasons: dict[str, int] = {}
    count: dict[str, int] = {}
    lines = [
        f"| torch's test | what it asks | {' | '.join(SUBJECTS)} |",
        "|---" * (len(SUBJECTS) + 2) + "|",
    ]
    for row in rows.values():
        marks = []
        for subject in SUBJECTS.values():
            kind, _, why = cell(row, subject).partition(": ")
            count[kind] = count.get(kind, 0) + 1
            if kind in {"refused", "left out"}:
                why = re.sub(r"^(AGD|LAMB|WSAM): ", "", why)
                why = f"{' '.join(why.split())}. In torch: {row.as_in_torch}."
                kind = f"{kind} {reasons.setdefault(why, len(reasons) + 1)}"
            marks.append(kind)
        name, _, case = row.name.partition(": ")
        named = f"`{name}`{f': {case}' if case else ''}"
        lines.append(f"| {named} | {row.asks} | {' | '.join(marks)} |")
    text = INTRODUCTION.format(
        rows=len(rows),
        tests=len({name.partition(":")[0] for name in rows}),
        counted=", ".join(f"{number} {kind}" for kind, number in count.items()),
        python=".".join(map(str, sys.version_info[:2])),
        torch=torch.__version__,
    )
    numbered = [f"{number}. {why}" for why, number in reasons.items()]
    return "\n".join([text, *lines, "", "## Reasons", "", *numbered]) + "\n"


def main() -> int:
    """Runs the rows, and prints or writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page")
    options: Any = parser.parse_args()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = page(all_rows())
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
