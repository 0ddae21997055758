"""Rows of torch's own tests of optimizers, and the optimizers that are run through them.

A row is one behaviour that torch asks of each optimizer in a test that takes an
`OptimizerInfo`, written anew as a function of a `Subject` (how an optimizer is made and
stepped) and a `Way` (loop, foreach, fused). It returns if the optimizer does as torch
asks, and raises `AssertionError` if not. A row that names a subject in `refused` must
end with an error of ours for it, and says which optimizers of torch refuse the same.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch

from drivetrain_core import DrivetrainError
from drivetrain_optim import AGD, LAMB, WSAM

WSAM_OPTIONS = {"rho", "gamma", "adaptive", "decouple", "every_k", "max_grad_norm"}


@dataclasses.dataclass(frozen=True)
class Way:
    """How a step is carried out, and where.

    Args:
        name: "loop", "foreach", "fused" or "capturable".
        options: What asks for it.
        device: The type of the device.
    """

    name: str
    options: Mapping[str, Any]
    device: str = "cpu"


def ways(device: str = "cpu") -> list[Way]:
    """Returns the ways of a device."""
    flags = {
        "loop": {"foreach": False, "fused": False},
        "foreach": {"foreach": True},
        "fused": {"fused": True},
    }
    return [Way(name, options, device) for name, options in flags.items()]


@dataclasses.dataclass(frozen=True)
class Subject:
    """An optimizer as the rows see it.

    Args:
        name: Its name in the table.
        build: Makes it from parameters and options.
        inputs: The options that rows go through, as torch's `optim_inputs_func`.
        second_pass: Whether a step evaluates the loss twice, and so needs a closure.
        keeps_moments: Whether one step leaves a state, with its count in `step`.
    """

    name: str
    build: Callable[..., torch.optim.Optimizer]
    inputs: tuple[Mapping[str, Any], ...]
    second_pass: bool = False
    keeps_moments: bool = True

    def step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any]) -> Any:
        """Steps once, with what the closure makes of the gradients."""
        if self.second_pass:
            return optimizer.step(closure)
        loss = closure()
        optimizer.step()
        return loss

    def all_inputs(self, way: Way) -> list[dict[str, Any]]:
        """Returns each of the options with what asks for the way."""
        return [{**options, **way.options} for options in self.inputs]


def wsam_over(base: Callable[..., torch.optim.Optimizer]) -> Callable[..., WSAM]:
    """Returns what makes WSAM over a base from options of both."""

    def build(params: Any, **options: Any) -> WSAM:
        own = {name: options.pop(name) for name in WSAM_OPTIONS & options.keys()}
        return WSAM(base(params, **options), **own)

    return build


_SHARED: tuple[dict[str, Any], ...] = (
    {},
    {"lr": 0.01},
    {"weight_decay": 0.1},
    {"weight_decay": 0.1, "maximize": True},
)
_OF_WSAM: tuple[dict[str, Any], ...] = (
    *_SHARED[:-1],
    # Sharpness has nine times the weight of the loss: at a small radius the loss leads.
    {**_SHARED[-1], "rho": 0.01},
    {"gamma": 0.5, "decouple": False},
    {"rho": 0.1, "adaptive": True},
    {"every_k": 2},
    {"max_grad_norm": 1.0},
)
SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject(
            "AGD",
            AGD,
            (
                *_SHARED,
                {"weight_decay": 0.1, "amsgrad": True},
                {"weight_decay": 0.1, "decay": "coupled"},
                {"clip": 5.0},
                {"max_grad_norm": 1.0},
            ),
        ),
        Subject(
            "LAMB",
            LAMB,
            (
                *_SHARED,
                {"adapt": "decayed", "weight_decay": 0.0},
                {"bias_correction": False, "decay": "decoupled"},
                {"trust_clip": (0.0, 1.0)},
                {"max_grad_norm": 1.0},
            ),
        ),
        Subject("WSAM over AGD", wsam_over(AGD), _OF_WSAM, second_pass=True),
        Subject(
            "WSAM over SGD",
            wsam_over(torch.optim.SGD),
            (*_OF_WSAM, {"momentum": 0.9, "nesterov": True}),
            second_pass=True,
            keeps_moments=False,
        ),
    )
}
"""What is run through the rows, by name."""

EVERY = frozenset(SUBJECTS)
OURS_ALONE = frozenset({"AGD", "LAMB"})


@dataclasses.dataclass(frozen=True)
class Row:
    """One behaviour.

    Args:
        name: Torch's test, and the case where it has several.
        asks: What torch asks there.
        run: Tries it.
        refused: The subjects that refuse it.
        left_out: The subjects that torch would leave out.
        as_in_torch: Which optimizers of torch refuse it, or are left out, and why.
        where: "" for any device, or the marker of what it needs: "gpu", "multigpu".
        slow: Whether it takes about a second or more.
        once: Whether it is the same for each way, and is run for the first alone.
    """

    name: str
    asks: str
    run: Callable[[Subject, Way], None]
    refused: frozenset[str] = frozenset()
    left_out: frozenset[str] = frozenset()
    as_in_torch: str = ""
    where: str = ""
    slow: bool = False
    once: bool = False

    def verdict(self, subject: Subject, way: Way) -> str:
        """Returns "as torch", or "refused: " and the reason.

        Raises:
            AssertionError: The optimizer does something else, or does not refuse what
                it should.
        """
        here = nullcontext() if way.device == "cpu" else torch.device(way.device)
        try:
            with here:
                self.run(subject, way)
        except DrivetrainError as error:
            if subject.name not in self.refused:
                raise
            return f"refused: {error}"
        assert subject.name not in self.refused, "it must be refused, but was not"
        return "as torch"


ROWS: dict[str, Row] = {}
"""The rows by name, in the order of torch's file."""


def row(
    name: str, asks: str, **about: Any
) -> Callable[[Callable[[Subject, Way], None]], Callable[[Subject, Way], None]]:
    """Returns a decorator that puts a function into `ROWS`."""

    def put(run: Callable[[Subject, Way], None]) -> Callable[[Subject, Way], None]:
        # A file that is imported under a second name says the same once more.
        known = ROWS.get(name)
        assert known is None or known.run.__qualname__ == run.__qualname__, name
        ROWS[name] = Row(name, asks, run, **about)
        return run

    return put


def all_rows() -> dict[str, Row]:
    """Returns the rows of all files."""
    for part in ("errors", "steps", "ways", "amp", "state", "hooks", "compile", "gpu"):
        importlib.import_module(f"torch_behaviour_{part}")
    return ROWS


class Regression:
    """Torch's small problem: a matrix times a vector, plus a bias, squared.

    Args:
        dtype: That of weights and data.
        contiguous: Whether the parameters are dense in memory.
    """

    def __init__(
        self, dtype: torch.dtype = torch.float32, *, contiguous: bool = True
    ) -> None:
        shapes = ((10, 5), (10,))
        if contiguous:
            values = [torch.randn(shape, dtype=dtype) for shape in shapes]
        else:
            values = [torch.randn((*s, 2), dtype=dtype)[..., 0] for s in shapes]
        self.weight, self.bias = map(torch.nn.Parameter, values)
        self.params = [self.weight, self.bias]
        self.data = torch.randn(5, dtype=dtype)

    def loss(self) -> torch.Tensor:
        """Returns the loss."""
        return (self.weight.mv(self.data) + self.bias).square().sum()

    def closure(self, optimizer: torch.optim.Optimizer) -> Callable[[], torch.Tensor]:
        """Returns a function that computes the gradients and returns the loss."""

        def compute() -> torch.Tensor:
            optimizer.zero_grad()
            loss = self.loss()
            loss.backward()
            return loss

        return compute

    def twin(self) -> Regression:
        """Returns the same problem with other tensors."""
        twin = Regression.__new__(Regression)
        twin.weight, twin.bias = (
            torch.nn.Parameter(p.detach().clone()) for p in self.params
        )
        twin.params, twin.data = [twin.weight, twin.bias], self.data
        return twin

    def moves_as_asked(self, before: float, options: Mapping[str, Any]) -> None:
        """Asserts that the loss went down, or up where it is maximized."""
        after = self.loss().item()
        assert after > before if options.get("maximize") else after < before, options


def same(actual: Any, expected: Any, **tolerances: float) -> None:
    """Asserts that numbers, tensors, or containers of them, are as close as torch asks."""
    if isinstance(expected, Mapping):
        assert actual.keys() == expected.keys()
        for key in expected:
            same(actual[key], expected[key], **tolerances)
    elif isinstance(expected, list | tuple):
        for mine, theirs in zip(actual, expected, strict=True):
            same(mine, theirs, **tolerances)
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected, equal_nan=True, **tolerances)
    else:
        assert actual == expected
