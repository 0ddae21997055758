"""Draws the paths of optimizers on three test functions of two variables.

Run it as `python -m optimizer_examples.trajectories`. Beale's, Rosenbrock's and
Rastrigin's functions are those in the paper of AGD (https://arxiv.org/abs/2312.01658);
start points, learning rates and number of steps are this program's own.

Every learning rate is the one of the same 25 with which most of 200 random start points
lead to the minimum. The table tells how many of 200 others do, and of the path in the
plot, which begins at a point chosen beforehand. Tuned on one start point alone, a large
rate with a lucky first jump wins. Gradients are exact: there is no noise.
"""

from __future__ import annotations

import math
import statistics
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import SGD, Adam, Optimizer

from drivetrain_optim import AGD
from optimizer_examples._adabelief import AdaBelief
from optimizer_examples._program import new_figure, run_program, table
from optimizer_examples._runs import Runs, or_infinite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """The sizes of the comparison.

    Args:
        steps: Of every path.
        exponents: Logarithms to base ten of the learning rates.
        tolerance: Distance to the minimum that counts as having reached it.
        num_starts: Random start points.
        tuning_seed: Of the random start points with which learning rates are found.
        seed: Of those in the table.
    """

    steps: int = 1000
    exponents: tuple[float, ...] = tuple(-5 + k / 4 for k in range(25))
    tolerance: float = 1e-2
    num_starts: int = 200
    tuning_seed: int = 0
    seed: int = 1


QUICK = Setup(steps=40, exponents=(-3.0, -2.0, -1.0), num_starts=5)


def beale(x: Tensor, y: Tensor) -> Tensor:
    """Returns Beale's function; its minimum is 0 at (3, 0.5)."""
    return (
        (1.5 - x + x * y).square()
        + (2.25 - x + x * y**2).square()
        + (2.625 - x + x * y**3).square()
    )


def rosenbrock(x: Tensor, y: Tensor) -> Tensor:
    """Returns Rosenbrock's function; its minimum is 0 at (1, 1)."""
    return (1 - x).square() + 100 * (y - x**2).square()


def rastrigin(x: Tensor, y: Tensor) -> Tensor:
    """Returns Rastrigin's function; its lowest minimum is 0 at (0, 0)."""
    turn = 2 * math.pi
    return 20 + x**2 - 10 * (turn * x).cos() + y**2 - 10 * (turn * y).cos()


@dataclass(frozen=True, kw_only=True, slots=True)
class Function:
    """A function to be minimised.

    Args:
        label: Its name in tables.
        value: Takes the two coordinates.
        minimum: Where it is lowest.
        start: Where the path in the plot begins.
        window: Of the plot and of the random start points: x from, to, y from, to.
    """

    label: str
    value: Callable[[Tensor, Tensor], Tensor]
    minimum: tuple[float, float]
    start: tuple[float, float]
    window: tuple[float, float, float, float]


FUNCTIONS = {
    "beale": Function(
        label="Beale",
        value=beale,
        minimum=(3.0, 0.5),
        start=(1.0, 1.5),
        window=(-0.5, 4.0, -1.0, 2.0),
    ),
    "rosenbrock": Function(
        label="Rosenbrock",
        value=rosenbrock,
        minimum=(1.0, 1.0),
        start=(-1.5, 1.5),
        window=(-2.0, 2.0, -1.0, 3.0),
    ),
    "rastrigin": Function(
        label="Rastrigin",
        value=rastrigin,
        minimum=(0.0, 0.0),
        start=(-2.0, 3.5),
        window=(-4.5, 4.5, -4.5, 4.5),
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """An optimizer.

    Args:
        label: Its name in tables.
        make: Takes parameters and a learning rate.
    """

    label: str
    make: Callable[[list[Tensor], float], Optimizer]


METHODS = {
    "sgd": Method(
        label="SGD, momentum 0.9",
        make=lambda params, lr: SGD(params, lr, momentum=0.9),
    ),
    "adam": Method(label="Adam", make=Adam),
    "adabelief": Method(label="AdaBelief", make=AdaBelief),
    "agd": Method(label="AGD, delta 1e-5", make=AGD),
    "agd-1": Method(
        label="AGD, delta 1",
        make=lambda params, lr: AGD(params, lr, delta=1.0),
    ),
}


def follow(
    function: Function, method: Method, *, lr: float, seed: int, setup: Setup
) -> Tensor:
    """Returns the paths from all start points, steps + 1 x starts x 2.

    The first start is the function's own. All methods here treat each coordinate by
    itself, so that the starts are rows of one parameter.

    Args:
        function: To be minimised.
        method: The optimizer.
        lr: Its learning rate.
        seed: Of the random start points.
        setup: Says how many steps and start points.
    """
    left, right, low, high = function.window
    generator = torch.Generator().manual_seed(seed)
    random = torch.rand(setup.num_starts, 2, dtype=torch.float64, generator=generator)
    corner = torch.tensor([left, low], dtype=torch.float64)
    size = torch.tensor([right - left, high - low], dtype=torch.float64)
    own = torch.tensor([function.start], dtype=torch.float64)
    points = torch.nn.Parameter(torch.cat([own, corner + random * size]))
    optimizer = method.make([points], lr)
    path = [points.detach().clone()]
    for _ in range(setup.steps):
        optimizer.zero_grad()
        function.value(*points.unbind(1)).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        path.append(points.detach().clone())
    return torch.stack(path)


def judge(path: Tensor, function: Function, setup: Setup) -> dict[str, Any]:
    """Returns what is told of the paths with one learning rate."""
    minimum = torch.tensor(function.minimum, dtype=path.dtype)
    distances = (path - minimum).norm(dim=-1).nan_to_num(nan=math.inf)
    far = (distances > setup.tolerance).int()
    # A start has arrived after the last step at which it was far away.
    arrivals = (len(far) - far.flip(0).argmax(0)) * far.any(0)
    arrived = arrivals < len(far)
    own, *others = arrivals.tolist()
    return {
        "share": float(arrived[1:].double().mean()),
        "median_steps": _median([n for n in others if n < len(far)]),
        "steps": own if own < len(far) else None,
        "distance": float(distances[-1, 0]),
        "value": float(function.value(*path[-1, 0]).nan_to_num(nan=math.inf)),
        "path": [[round(x, 5) for x in point] for point in path[:, 0].tolist()],
    }


def _median(numbers: list[int]) -> float:
    return statistics.median(numbers) if numbers else math.inf


def _row(runs: Runs, setup: Setup, name: str, method: str) -> dict[str, Any]:
    function = FUNCTIONS[name]

    def run(exponent: float, seed: int) -> dict[str, Any]:
        lr = 10**exponent
        path = follow(function, METHODS[method], lr=lr, seed=seed, setup=setup)
        return judge(path, function, setup)

    def sweep() -> dict[str, Any]:
        found = {e: run(e, setup.tuning_seed) for e in setup.exponents}
        scores = {e: (-found[e]["share"], found[e]["median_steps"]) for e in found}
        best = min(scores, key=scores.__getitem__)
        return {"log10_lr": best, "tuning": scores, **run(best, setup.seed)}

    return {"function": name, "method": method, **runs.do(f"{name} {method}", sweep)}


def _program(out: Path, quick: bool, methods: list[str]) -> None:
    new_figure(1, 1)  # A missing library is told now, not after the runs.
    setup = QUICK if quick else Setup()
    runs = Runs(out / "trajectories.json", asdict(setup))
    rows = [_row(runs, setup, f, m) for f in FUNCTIONS for m in methods]
    picture = out / "trajectories.png"
    runs.finish([{k: v for k, v in row.items() if k != "path"} for row in rows])
    print(
        f"\n{setup.steps} steps; starts: share of {setup.num_starts} random ones whose "
        f"path ends within {setup.tolerance:g} of the\nminimum; median: of the steps "
        "after which such a path stays there; then the path in the plot"
    )
    print(_table(rows))
    _draw(rows, picture)
    print(f"{runs.seconds():.0f} s of runs; written: {runs.file}, {picture}")


def _table(rows: Sequence[dict[str, Any]]) -> str:
    header = ["function", "lr", "starts", "median", "steps", "distance", "value"]
    cells = [
        [
            f"{FUNCTIONS[row['function']].label}: {METHODS[row['method']].label}",
            f"{10 ** row['log10_lr']:.1e}",
            f"{row['share']:.0%}",
            _count(row["median_steps"]),
            _count(row["steps"]),
            f"{or_infinite(row['distance']):.1e}",
            f"{or_infinite(row['value']):.1e}",
        ]
        for row in rows
    ]
    return table(header, cells)


def _count(steps: float | None) -> str:
    return "never" if steps is None else f"{steps:.0f}"


def _draw(rows: Sequence[dict[str, Any]], file: Path) -> None:
    figure = new_figure(12, 7)
    panels = figure.subplots(2, len(FUNCTIONS))
    # Paths may cover each other: those drawn later leave gaps.
    dashes = dict(zip(METHODS, ["-", "-", "-", "-", (0, (2, 2))], strict=True))
    for column, (name, function) in enumerate(FUNCTIONS.items()):
        plane, distance = panels[0, column], panels[1, column]
        _contours(plane, function)
        for row in (row for row in rows if row["function"] == name):
            style = {
                "label": METHODS[row["method"]].label,
                "linestyle": dashes[row["method"]],
                "linewidth": 1.3,
                "color": f"C{list(METHODS).index(row['method'])}",
            }
            path = [[or_infinite(x) for x in point] for point in row["path"]]
            plane.plot(*zip(*path, strict=True), **style)
            away = [math.dist(point, function.minimum) for point in path]
            distance.semilogy([max(d, 1e-5) for d in away], **style)
        plane.plot(*function.start, "ko", markersize=5)
        plane.plot(*function.minimum, "k*", markersize=11)
        plane.set(title=function.label, xlim=function.window[:2])
        plane.set(ylim=function.window[2:])
        distance.set(xlabel="step", ylim=(5e-6, 1e2))
        distance.grid(alpha=0.3)
    panels[1, 0].set_ylabel("distance to the minimum, from 1e-5 up")
    panels[1, 2].legend(fontsize=8, loc="lower left")
    figure.savefig(file, dpi=80)


def _contours(axes: Any, function: Function) -> None:
    left, right, low, high = function.window
    x, y = torch.linspace(left, right, 120), torch.linspace(low, high, 120)
    values = function.value(*torch.meshgrid(x, y, indexing="xy"))
    levels = (1 + values).log()
    grey = {"cmap": "Greys", "vmin": 0, "vmax": 1.6 * float(levels.max())}
    axes.contourf(x.tolist(), y.tolist(), levels.tolist(), 12, **grey)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the comparison, and prints the table."""
    methods = list(METHODS)
    return run_program("trajectories", __doc__, _program, argv=argv, methods=methods)


if __name__ == "__main__":
    sys.exit(main())
