"""Asks whether LAMB lets the batch grow four times without a loss of quality.

Run it as `python -m optimizer_examples.large_batch`. MegaScale
(https://arxiv.org/abs/2402.15627, section 3.1) says so of language models. Here a small
one reads the same bytes in the same order in both cases, so that four times the batch
has a quarter of the steps, and AdamW does the same beside it.

As in the paper of LAMB (https://arxiv.org/abs/1904.00962) and its authors' code, the
learning rate rises over as many steps at each batch, which is a share that grows with
it, and the weights of norms are left out of weight decay and of the trust ratio. The
best learning rate of each has at least two worse ones on both sides.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from torch.optim import AdamW

from drivetrain_optim import LAMB
from optimizer_examples import byte_lm
from optimizer_examples._program import new_figure, run_program, table
from optimizer_examples._runs import Runs, or_infinite
from optimizer_examples.byte_lm import Corpus, Method, Setup, compare

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from torch import Tensor

GROWTH = 4
BOUND = 1.01

SETUP = Setup(
    num_windows=32_768,
    batch_size=4,
    growth=(1, GROWTH),
    warmup=1 / 32,
    scale_warmup=True,
    num_held_out=2048,
    seeds=(1, 2, 3, 4, 5),
)
"""256 bytes in 8192 steps, and 1024 bytes in 2048."""

QUICK = replace(
    byte_lm.QUICK, growth=(1, GROWTH), warmup=1 / 32, scale_warmup=True, batch_size=4
)


def groups(parameters: Iterable[Tensor], decay: float = 0.01) -> list[dict[str, Any]]:
    """Returns the parameters in two groups: those with weight decay, and vectors.

    Example:
        >>> import torch
        >>> [g["weight_decay"] for g in groups([torch.ones(2, 2), torch.ones(2)])]
        [0.01, 0.0]
    """
    given = list(parameters)
    return [
        {"params": [p for p in given if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in given if p.ndim <= 1], "weight_decay": 0.0},
    ]


METHODS = {
    "adamw": Method(
        label="AdamW",
        make=lambda params, lr: AdamW(groups(params), lr),
        start=-10,
    ),
    "lamb": Method(
        label="LAMB",
        make=lambda params, lr: LAMB(groups(params), lr, adapt="decayed"),
        start=-7,
    ),
}


def verdict(rows: Sequence[dict[str, Any]]) -> str:
    """Returns what the table says of the claim, in one line.

    Example:
        >>> rows = [
        ...     {"method": "adamw", "growth": 1, "test": 2.0},
        ...     {"method": "lamb", "growth": 1, "test": 1.9},
        ...     {"method": "lamb", "growth": 4, "test": 1.938},
        ... ]
        >>> verdict(rows)
        'LAMB at 4x the batch: 0.9690 of AdamW at 1x, 1.0200 of LAMB at 1x; not reproduced'
    """
    large = [r["test"] for r in rows if r["growth"] > 1 and r["method"] == "lamb"]
    if not large:
        return "LAMB was not among the methods"
    base = {r["method"]: large[0] / r["test"] for r in rows if r["growth"] == 1}
    ratios = ", ".join(f"{x:.4f} of {METHODS[n].label} at 1x" for n, x in base.items())
    said = "reproduced" if max(base.values()) <= BOUND else "not reproduced"
    return f"LAMB at {GROWTH}x the batch: {ratios}; {said}"


def _program(out: Path, quick: bool, methods: list[str]) -> None:
    new_figure(1, 1)  # A missing library is told now, not after the runs.
    setup = QUICK if quick else SETUP
    corpus = Corpus(setup)
    runs = Runs(
        out / "large_batch.json", {**asdict(setup), "train_bytes": corpus.num_bytes}
    )
    rows = [
        compare(corpus, runs, name, METHODS[name], growth)
        for name in methods
        for growth in setup.growth
    ]
    runs.finish(rows)
    print(f"\ntest bits per byte, mean and deviation of {len(setup.seeds)} seeds")
    print(_table(rows))
    print(verdict(rows))
    _draw(rows, out / "large_batch.png")
    print(
        f"{runs.seconds():.0f} s of runs; written: {runs.file}, "
        f"{out / 'large_batch.png'}"
    )


def _table(rows: Sequence[dict[str, Any]]) -> str:
    header = ["optimizer", "batch", "steps", "tried", "lr", "bits/byte", "sd", "of 1x"]
    base = {r["method"]: r["test"] for r in rows if r["growth"] == 1}
    cells = [
        [
            METHODS[row["method"]].label,
            f"{row['batch_bytes']} bytes",
            str(row["steps"]),
            str(len(row["tuning"])),
            f"2^{row['log2_lr']}",
            f"{row['test']:.4f}",
            f"{row['test_deviation']:.4f}",
            f"{row['test'] / base[row['method']]:.4f}",
        ]
        for row in rows
    ]
    return table(header, cells)


def _draw(rows: Sequence[dict[str, Any]], file: Path) -> None:
    figure = new_figure(8, 3.6)
    rates, curves = figure.subplots(1, 2)
    for row in rows:
        label = f"{METHODS[row['method']].label}, {row['batch_bytes']} bytes"
        style = {
            "label": label,
            "color": f"C{list(METHODS).index(row['method'])}",
            "linestyle": "-" if row["growth"] == 1 else "--",
        }
        tuning = {2.0 ** int(k): or_infinite(v) for k, v in row["tuning"].items()}
        rates.plot(list(tuning), list(tuning.values()), marker="o", **style)
        share = [(i + 1) / len(row["curve"]) for i in range(len(row["curve"]))]
        curves.plot(share, row["curve"], **style)
    rates.set(xlabel="learning rate", title="tuning", ylabel="validation bits per byte")
    rates.set_xscale("log", base=2)
    curves.set(xlabel="share of the text", title="training, first seed")
    for axes in (rates, curves):
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
    figure.savefig(file, dpi=110)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the comparison, and prints the table."""
    return run_program(
        "large_batch", __doc__, _program, argv=argv, methods=list(METHODS)
    )


if __name__ == "__main__":
    sys.exit(main())
