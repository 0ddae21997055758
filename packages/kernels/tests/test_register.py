"""The package as optimizations: configuration, and what applying one does."""

import subprocess
import sys
from importlib.metadata import entry_points
from types import SimpleNamespace

import pytest
import torch
from selector_models import Blocks
from torch import nn

from drivetrain_core import Choice, Numerics, Phase, PlanError, Slot, accelerate
from drivetrain_kernels._explain import load_op
from drivetrain_kernels._register_kernels import KernelsOptimization
from drivetrain_kernels._register_select import CompileSelectOptimization
from drivetrain_kernels.replacement._identify import is_standin
from drivetrain_kernels.selector import _candidates
from drivetrain_testing import check_optimization

LEAVE = dict.fromkeys(
    ("rms_norm", "layer_norm", "swiglu", "geglu", "cross_entropy"), "leave"
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DRIVETRAIN_CACHE_DIR", str(tmp_path))


def state_of(module, loader=(), *choices):
    return SimpleNamespace(
        module=module,
        loader=loader,
        device=torch.device("cpu"),
        choices=choices,
        context=SimpleNamespace(device=SimpleNamespace(graphs=False)),
    )


@pytest.mark.parametrize(
    ("kind", "slot", "phase"),
    [
        (KernelsOptimization, Slot.KERNELS, Phase.MODEL_SWAP),
        (CompileSelectOptimization, Slot.COMPILE, Phase.COMPILE),
    ],
)
def test_optimization_has_its_slot_and_is_found(kind, slot, phase):
    assert (kind.slot, kind.phase) == (slot, phase)
    found = list(entry_points(group="drivetrain.optimizations", name=kind.name))
    assert [point.load() for point in found] == [kind]


def test_kernels_keep_the_contract():
    config = {**LEAVE, "layer_norm": "reference"}
    check_optimization(KernelsOptimization(), config=config)


# Dynamo looks at the gradient of each input, and torch warns of those that have none.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_selector_keeps_the_contract(monkeypatch):
    quick = torch._dynamo.lookup_backend("aot_eager")
    monkeypatch.setattr(_candidates, "_backend", lambda candidate: quick)
    config = {"choice": "block", "budget_s": 60.0}
    check_optimization(CompileSelectOptimization(), config=config)


def test_registering_does_not_import_torch():
    code = (
        "import sys, drivetrain_kernels._register_kernels, "
        "drivetrain_kernels._register_select; sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_kernels_are_replaced_as_the_plan_says():
    model = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.RMSNorm(4, eps=1e-6))
    optimization = KernelsOptimization()
    config = optimization.normalize({**LEAVE, "rms_norm": "reference"})
    optimization.apply(state_of(model), config)
    assert [is_standin(vars(m).get("forward")) for m in model] == [False, True]
    optimization.apply(state_of(model), optimization.normalize(LEAVE))


def test_kernels_by_triton_need_a_device_for_it(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    optimization = KernelsOptimization()
    context = SimpleNamespace(device=SimpleNamespace(type="cpu", triton=False))
    assert list(optimization.configs(context)) == []
    answer = optimization.check(
        context, optimization.normalize({"swiglu": "triton"}), ()
    )
    assert answer.because == (
        "the implementation triton of swiglu needs a CUDA tensor, got cpu"
    )


def test_automatic_choice_is_written_into_the_state():
    optimization = CompileSelectOptimization()
    config = optimization.normalize({"budget_s": 1.0})
    batch = (torch.ones(2, 8), torch.zeros(2))
    other = Choice("precision", {})
    state = state_of(Blocks(), [batch], other, Choice("compile_select", config))
    optimization.apply(state, config)
    assert state.choices == (
        other,
        Choice("compile_select", {"choice": "eager", "budget_s": 1.0}),
    )


def test_plan_of_the_program_names_what_was_chosen():
    data = [(torch.ones(2, 8), torch.zeros(2, 1))]
    accelerated = accelerate(
        nn.Sequential(nn.Linear(8, 1)),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        data,
        lambda output, batch: nn.functional.mse_loss(output, batch[1]),
        strategy=[("compile_select", {"budget_s": 1.0})],
        progress=False,
    )
    (choice,) = accelerated.plan.choices
    assert choice.config["choice"] == "eager"


def test_options_name_the_implementations_of_the_ops():
    for kind, option in KernelsOptimization.options.items():
        names = {one.name for one in load_op(kind).implementations}
        assert set(option.choices) == names | {"auto", "leave"}


def test_automatic_kinds_stay_where_nothing_is_gained():
    optimization = KernelsOptimization()
    model = nn.Sequential(nn.RMSNorm(8, eps=1e-6), nn.LayerNorm(8))
    state = state_of(model, [])
    optimization.apply(state, optimization.normalize({"rms_norm": "reference"}))
    assert [is_standin(vars(m).get("forward")) for m in model] == [True, False]


def test_data_that_passes_once_needs_a_named_choice():
    optimization = CompileSelectOptimization()
    state = state_of(Blocks(), iter([torch.ones(2, 8)]))
    with pytest.raises(PlanError, match=r"passed over only once.*name a choice"):
        optimization.apply(state, optimization.normalize(None))
    optimization.apply(state, optimization.normalize("eager"))
    assert optimization.numerics({"choice": "eager"}) == Numerics.EXACT


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        (KernelsOptimization, {"rms_norm": "cuda"}, "option rms_norm must be one of"),
        (KernelsOptimization, {"rmsnorm": "auto"}, "nearest: rms_norm"),
        (CompileSelectOptimization, "fastest", "option choice must be one of"),
        (CompileSelectOptimization, {"budget_s": 0.0}, "must be at least 1"),
    ],
)
def test_configuration_that_is_not_allowed_is_a_plan_error(kind, config, message):
    with pytest.raises(PlanError, match=message):
        kind().normalize(config)
