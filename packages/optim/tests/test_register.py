"""Each optimizer as an optimization: its configuration, and what it does."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest
import torch

from drivetrain_core import BaseOptimization, Numerics, Phase, PlanError, Slot
from drivetrain_optim import AGD, LAMB, WSAM
from drivetrain_optim._register import (
    AgdOptimization,
    LambOptimization,
    WsamOptimization,
)
from drivetrain_testing import check_optimization

EVERY = [AgdOptimization, LambOptimization, WsamOptimization]

DEFAULTS = {
    "lr": None,
    "beta1": 0.9,
    "beta2": 0.999,
    "delta": 1e-5,
    "weight_decay": None,
    "decay": "decoupled",
    "amsgrad": False,
    "clip": None,
    "max_grad_norm": None,
    "master_weights": False,
    "stochastic_rounding": False,
}


class State:
    """Stands for the program under construction, and builds as it does."""

    def __init__(self, *groups):
        self.groups = list(groups)
        self.optimizer = None

    def use_optimizer(self, factory):
        self.optimizer = factory(self.groups)


def applied(config, *groups, kind=AgdOptimization):
    state = State(*groups)
    optimization = kind()
    optimization.apply(state, optimization.normalize(config))
    return state.optimizer


def group(**options):
    return {"params": [torch.nn.Parameter(torch.zeros(2))], **options}


def test_agd_optimization_is_another_algorithm_in_the_optimizer_slot():
    optimization = AgdOptimization()
    assert isinstance(optimization, BaseOptimization)
    assert (optimization.name, optimization.slot) == ("agd", Slot.OPTIMIZER)
    assert optimization.phase == Phase.OPTIMIZER
    assert optimization.conflicts == ("optimizer_impl",)
    assert optimization.numerics({}) == Numerics.CHANGES_ALGORITHM
    assert list(optimization.configs(None)) == [DEFAULTS]


@pytest.mark.parametrize("kind", EVERY)
def test_optimization_keeps_the_contract(kind):
    check_optimization(kind())


@pytest.mark.parametrize("kind", EVERY)
def test_optimization_is_found_by_its_entry_point(kind):
    (found,) = entry_points(group="drivetrain.optimizations", name=kind.name)
    assert found.load() is kind
    (command,) = entry_points(group="drivetrain.commands", name="optim")
    assert command.load().__module__ == "drivetrain_optim.cli"


def test_agd_optimization_does_not_import_torch():
    code = "import sys, drivetrain_optim._register; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_apply_keeps_the_rates_and_decays_of_the_user():
    optimizer = applied(
        None, group(lr=0.25, weight_decay=0.5), group(lr=0.125), group()
    )
    assert isinstance(optimizer, AGD)
    kept = [(g["lr"], g["weight_decay"]) for g in optimizer.param_groups]
    assert kept == [(0.25, 0.5), (0.125, 0.0), (0.001, 0.0)]


def test_apply_sets_what_the_plan_says_on_every_group():
    config = {
        "lr": 0.5,
        "weight_decay": 0.25,
        "delta": "transformer",
        "beta1": 0.5,
        "decay": "fixed",
        "amsgrad": True,
        "clip": 5,
    }
    optimizer = applied(config, group(lr=0.25, weight_decay=0.5), group())
    for found in optimizer.param_groups:
        assert found["lr"] == 0.5
        assert found["weight_decay"] == 0.25
        assert found["delta"] == 1e-14
        assert found["betas"] == (0.5, 0.999)
        assert found["decay"] == "fixed"
        assert found["amsgrad"] is True
        assert found["clip"] == 5


@pytest.mark.parametrize("preset", ["paper", "nvlamb", "timm"])
def test_lamb_preset_of_the_plan_is_that_of_the_class(preset):
    optimizer = applied({"preset": preset}, group(lr=0.25), kind=LambOptimization)
    assert isinstance(optimizer, LAMB)
    expected = getattr(LAMB, preset)([torch.zeros(1)], lr=0.25).param_groups[0]
    (found,) = optimizer.param_groups
    assert {**found, "params": 0} == {**expected, "params": 0}


def test_lamb_options_of_the_plan_win_over_its_preset():
    config = {"preset": "timm", "max_grad_norm": 3.0, "eps": 1e-8, "beta1": 0.5}
    (found,) = applied(config, group(), kind=LambOptimization).param_groups
    assert (found["max_grad_norm"], found["eps"]) == (3.0, 1e-8)
    assert (found["adapt"], found["betas"]) == ("decayed", (0.5, 0.999))


def test_wsam_is_put_around_the_optimizer_of_the_user():
    class Wrapped:
        module = torch.nn.Linear(2, 1)

        def wrap_optimizer(self, wrapper):
            self.optimizer = wrapper(torch.optim.SGD(self.module.parameters(), lr=0.1))

    state = Wrapped()
    optimization = WsamOptimization()
    optimization.apply(state, optimization.normalize({"gamma": 0.5, "every_k": 2}))
    assert isinstance(state.optimizer, WSAM)
    assert isinstance(state.optimizer.base, torch.optim.SGD)
    (found,) = state.optimizer.param_groups
    assert (found["gamma"], found["lr"]) == (0.5, 0.1)


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        (LambOptimization, {"preset": "apex"}, "option preset must be one of"),
        (LambOptimization, {"eps": 0.0}, "eps must be a finite number > 0"),
        (WsamOptimization, {"gamma": 1.0}, r"gamma must be .* got 1\.0"),
        (WsamOptimization, {"every_k": 0}, "every_k must be"),
    ],
)
def test_configuration_of_others_that_is_not_allowed_is_refused(kind, config, message):
    with pytest.raises(PlanError, match=f"^{kind.name}: .*{message}"):
        kind().normalize(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"dleta": 1}, "unknown option 'dleta'; nearest: delta"),
        ({"delta": "transformr"}, "got 'transformr'; nearest: transformer"),
        ({"delta": 0}, "delta must be a finite number > 0 .* got 0"),
        (
            {"beta1": 1.0},
            r"betas must be two numbers in \[0, 1\), got \(1\.0, 0\.999\)",
        ),
        ({"lr": -1.0}, r"lr must be a finite number >= 0, got -1\.0"),
        ({"lr": "fast"}, "option lr must be of type float, got 'fast'"),
        ({"clip": 0.0}, r"clip must be .* got 0\.0"),
        ({"weight_decay": float("nan")}, "weight_decay must be .* got nan"),
        ({"decay": "copled"}, "decay must be one of"),
        (3, "must be a mapping of options, got 3"),
    ],
    ids=str,
)
def test_configuration_that_is_not_allowed_is_a_plan_error(config, message):
    with pytest.raises(PlanError, match=f"^agd: .*{message}") as caught:
        AgdOptimization().normalize(config)
    assert caught.value.code == "CONFIG"
