"""Compares optimizers on a byte-level language model of Python's standard library.

Run it as `python -m optimizer_examples.byte_lm`. The model and the text are
those of `drivetrain_core.examples.byte_lm`, made small. Two questions are asked: AGD or
AdamW at equal steps; and AdamW or LAMB as the batch grows while the number of bytes
stays the same, so that steps get fewer.

Every learning rate is a power of two, found on validation text by the same rule for
all; the numbers in the table are from test text and from other seeds.
"""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import AdamW, Optimizer

from drivetrain_core.examples.byte_lm import (
    ByteLM,
    ByteLMConfig,
    ByteText,
    bits_per_byte,
    loss,
    read_standard_library,
)
from drivetrain_optim import AGD, LAMB
from optimizer_examples._program import new_figure, run_program, table
from optimizer_examples._runs import Runs, mean_and_deviation, or_infinite
from optimizer_examples._schedule import factor_of
from optimizer_examples._tuning import climb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """The sizes of the comparison.

    Args:
        config: The model.
        length: Bytes of a window.
        num_windows: Windows that a run trains on, whatever the batch size.
        batch_size: Windows of the smallest batch.
        growth: Factors by which the batch grows.
        warmup: Share of the steps in which the learning rate rises.
        scale_warmup: Whether that share grows with the batch, so that the learning rate
            rises in as many steps, as in the paper of LAMB.
        num_held_out: Windows of validation, and of test.
        tuning_seed: Seed with which learning rates are found.
        seeds: Seeds of the runs in the table.
        max_bytes: Text to read at most; all when None.
    """

    config: ByteLMConfig = field(
        default_factory=lambda: ByteLMConfig(
            num_layers=3, dim=96, num_heads=4, num_kv_heads=2, ffn_dim=256
        )
    )
    length: int = 64
    num_windows: int = 8192
    batch_size: int = 8
    growth: tuple[int, ...] = (1, 2, 4, 8)
    warmup: float = 0.1
    scale_warmup: bool = False
    num_held_out: int = 512
    tuning_seed: int = 0
    seeds: tuple[int, ...] = (1, 2, 3)
    max_bytes: int | None = None


QUICK = Setup(
    config=ByteLMConfig(num_layers=1, dim=16, num_heads=2, num_kv_heads=1, ffn_dim=32),
    length=16,
    num_windows=64,
    growth=(1, 2),
    num_held_out=16,
    seeds=(1, 2),
    max_bytes=2_000_000,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """An optimizer, and where the search for its learning rate begins.

    Args:
        label: Its name in tables.
        make: Takes parameters and a learning rate.
        start: Logarithm to base two of the first learning rate that is tried.
        grows: Whether it is also trained with larger batches.
    """

    label: str
    make: Callable[[Any, float], Optimizer]
    start: int
    grows: bool = False


# All share the betas (0.9, 0.999), which are the default of each, and the decay 0.01.
METHODS = {
    "adamw": Method(
        label="AdamW",
        make=lambda params, lr: AdamW(params, lr, weight_decay=0.01),
        start=-8,
        grows=True,
    ),
    "agd-1e-14": Method(
        label="AGD, delta 1e-14",
        make=lambda params, lr: AGD(params, lr, delta="transformer", weight_decay=0.01),
        start=-10,
    ),
    "agd-1e-8": Method(
        label="AGD, delta 1e-8",
        make=lambda params, lr: AGD(params, lr, delta=1e-8, weight_decay=0.01),
        start=-10,
    ),
    "lamb": Method(
        label="LAMB",
        make=lambda params, lr: LAMB(params, lr, weight_decay=0.01),
        start=-5,
        grows=True,
    ),
}


class Corpus:
    """Windows of the standard library's text: training, validation and test.

    Args:
        setup: Says how many windows of which length.
    """

    def __init__(self, setup: Setup) -> None:
        """Reads the text; every second held-out window is for validation."""
        train, held_out = read_standard_library(setup.max_bytes)
        self.num_bytes = len(train)
        self.train = ByteText(train, setup.length)
        self.setup = setup
        text = ByteText(held_out, setup.length)
        places = torch.linspace(0, len(text) - 1, 2 * setup.num_held_out).long()
        self.validation = _stack(text, places[::2])
        self.test = _stack(text, places[1::2])

    def batches(self, seed: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the windows of a seed, which are the same for every batch size."""
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.train), generator=generator)
        for places in order[: self.setup.num_windows].split(batch_size):  # type: ignore[no-untyped-call]
            yield _stack(self.train, places)


def _stack(text: ByteText, places: Tensor) -> tuple[Tensor, Tensor]:
    inputs, targets = zip(*(text[int(place)] for place in places), strict=True)
    return torch.stack(inputs), torch.stack(targets)


def train(
    corpus: Corpus, method: Method, *, exponent: int, growth: int, seed: int
) -> dict[str, Any]:
    """Trains one model, and returns its losses in bits per byte.

    Args:
        corpus: The text.
        method: The optimizer.
        exponent: Logarithm to base two of the learning rate.
        growth: How many times the smallest batch.
        seed: Of the weights and of the order of the text.
    """
    setup = corpus.setup
    torch.manual_seed(seed)
    model = ByteLM(setup.config)
    optimizer = method.make(model.parameters(), 2.0**exponent)
    batch_size = growth * setup.batch_size
    num_steps = setup.num_windows // batch_size
    warmup = setup.warmup * (growth if setup.scale_warmup else 1)
    losses = []
    for step, batch in enumerate(corpus.batches(seed, batch_size)):
        factor = factor_of(step, num_steps, warmup)
        for group in optimizer.param_groups:
            group["lr"] = 2.0**exponent * factor
        value = loss(model(batch[0]), batch)
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        losses.append(value.item())
        if not math.isfinite(losses[-1]):
            return {"validation": math.inf, "test": math.inf, "curve": []}
        optimizer.step()
    return {
        "validation": _held_out(model, corpus.validation),
        "test": _held_out(model, corpus.test),
        "curve": _means(losses, 32),
    }


@torch.no_grad()
def _held_out(model: ByteLM, windows: tuple[Tensor, Tensor]) -> float:
    parts = zip(*(part.split(64) for part in windows), strict=True)  # type: ignore[no-untyped-call]
    total = sum(float(loss(model(part[0]), part)) * len(part[0]) for part in parts)
    return bits_per_byte(total / len(windows[0]))


def _means(losses: Sequence[float], num_parts: int) -> list[float]:
    num_parts = min(num_parts, len(losses))
    edges = [round(i * len(losses) / num_parts) for i in range(num_parts + 1)]
    return [
        round(bits_per_byte(sum(losses[a:b]) / (b - a)), 4) for a, b in pairwise(edges)
    ]


def compare(
    corpus: Corpus, runs: Runs, name: str, method: Method, growth: int
) -> dict[str, Any]:
    """Finds a learning rate, trains with the other seeds, and returns a row."""
    setup = corpus.setup

    def run(exponent: int, seed: int) -> dict[str, Any]:
        return runs.do(
            f"{name} batch x{growth} lr 2^{exponent} seed {seed}",
            lambda: train(corpus, method, exponent=exponent, growth=growth, seed=seed),
        )

    def validation(exponent: int) -> float:
        return or_infinite(run(exponent, setup.tuning_seed)["validation"])

    best, tried = climb(validation, method.start, reach=2)
    final = [run(best, seed) for seed in setup.seeds]
    mean, deviation = mean_and_deviation(result["test"] for result in final)
    return {
        "method": name,
        "growth": growth,
        "batch_bytes": growth * setup.batch_size * setup.length,
        "steps": setup.num_windows // (growth * setup.batch_size),
        "log2_lr": best,
        "tuning": {k: validation(k) for k in tried},
        "test": mean,
        "test_deviation": deviation,
        "tests": [result["test"] for result in final],
        "curve": final[0]["curve"],
        "run_seconds": sum(result["seconds"] for result in final) / len(final),
    }


def _program(out: Path, quick: bool, methods: list[str]) -> None:
    new_figure(1, 1)  # A missing library is told now, not after the runs.
    setup = QUICK if quick else Setup()
    corpus = Corpus(setup)
    shared = {**asdict(setup), "train_bytes": corpus.num_bytes}
    runs = Runs(out / "byte_lm.json", shared)
    rows = [
        compare(corpus, runs, name, METHODS[name], growth)
        for name in methods
        for growth in (setup.growth if METHODS[name].grows else (1,))
    ]
    runs.finish(rows)
    seeds = len(setup.seeds)
    print(f"\ntest bits per byte, mean and standard deviation of {seeds} seeds")
    print(_table(rows))
    _draw(rows, setup, out / "byte_lm.png")
    print(
        f"{runs.seconds():.0f} s of runs; written: {runs.file}, {out / 'byte_lm.png'}"
    )


def _table(rows: Sequence[dict[str, Any]]) -> str:
    header = ["optimizer", "batch", "steps", "lr", "bits/byte", "sd", "of AdamW", "s"]
    header.insert(4, "tried")
    base = {r["growth"]: r["test"] for r in rows if r["method"] == "adamw"}
    cells = []
    for row in rows:
        ratio = row["test"] / base.get(row["growth"], math.nan)
        cells.append(
            [
                METHODS[row["method"]].label,
                f"x{row['growth']}",
                str(row["steps"]),
                f"2^{row['log2_lr']}",
                str(len(row["tuning"])),
                f"{row['test']:.3f}",
                f"{row['test_deviation']:.3f}",
                f"{ratio:.3f}",
                f"{row['run_seconds']:.1f}",
            ]
        )
    return table(header, cells)


def _draw(rows: Sequence[dict[str, Any]], setup: Setup, file: Path) -> None:
    figure = new_figure(11, 3.6)
    rates, curves, batches = figure.subplots(1, 3)
    for row in (row for row in rows if row["growth"] == 1):
        label = METHODS[row["method"]].label
        tuning = {int(k): or_infinite(v) for k, v in row["tuning"].items()}
        color = _color(row["method"])
        powers = [2.0**k for k in tuning]
        rates.plot(powers, list(tuning.values()), "o-", label=label, color=color)
        share = [(i + 1) / len(row["curve"]) for i in range(len(row["curve"]))]
        dashes = "--" if row["method"] == "agd-1e-8" else "-"
        curves.plot(share, row["curve"], dashes, label=label, color=color)
    rates.set(xlabel="learning rate", title="tuning, smallest batch")
    rates.set_xscale("log", base=2)
    rates.set_ylabel("validation bits per byte")
    curves.set(xlabel="share of the run", title="training, smallest batch")
    curves.set_ylabel("training bits per byte")
    for name in (name for name, method in METHODS.items() if method.grows):
        mine = [row for row in rows if row["method"] == name]
        if mine:
            batches.errorbar(
                [row["batch_bytes"] for row in mine],
                [row["test"] for row in mine],
                [row["test_deviation"] for row in mine],
                fmt="o-",
                capsize=3,
                color=_color(name),
                label=METHODS[name].label,
            )
    batches.set_xscale("log", base=2)
    kilobytes = setup.num_windows * setup.length / 1024
    batches.set(xlabel="bytes of a batch", ylabel="test bits per byte")
    batches.set_title(f"the batch grows, {kilobytes:.0f} KiB in all")
    for axes in (rates, curves, batches):
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
    figure.savefig(file, dpi=110)


def _color(method: str) -> str:
    return f"C{list(METHODS).index(method)}"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the comparison, and prints the table."""
    return run_program("byte_lm", __doc__, _program, argv=argv, methods=list(METHODS))


if __name__ == "__main__":
    sys.exit(main())
