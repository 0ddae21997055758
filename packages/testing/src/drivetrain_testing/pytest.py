"""Fixtures of pytest for packages that change or search training programs.

A `conftest.py` imports the ones that its tests use. They need the extra
`drivetrain-testing[pytest]`.
"""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from drivetrain_core import Plan
from drivetrain_core.extending import (
    SERVICES,
    OptimizerSource,
    build,
    clear_plugin_cache,
    complete,
    forget_loaded,
    read_strategy,
    require_usable,
)
from drivetrain_testing._optimization import toy_context, toy_program
from drivetrain_testing.programs import SCRIPT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from drivetrain_core import Accelerated, Context
    from drivetrain_core.extending import Program

__all__ = [
    "built",
    "context",
    "distribute",
    "pretend_gpus",
    "program",
    "restored",
    "script",
    "wide_terminal",
]


@pytest.fixture(autouse=True)
def restored(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Runs on one thread, and puts threads, precision and the random state back.

    Searches keep their trials in a folder of the test.

    On a busy machine the threads of a tiny model spend their time waiting for each
    other: a test of the language model took 8 s on two of them, and 0.2 s on one.
    """
    cache = tmp_path_factory.mktemp("trials", numbered=True)
    monkeypatch.setenv("DRIVETRAIN_CACHE_DIR", str(cache))
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.set_num_threads(1)
        yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch._dynamo.reset()


@pytest.fixture
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal on which no cell of a table is broken into lines."""
    monkeypatch.setenv("COLUMNS", "500")


@pytest.fixture
def script(tmp_path: Path) -> str:
    """The path of a small training script."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.fixture
def program() -> Program:
    """A small classification program."""
    return toy_program()


@pytest.fixture
def context(program: Program) -> Context:
    """The facts of `program` on this machine."""
    return toy_context(program)


@pytest.fixture
def built(program: Program, context: Context) -> Iterator[Callable[..., Accelerated]]:
    """Builds `program` under a strategy, with fields of it replaced."""
    opened = []

    def make(strategy: Sequence[Any] = (), **fields: Any) -> Accelerated:
        changed = dataclasses.replace(program, **fields)
        model = changed.build_model()
        source = OptimizerSource.of(changed.optimizer, model)
        choices = complete(read_strategy(list(strategy)).choices, context)
        require_usable(choices, context)
        accelerated = build(
            changed, model, source, Plan(choices=choices), context, torch.device("cpu")
        )
        opened.append(accelerated)
        return accelerated

    yield make
    for accelerated in opened:
        accelerated.close()


@pytest.fixture
def pretend_gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SimpleNamespace]:
    """Makes torch tell of GPUs that are not there; their properties may be changed."""

    def pretend(
        name: str = "a card", *, count: int = 1, **known: Any
    ) -> SimpleNamespace:
        facts = {"total_memory": 1 << 34, "major": 9, "minor": 0} | known
        properties = SimpleNamespace(name=name, multi_processor_count=132, **facts)
        answers = {
            "is_available": lambda: True,
            "device_count": lambda: count,
            "get_device_properties": lambda _=0: properties,
            "get_device_name": lambda _=0: properties.name,
            "is_bf16_supported": lambda: True,
        }
        for asked, answer in answers.items():
            monkeypatch.setattr(torch.cuda, asked, answer)
        monkeypatch.setattr(
            torch.accelerator,
            "current_accelerator",
            lambda *_, **__: torch.device("cuda"),
        )
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
        return properties

    return pretend


@pytest.fixture
def distribute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Path]]:
    """Installs a distribution with one module and some entry points."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    forget_loaded()

    def install(
        name: str,
        entries: Sequence[tuple[str, str]],
        *,
        module: str = "",
        code: str = "",
        version: str = "1.0",
        group: str = SERVICES,
    ) -> Path:
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        lines = [f"[{group}]", *(f"{k} = {v}" for k, v in entries)]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        if module:
            (folder / f"{module}.py").write_text(code)
        clear_plugin_cache()
        return folder

    yield install
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(folder)):
            del sys.modules[name]
    forget_loaded()
    clear_plugin_cache()
