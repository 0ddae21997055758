"""What is run on a GPU machine, in order: each row is a process with a limit of time.

Tests come first and side by side, since most of their time is compilation on the CPU; then
figures, each alone. The estimates are those for an H100 with 16 cores.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["FIRST", "SECOND", "Row", "choose", "command_of", "whole"]

# Of a test in a row that has no limit, and that nothing else would end.
_LONGEST_S = 1800


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing that is run, in a process of its own.

    Args:
        name: Of the row, in the report.
        kind: `tests`, which pytest runs, or `bars`, which a `bars.py` measures.
        package: The folder of packages/, or `integration`.
        arguments: Files of tests and pytest's options, or names of bars.
        estimate_s: What it should take; it may take twice as long. None has no limit.
    """

    name: str
    kind: Literal["tests", "bars"]
    package: str
    arguments: tuple[str, ...] = ()
    estimate_s: float | None = None

    @property
    def limit_s(self) -> float | None:
        return None if self.estimate_s is None else 2 * self.estimate_s


def _tests(
    name: str,
    files: Sequence[str],
    *,
    estimate_s: float,
    select: str = "",
    workers: int = 0,
) -> Row:
    package = name.split("-")[0]
    arguments = [f"packages/{package}/tests/{file}.py" for file in files]
    arguments += ["-k", select] if select else []
    # A benchmark plugin that is there warns when it sees workers, which is an error.
    beside = ["-n", str(workers), "--dist", "load", "-p", "no:benchmark"]
    arguments += beside if workers else []
    return Row(
        name=f"tests-{name}",
        kind="tests",
        package=package,
        arguments=tuple(arguments),
        estimate_s=estimate_s,
    )


def _bars(name: str, bars: Sequence[str], *, estimate_s: float) -> Row:
    return Row(
        name=f"bars-{name}",
        kind="bars",
        package=name.split("-")[0],
        arguments=tuple(bars),
        estimate_s=estimate_s,
    )


_NORMS = ("rms_norm", "layer_norm", "add_rms_norm", "dropout_add_rms_norm")
_OTHERS = ("rope", "swiglu", "geglu", "cross_entropy")
_GPU = ("test_gpu",)

FIRST = (
    _tests("memory", _GPU, estimate_s=30, workers=3),
    _tests("kernels-attention", ["test_attention_gpu"], estimate_s=80, workers=5,
           select="not float32"),
    _tests("kernels", ["test_ops_gpu", "test_losses_gpu"], estimate_s=60, workers=5),
    _tests("optim", ["test_triton_gpu"], estimate_s=40, workers=3),
    _tests("core", _GPU, estimate_s=60, workers=3, select="contract and not compile"),
    _tests("search", ["test_gpu", "test_cache_key"], estimate_s=40, workers=2,
           select="memory or peak or driver"),
    _tests("checkpoint", _GPU, estimate_s=40),
    _tests("comm", ["test_gpu", "test_nccl_gpu"], estimate_s=40),
    _tests("comm-two-ranks", ["test_two_ranks_gpu"], estimate_s=40),
    _tests("health", ["test_checks_gpu"], estimate_s=40),
    _tests("elastic", _GPU, estimate_s=80),
    _tests("testing", ["test_accelerator_contract"], estimate_s=30),
    _bars("optim", ["agd-bandwidth-gpu", "lamb-bandwidth-gpu",
                    "host-1000-tensors-gpu"], estimate_s=35),
    _bars("kernels-norms", [f"{name}-bandwidth-gpu" for name in _NORMS], estimate_s=25),
    _bars("kernels-ops", [f"{name}-bandwidth-gpu" for name in _OTHERS], estimate_s=25),
    _bars("kernels-host", ["host-forward-gpu", "host-backward-gpu"], estimate_s=20),
    _bars("kernels-attention", ["attention-causal-gpu", "attention-window-gpu"],
          estimate_s=35),
    _bars("kernels-head", ["linear-cross-entropy-gpu"], estimate_s=20),
    _bars("memory-calls", ["driver-calls-gpu"], estimate_s=20),
    _bars("memory-contents", ["contents-gpu"], estimate_s=30),
    _bars("memory-stitched", ["stitched-kernels-gpu"], estimate_s=25),
    _bars("checkpoint-stall", ["stall-10gb-gpu"], estimate_s=40),
    _bars("checkpoint-overlap", ["overlap-gpu"], estimate_s=40),
    _bars("comm", ["gpu-overhead"], estimate_s=25),
    _bars("drivetrain", ["versions-without-torch"], estimate_s=10),
)  # fmt: skip
"""What fits nine minutes, without Inductor."""

SECOND = (
    _bars("drivetrain-main-job", ["main-job-gpu"], estimate_s=210),
    _tests("kernels-select", ["test_select_gpu"], estimate_s=60),
    _tests("core-compile", _GPU, estimate_s=90, workers=3,
           select="(contract and compile) or trains"),
    _tests("kernels-float32", ["test_attention_gpu"], estimate_s=120, workers=8,
           select="float32"),
    _bars("kernels-norm-peers", ["rms_norm-peers-gpu", "add_rms_norm-peers-gpu",
                                 "layer_norm-peers-gpu"], estimate_s=60),
    _tests("search-whole", _GPU, estimate_s=180, select="search_runs"),
    _bars("kernels-peers", ["rope-peers-gpu", "swiglu-peers-gpu", "geglu-peers-gpu",
                            "dropout_add_rms_norm-peers-gpu", "cross_entropy-peers-gpu",
                            "linear-cross-entropy-peers-gpu"], estimate_s=120),
    _bars("memory-training", ["training-gpu"], estimate_s=180),
    _bars("kernels-llama", ["llama-1b-tokens-gpu", "llama-1b-mfu-gpu"], estimate_s=240),
    _bars("memory-sleep", ["sleep-gpu", "sharing-gpu", "pools-gpu", "trees-gpu"],
          estimate_s=100),
    _bars("memory-models", ["models-gpu"], estimate_s=120),
    _bars("memory-training-others", ["training-others-gpu"], estimate_s=300),
)  # fmt: skip
"""What compiles long, or takes long: for a second call."""

_SETS = {"first": FIRST, "second": SECOND}
_NEW_S = 30.0
# Packages of which nothing runs on a GPU.
_WITHOUT = {"cloud", "fabric", "horovod", "parallel"}


def whole(folders: Mapping[str, Path], estimate_s: float | None = None) -> list[Row]:
    """Returns rows for all GPU tests and all bars of packages, by their folders."""
    found = []
    for name, folder in folders.items():
        if files := _marked(folder / "tests"):
            row = Row(name=f"tests-{name}", kind="tests", package=name,
                      arguments=files, estimate_s=estimate_s)  # fmt: skip
            found.append(row)
    for name, folder in folders.items():
        if (folder / "benchmarks" / "bars.py").is_file():
            row = Row(name=f"bars-{name}", kind="bars", package=name,
                      estimate_s=estimate_s)  # fmt: skip
            found.append(row)
    return found


def _marked(folder: Path) -> tuple[str, ...]:
    """Returns the files of tests that need a GPU: to collect the others takes minutes."""
    files = sorted(folder.rglob("test_*.py"))
    marks = ("mark.gpu", "mark.multigpu")
    texts = ((str(file), file.read_text("utf-8")) for file in files)
    return tuple(file for file, text in texts if any(mark in text for mark in marks))


def choose(names: Sequence[str], folders: Mapping[str, Path]) -> list[Row]:
    """Returns rows of packages by their names, or by `first` and `second`, in order.

    A package that has no rows yet is in `first` with all that it has.

    Raises:
        ValueError: There is no row of a name.
    """
    listed = _WITHOUT | {row.package for rows in _SETS.values() for row in rows}
    new = {name: path for name, path in folders.items() if name not in listed}
    sets = {**_SETS, "first": (*FIRST, *whole(new, _NEW_S))}
    known = {row.name: row for rows in sets.values() for row in rows}
    wanted: set[str] = set()
    for name in names:
        if name not in known and name not in sets:
            message = f"no row {name!r}; there are {', '.join([*sets, *known])}"
            raise ValueError(message)
        wanted |= {row.name for row in sets[name]} if name in sets else {name}
    rows = [row for name, row in known.items() if name in wanted]
    return [row for row in rows if row.package in folders]


def command_of(row: Row, root: Path, junit: Path, *, quick: bool) -> list[str]:
    """Returns the command line of a row; tests leave their counts in a file."""
    if row.kind == "bars":
        script = root / "packages" / row.package / "benchmarks" / "bars.py"
        only = [word for name in row.arguments for word in ("--only", name)]
        return [sys.executable, str(script), "--json", *(["--quick"] * quick), *only]
    command = [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib"]
    command += ["-m", "gpu or multigpu", f"--junitxml={junit}"]
    # Where a test hangs is told, and its row's limit ends it.
    longest_s = _LONGEST_S if row.limit_s is None else 0.8 * row.limit_s
    command += ["-o", f"faulthandler_timeout={longest_s:g}"]
    if row.limit_s is not None:
        command += ["-o", "faulthandler_exit_on_timeout=false"]
    return [*command, *row.arguments]
