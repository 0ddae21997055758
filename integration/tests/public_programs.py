"""Programs that others wrote, beside each plan that fits: the same, or refused.

`python integration/tests/public_programs.py --from FOLDER --write` makes
docs/benchmarks/public_programs_202611.md from checkouts of FOLDER/owner+name, which are
read and never changed. Each program has a process of its own, since their modules have
the same names.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import signal
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import public_pictures  # noqa: F401  they put themselves into PROGRAMS
import public_series  # noqa: F401
import public_text  # noqa: F401
import torch
from public_cases import FOLDER, PROGRAMS
from same_program import cells, on_two_ranks

PAGE = Path(__file__).parents[2] / "docs/benchmarks/public_programs_202611.md"

ALONE: dict[str, list[Any]] = {
    "as written": [],
    "activation_checkpoint": [("activation_checkpoint", "full")],
    "channels_last": ["channels_last"],
    "compile": [("compile", "whole")],
    "micro_batch": [("micro_batch", 2)],
    "foreach": [("optimizer_impl", "foreach")],
    "fused": [("optimizer_impl", "fused")],
    "bf16_autocast": [("precision", "bf16_autocast")],
    "bf16_params": [("precision", "bf16_params")],
}
"""Plans of one process, by the column that they have."""

TWO_RANKS: dict[str, list[Any]] = {
    "ddp": ["ddp"],
    "fsdp": ["fsdp"],
    "mesh tensor": [("mesh", {"tensor": 2})],
    "mesh pipeline": [("mesh", {"pipeline": 2}), ("micro_batch", 2)],
}
"""Plans of two ranks."""

LONGEST_S = 240

INTRODUCTION = """# Public programs beside plans, November 2026

{programs} models that others published, with the loss and the optimizer that their programs
have, beside each plan. The models are made small, the data are synthetic, and dropout is
off. Each cell trains by a plain loop, and by `accelerate` with one plan, for eight steps.
`same`: the same losses and weights, within what the plan declares to do to the numbers,
and each sample as often. `refused`: an error before the first step, with the reason
below. `differs`: neither, with what was seen. Empty: not run. Of the cells, {counted}.

Programs that draw numbers in their forward (vae, denoising-diffusion-pytorch, mae) draw
others on two ranks, in parts of a batch, and in copies: there the reason says only what
differs. byol-pytorch was not run on two ranks, where it makes a SyncBatchNorm by itself,
which needs a GPU.

Python 3.11, torch {torch}, 2026-11-29, CPU, Gloo for two ranks. Proven on: cpu,
cpu-gloo. The cells were run in parts (`--record`), at commits 8d7fd0ad to 10e23457.
Nothing of a program is kept here; each is read from a checkout of its
repository, at the revision at the end, whose hash stands in a file `REVISION` there:

```console
pip install einops einx loguru timm torch-einops-utils torchvision ema-pytorch
python integration/tests/public_programs.py --from FOLDER --write
```"""


def row(name: str, columns: list[str]) -> dict[str, str]:
    """Returns the verdicts of a program, by column."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"not done after {LONGEST_S} s")

    signal.signal(signal.SIGALRM, late)
    found = {}
    for column in columns:
        signal.alarm(LONGEST_S)
        if column in ALONE:
            found |= cells_of_programs([name], {column: ALONE[column]})
        signal.alarm(0)
    ranked = {c: TWO_RANKS[c] for c in columns if c in TWO_RANKS}
    if ranked:
        found |= on_two_ranks(name, ranked, cells_of_programs)
    return {column: verdict for (_, column), verdict in found.items()}


def cells_of_programs(
    names: list[str], columns: dict[str, list[Any]]
) -> dict[tuple[str, str], str]:
    """Returns the verdicts of this process, or of its rank, without what programs say."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cells(names, columns, PROGRAMS)


def page(found: dict[str, dict[str, str]], folder: Path) -> str:
    """Returns the table, why each cell that is refused is, and what was read."""
    columns = [*ALONE, *TWO_RANKS]
    reasons: dict[str, int] = {}
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    count: dict[str, int] = {"same": 0, "refused": 0, "differs": 0}
    for name in (name for name in PROGRAMS if name in found):
        marks = []
        for column in columns:
            verdict = found[name].get(column)
            if verdict is None:
                marks.append("")
                continue
            kind, _, why = verdict.partition(": ")
            kind = kind.replace("WRONG", "differs")
            count[kind] += 1
            if kind != "same":
                why = why if kind == "refused" else verdict.removeprefix("WRONG: ")
                kind = f"{kind} {reasons.setdefault(why, len(reasons) + 1)}"
            marks.append(kind)
        lines.append(f"| {name} | {' | '.join(marks)} |")
    counted = ", ".join(f"{number} {kind}" for kind, number in count.items())
    lines = [
        *INTRODUCTION.format(
            programs=len(found), torch=torch.__version__, counted=counted
        ).splitlines(),
        *("", "## Programs and plans", "", *lines, "", "## Reasons", ""),
        *(f"{number}. {' '.join(why.split())}" for why, number in reasons.items()),
        *("", "## Repositories", "", "| repository | revision |", "|---|---|"),
    ]
    for place in sorted(folder.glob("*+*/REVISION")):
        revision = place.read_text(encoding="utf-8").strip()
        lines.append(f"| {place.parent.name.replace('+', '/')} | {revision[:12]} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Runs the programs, and tells of each cell that is neither the same nor refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="folder", required=True, type=Path)
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument("--rows", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--columns", nargs="*", default=[*ALONE, *TWO_RANKS])
    parser.add_argument("--record", type=Path, help="verdicts, kept and added to")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    os.environ[FOLDER] = str(given.folder.resolve())
    found: dict[str, dict[str, str]] = {}
    if given.record and given.record.exists():
        found = json.loads(given.record.read_text(encoding="utf-8"))
    with ProcessPoolExecutor(
        given.jobs, multiprocessing.get_context("spawn"), max_tasks_per_child=1
    ) as pool:
        rows = [pool.submit(row, name, given.columns) for name in given.rows]
        for name, verdicts in zip(given.rows, rows, strict=True):
            try:
                found[name] = found.get(name, {}) | verdicts.result()
            except Exception as error:  # noqa: BLE001
                print(name, "ERROR", repr(error))
                continue
            for column in given.columns:
                print(name, column, found[name][column], sep=" | ", flush=True)
            if given.record:
                given.record.write_text(json.dumps(found, indent=1), encoding="utf-8")
    if given.write:
        PAGE.write_text(page(found, given.folder), encoding="utf-8")
    return any(v.startswith("WRONG") for row in found.values() for v in row.values())


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    import public_programs  # by its name, so that ranks find it

    sys.exit(public_programs.main())
