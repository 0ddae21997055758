"""Torch's own tests of distributed calls under stock Gloo and under `enable()`: a table.

The rows are programs of packages/comm/tests (`torch_*_rows.py`), each what one test of
torch checks, in other words. `--out PAGE` writes the table; `--quick` takes every tenth row.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

import torch

from drivetrain_testing import Row

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from torch_rows import WORLD_SIZE, Said, all_rows, run_rows, verdict_of

KINDS = {"tuned": "ours", "no engine on rank 1": "no engine on rank 1"}
_MIN_ROWS, _MOST_REFUSED = 200, 0.1

INTRODUCTION = """# drivetrain-comm in the rows of torch's tests, November 2026

What torch tests of `torch.distributed` without a GPU, in
{files}:
collectives and messages, process groups, the reducer, DistributedDataParallel with its hooks,
and collectives as functions. Each row is what one test checks, written anew, on {ranks} ranks of one machine,
under stock Gloo and under `drivetrain_comm.enable()`. Tests that need a GPU, NCCL, MPI or UCC
are left out; where a test asks for GPUs only to put a module on one, the row is on the CPU.

`same`: the same values, kinds of tensors and texts of errors; the same bits, but where
gradients are added in another order (a relative difference of 1e-5, and of 3e-3 in fp16).
`refused`: stock has a result, and ours an error that says why. `wrong`: neither. `hangs`: no
end within the row's time. The second column of ours is that of ranks of which one has no
engine. Of {rows} rows {counted}.

What differs on purpose, and is in no row: the profiler's events of all-reduces have no shapes
of inputs; `bucket_cap_bytes` in the log of DDP and the grain of buckets are ours where the
script names none; a group of several devices, `cpu:gloo,cuda:gloo`, has the name `gloo` where
torch says `undefined`.

Python {python}, torch {torch}, {when}, CPU. Proven on: cpu-gloo.

```console
python packages/comm/benchmarks/torch_tests.py --out docs/benchmarks/comm_torch_tests_202611.md
```

## Rows

| torch's file | test | what it checks | stock | {kinds} |
"""


def compare(quick):
    """Returns for each row what stock gives, and the verdicts of ours by kind."""
    rows = all_rows()
    names = list(rows)[:: 10 if quick else 1]
    stock = run_rows("stock", names)
    ours = {kind: run_rows(kind, names) for kind in KINDS}
    table = {}
    for name in names:
        errors = {one.kinds[0] for one in stock[name] if isinstance(one, Said)}
        verdicts = {
            kind: verdict_of(rows[name], stock[name], found[name])
            for kind, found in ours.items()
        }
        table[name] = (" ".join(sorted(errors)) or "a result", verdicts)
    return table


def counted(table, kind):
    """Returns how many rows have each verdict of a kind."""
    return Counter(verdicts[kind].partition(":")[0] for _, verdicts in table.values())


def torch_tests(quick):
    """The claim: what torch's tests check of Gloo, they would find here."""
    table = compare(quick)
    counts = {kind: counted(table, kind) for kind in KINDS}
    holds = quick or len(table) >= _MIN_ROWS
    for count in counts.values():
        allowed = count["same"] + count["same error"] + count["refused"]
        holds = holds and allowed == len(table)
        holds = holds and count["refused"] <= _MOST_REFUSED * len(table)
    shown = [f"{KINDS[kind]}: {_words(count)}" for kind, count in counts.items()]
    others = {
        name: verdicts
        for name, (_, verdicts) in table.items()
        if set(verdicts.values()) != {"same"}
    }
    return Row(
        figure=f"{len(table)} rows; {'; '.join(shown)}",
        holds=holds,
        proven_on="cpu-gloo",
        details={"rows": len(table), "others": others},
    )


def _words(count):
    return ", ".join(f"{number} {verdict}" for verdict, number in count.items())


def page(table):
    """Returns the page."""
    rows = all_rows()
    lines = ["|---" * (4 + len(KINDS)) + "|"]
    for name, (stock, verdicts) in table.items():
        cells = [rows[name].file, rows[name].test, rows[name].checks, stock]
        cells += [verdict.replace("|", "/") for verdict in verdicts.values()]
        lines.append(f"| {' | '.join(cells)} |")
    files = sorted({f"`{rows[name].file}`" for name in table})
    counts = {kind: _words(counted(table, kind)) for kind in KINDS}
    text = INTRODUCTION.format(
        files=f"{', '.join(files[:-1])} and {files[-1]}",
        ranks=WORLD_SIZE,
        rows=len(table),
        counted=f"{counts['tuned']}; with {', '.join(list(KINDS)[1:])} "
        f"{counts['no engine on rank 1']}",
        kinds=" | ".join(KINDS.values()),
        python=".".join(map(str, sys.version_info[:2])),
        torch=torch.__version__,
        when="2026-11-30",
    )
    return text + "\n".join(lines) + "\n"


def main():
    """Runs the rows, and prints or writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="every tenth row")
    parser.add_argument(
        "--out", type=Path, help="where the page goes; else it is printed"
    )
    options = parser.parse_args()
    table = compare(options.quick)
    if options.out:
        options.out.write_text(page(table), encoding="utf-8")
    else:
        print(page(table))
    ended = all(set(v.values()) == {"same"} for _, v in table.values())
    return 0 if ended else 1


if __name__ == "__main__":
    sys.exit(main())
