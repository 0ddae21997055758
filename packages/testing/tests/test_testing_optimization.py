"""The contract of an optimization is proven on ones that break it."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from drivetrain_core import BaseOptimization, Ok, Phase, Slot
from drivetrain_core._model.forward import wrap_forward
from drivetrain_testing import check_optimization


class Suspect(BaseOptimization):
    """Does nothing, until a test makes it break a clause."""

    name, slot, phase = "suspect", Slot.KERNELS, Phase.MODEL_SWAP

    def apply(self, state, config):
        """Changes nothing."""


def rename(state):
    head = state.module.head
    head.other = head.weight
    del head.weight
    head.forward = lambda x: nn.functional.linear(x, head.other, head.bias)


def exchange(state):
    head = state.module.head
    head.weight = nn.Parameter(head.weight.detach().clone())


def freeze(state):
    state.module.head.weight.requires_grad_(False)


def scale(state):
    wrap_forward(state.module, lambda f: lambda self, x: f(self, x) * 1.01)


def slow_down(state):
    state.set_optimizer_options(lr=5e-4)


def widen(state):
    torch.set_default_dtype(torch.float64)


@pytest.mark.parametrize(
    ("phase", "act", "rule"),
    [
        (Phase.MODEL_SWAP, rename, "keep names and global shapes"),
        (Phase.RUNTIME, exchange, "do not train: head.weight"),
        (Phase.MODEL_SWAP, freeze, "get no gradient: head.weight"),
        (Phase.MODEL_SWAP, scale, "changes what is learnt"),
        (Phase.OPTIMIZER, slow_down, "changes what is learnt"),
        (Phase.RUNTIME, widen, "restores the global settings"),
    ],
)
def test_optimization_that_breaks_a_clause_is_caught(monkeypatch, phase, act, rule):
    monkeypatch.setattr(Suspect, "phase", phase)
    monkeypatch.setattr(Suspect, "apply", lambda _, state, config: act(state))
    try:
        with pytest.raises(AssertionError, match=rule):
            check_optimization(Suspect())
    finally:
        torch.set_default_dtype(torch.float32)


def test_optimization_whose_answer_changes_is_caught(monkeypatch):
    number = itertools.count()
    monkeypatch.setattr(Suspect, "check", lambda *_: Ok(str(next(number))))
    with pytest.raises(AssertionError, match="check must return the same"):
        check_optimization(Suspect())


def test_optimization_that_does_nothing_keeps_the_contract():
    check_optimization(Suspect())
