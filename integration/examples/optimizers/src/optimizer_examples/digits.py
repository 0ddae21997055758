"""Compares optimizers on scikit-learn's digits: accuracy, loss and sharpness.

Run it as `python -m optimizer_examples.digits`. A small ResNet learns 500 images
of 8 x 8 pixels, once with right labels and once with three in ten of them wrong. The
budget is equal: all methods have the same number of forward and backward passes, so
that SAM and WSAM, which need two a step, take half the steps. The number after their
name is the radius rho.

Every learning rate is the one of the same ten with which two seeds name most validation
images right; the table is of other seeds, on test images that no choice has seen. Each seed draws its own training images, wrong labels, weights and order.
"""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import SGD, AdamW, Optimizer

from drivetrain_core import MissingLibraryError
from drivetrain_optim import AGD, WSAM
from optimizer_examples._program import INSTALL, new_figure, run_program, table
from optimizer_examples._resnet import ResNet
from optimizer_examples._runs import Runs, mean_and_deviation, or_infinite
from optimizer_examples._schedule import factor_of
from optimizer_examples._sharpness import sharpness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """The sizes of the comparison.

    Args:
        width: Channels of the first convolution.
        num_train: Training images.
        num_validation: Validation images; with the training images of each seed they
            are drawn from the same 800.
        noises: Shares of the training labels that are replaced by a wrong one.
        batch_size: Images of a batch.
        passes: Forward and backward passes of a run.
        exponents: Logarithms to base ten of the learning rates.
        warmup: Share of the steps in which the learning rate rises.
        tuning_seeds: Seeds with which learning rates are found.
        seeds: Seeds of the runs in the table.
    """

    width: int = 16
    num_train: int = 500
    num_validation: int = 300
    noises: tuple[float, ...] = (0.0, 0.3)
    batch_size: int = 50
    passes: int = 400
    exponents: tuple[float, ...] = tuple(-4.5 + k / 2 for k in range(10))
    warmup: float = 0.1
    tuning_seeds: tuple[int, ...] = (100, 101)
    seeds: tuple[int, ...] = tuple(range(1, 11))


QUICK = Setup(
    width=2,
    num_train=100,
    noises=(0.3,),
    passes=8,
    exponents=(-2.0, -1.0),
    tuning_seeds=(100,),
    seeds=(1, 2),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """An optimizer.

    Args:
        label: Its name in tables.
        make: Takes the model and a learning rate.
        sharpness_aware: Whether it takes two passes a step.
    """

    label: str
    make: Callable[[nn.Module, float], Optimizer]
    sharpness_aware: bool = False


def _sgd(model: nn.Module, lr: float) -> Optimizer:
    return SGD(model.parameters(), lr, momentum=0.9, weight_decay=5e-4)


def _sam(rho: float) -> Callable[[nn.Module, float], Optimizer]:
    def make(model: nn.Module, lr: float) -> Optimizer:
        base = _sgd(model, lr)
        return WSAM(base, model=model, rho=rho, gamma=0.5, decouple=False)

    return make


def _wsam(rho: float) -> Callable[[nn.Module, float], Optimizer]:
    return lambda model, lr: WSAM(_sgd(model, lr), model=model, rho=rho, gamma=0.9)


# Weight decay is what is usual with each; WSAM with gamma 0.5, coupled, is SAM.
METHODS = {
    "adamw": Method(
        label="AdamW",
        make=lambda model, lr: AdamW(model.parameters(), lr, weight_decay=0.01),
    ),
    "agd": Method(
        label="AGD",
        make=lambda model, lr: AGD(
            model.parameters(), lr, delta="cnn", weight_decay=0.01
        ),
    ),
    "sgdm": Method(label="SGDM", make=_sgd),
    "sam": Method(label="SAM 0.05", make=_sam(0.05), sharpness_aware=True),
    "wsam": Method(label="WSAM 0.05", make=_wsam(0.05), sharpness_aware=True),
    "sam-0.2": Method(label="SAM 0.2", make=_sam(0.2), sharpness_aware=True),
    "wsam-0.2": Method(label="WSAM 0.2", make=_wsam(0.2), sharpness_aware=True),
}


class Images:
    """The digits: test images that stay the same, and others drawn by each seed.

    Args:
        setup: Says how many.

    Raises:
        MissingLibraryError: scikit-learn is not installed; the message says how to.
    """

    def __init__(self, setup: Setup) -> None:
        """Reads the images."""
        try:
            from sklearn import datasets
        except ImportError as error:
            message = f"the digits need scikit-learn: {INSTALL}"
            raise MissingLibraryError(message) from error
        digits = datasets.load_digits()
        self.images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
        self.labels = torch.tensor(digits.target, dtype=torch.long)
        order = torch.randperm(
            len(self.labels), generator=torch.Generator().manual_seed(0)
        )
        self.setup = setup
        self.pool, places = order[:800], order[800:]
        self.test = self.images[places], self.labels[places]

    def draw(
        self, seed: int, noise: float
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Returns the training set of a seed, and its validation set with right labels.

        Args:
            seed: Decides which images, and which labels are wrong.
            noise: Share of the training labels that are wrong.
        """
        generator = torch.Generator().manual_seed(seed)
        order = self.pool[torch.randperm(len(self.pool), generator=generator)]
        places, rest = order.split([self.setup.num_train, 800 - self.setup.num_train])  # type: ignore[no-untyped-call]
        rest = rest[: self.setup.num_validation]
        labels = self.labels[places]
        wrong = round(noise * len(labels))
        shift = torch.randint(1, 10, (wrong,), generator=generator)
        labels[:wrong] = (labels[:wrong] + shift) % 10
        return (self.images[places], labels), (self.images[rest], self.labels[rest])


def train(
    images: Images, method: Method, *, noise: float, lr: float, seed: int
) -> dict[str, Any]:
    """Trains one model, and returns its errors, its losses and its sharpness.

    Args:
        images: The digits.
        method: The optimizer.
        noise: Share of the training labels that are wrong.
        lr: The highest learning rate of the run.
        seed: Of the images, the weights and the order.
    """
    setup = images.setup
    data, validation = images.draw(seed, noise)
    torch.manual_seed(seed)
    model = ResNet(setup.width)
    optimizer = method.make(model, lr)
    num_steps = setup.passes // (2 if method.sharpness_aware else 1)
    for step, batch in enumerate(_batches(data, setup.batch_size, num_steps)):
        factor = factor_of(step, num_steps, setup.warmup)
        for group in optimizer.param_groups:
            group["lr"] = lr * factor
        _step(model, optimizer, batch)
    model.eval()
    result = {"sharpness": math.nan}
    if seed in setup.seeds:
        result["sharpness"] = sharpness(
            model, lambda m: F.cross_entropy(m(data[0]), data[1])
        )
    for name, part in (
        ("train", data),
        ("validation", validation),
        ("test", images.test),
    ):
        result[f"{name}_loss"], result[f"{name}_accuracy"] = _evaluate(model, part)
    return result


def _batches(
    data: tuple[Tensor, Tensor], batch_size: int, number: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields batches of epochs in random order, by torch's own generator."""
    done = 0
    while True:
        order = torch.randperm(len(data[1]))
        for places in order.split(batch_size):  # type: ignore[no-untyped-call]
            if done == number:
                return
            yield data[0][places], data[1][places]
            done += 1


def _step(model: nn.Module, optimizer: Optimizer, batch: tuple[Tensor, Tensor]) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(batch[0]), batch[1]).backward()  # type: ignore[no-untyped-call]
    if isinstance(optimizer, WSAM):
        with optimizer.perturb():
            F.cross_entropy(model(batch[0]), batch[1]).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


@torch.no_grad()
def _evaluate(model: nn.Module, data: tuple[Tensor, Tensor]) -> tuple[float, float]:
    logits = model(data[0])
    right = (logits.argmax(1) == data[1]).double().mean()
    return float(F.cross_entropy(logits, data[1])), float(right)


def compare(images: Images, runs: Runs, name: str, noise: float) -> dict[str, Any]:
    """Finds a learning rate, trains with the other seeds, and returns a row."""
    setup, method = images.setup, METHODS[name]

    def run(exponent: float, seed: int) -> dict[str, Any]:
        return runs.do(
            f"{name} noise {noise} lr 10^{exponent} seed {seed}",
            lambda: train(images, method, noise=noise, lr=10**exponent, seed=seed),
        )

    def score(exponent: float) -> tuple[float, float]:
        found = [run(exponent, seed) for seed in setup.tuning_seeds]
        wrong = [1 - (result["validation_accuracy"] or 0.0) for result in found]
        losses = [or_infinite(result["validation_loss"]) for result in found]
        return sum(wrong) / len(found), sum(losses) / len(found)

    tuning = {exponent: score(exponent) for exponent in setup.exponents}
    best = min(tuning, key=tuning.__getitem__)
    final = [run(best, seed) for seed in setup.seeds]
    row: dict[str, Any] = {"method": name, "noise": noise, "log10_lr": best}
    for key in ("test_accuracy", "test_loss", "train_loss", "sharpness"):
        values = [result[key] for result in final]
        row[key] = values
        row[f"{key}_mean"], row[f"{key}_deviation"] = mean_and_deviation(values)
    row["tuning"] = tuning
    steps = setup.passes // (2 if method.sharpness_aware else 1)
    row["steps"] = steps
    row["epochs"] = steps * setup.batch_size / setup.num_train
    row["run_seconds"] = sum(result["seconds"] for result in final) / len(final)
    return row


def _program(out: Path, quick: bool, methods: list[str]) -> None:
    new_figure(1, 1)  # A missing library is told now, not after the runs.
    setup = QUICK if quick else Setup()
    images = Images(setup)
    runs = Runs(out / "digits.json", asdict(setup))
    rows = [compare(images, runs, m, noise) for noise in setup.noises for m in methods]
    runs.finish(rows)
    picture = out / "digits.png"
    print(
        f"\n{setup.num_train} training images, {len(images.test[1])} test images, "
        f"{setup.passes} forward and backward passes a run;\n"
        f"mean +- standard deviation of {len(setup.seeds)} seeds"
    )
    print(_table(rows))
    _draw(rows, setup, picture)
    print(f"{runs.seconds():.0f} s of runs; written: {runs.file}, {picture}")


def _table(rows: Sequence[dict[str, Any]]) -> str:
    header = ["noise: method", "lr", "epochs", "test acc., %", "test loss"]
    header += ["train loss", "sharpness", "s"]

    def pair(row: dict[str, Any], key: str, digits: int, scale: float = 1.0) -> str:
        mean, deviation = row[f"{key}_mean"] * scale, row[f"{key}_deviation"] * scale
        return f"{mean:.{digits}f} +- {deviation:.{digits}f}"

    cells = [
        [
            f"{row['noise']:.0%}: {METHODS[row['method']].label}",
            f"{10 ** row['log10_lr']:.1e}",
            f"{row['epochs']:.0f}",
            pair(row, "test_accuracy", 2, 100),
            pair(row, "test_loss", 3),
            pair(row, "train_loss", 3),
            pair(row, "sharpness", 1),
            f"{row['run_seconds']:.1f}",
        ]
        for row in rows
    ]
    return table(header, cells)


def _draw(rows: Sequence[dict[str, Any]], setup: Setup, file: Path) -> None:
    figure = new_figure(11, 3.2 * len(setup.noises))
    panels = figure.subplots(len(setup.noises), 3, squeeze=False)
    quantities = {
        "test_accuracy": "test accuracy, %",
        "test_loss": "test loss",
        "sharpness": "sharpness",
    }
    for line, noise in zip(panels, setup.noises, strict=True):
        mine = [row for row in rows if row["noise"] == noise]
        labels = [METHODS[row["method"]].label for row in mine]
        for axes, (key, title) in zip(line, quantities.items(), strict=True):
            scale = 100 if key == "test_accuracy" else 1
            for place, row in enumerate(mine):
                values = [scale * or_infinite(value) for value in row[key]]
                axes.plot([place] * len(values), values, "o", alpha=0.4, color="C0")
                mean, deviation = row[f"{key}_mean"], row[f"{key}_deviation"]
                axes.errorbar(
                    [place], [scale * mean], [scale * deviation], fmt="_k", capsize=4
                )
            axes.set_xticks(range(len(mine)), labels, rotation=30, fontsize=8)
            axes.set_title(f"{title}, {noise:.0%} wrong labels", fontsize=10)
            axes.grid(axis="y", alpha=0.3)
            if key == "sharpness":
                axes.set_yscale("log")
    figure.savefig(file, dpi=110)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the comparison, and prints the table."""
    return run_program("digits", __doc__, _program, argv=argv, methods=list(METHODS))


if __name__ == "__main__":
    sys.exit(main())
