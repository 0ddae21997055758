"""WSAM as torch's tools see it: an optimizer that is saved whole and resumes exactly."""

import copy
import io
import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from drivetrain_optim import AGD
from drivetrain_optim.wsam._wsam import WSAM

BASES = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "plain sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02, amsgrad=True),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "agd": lambda p: AGD(p, lr=0.01),
}
MODES = [
    {},
    {"decouple": False, "every_k": 3, "max_grad_norm": 0.3},
    {"adaptive": True, "every_k": 2, "rho": 0.2, "gamma": 0.7, "eps": 1e-9},
]


def start(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)
    ).to(dtype)


def train(model, wsam, steps):
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(8, 3, generator=generator).to(next(model.parameters()).dtype)
        wsam.step(lambda x=x: model(x).square().mean().backward())


def through_a_file(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def same(one, other):
    return all(map(torch.equal, one.parameters(), other.parameters()))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_steps", [0, 3, 4])
def test_wsam_resumes_with_the_same_bits(base, mode, dtype, num_steps):
    model = start(dtype)
    wsam = WSAM(BASES[base](model.parameters()), model=model, **mode)
    train(model, wsam, range(num_steps))
    saved = through_a_file({"model": model.state_dict(), "optim": wsam.state_dict()})
    train(model, wsam, range(num_steps, num_steps + 4))

    again = start(dtype)
    again.load_state_dict(saved["model"])
    resumed = WSAM(BASES[base](again.parameters()), model=again)
    resumed.load_state_dict(saved["optim"])
    train(again, resumed, range(num_steps, num_steps + 4))
    assert same(model, again)


def helpers_round_trip(model, wsam, other_model, other, options=None):
    """As users of torch.distributed.checkpoint do; loads in place, as dcp.load does."""
    # With gradients, the helpers would create nothing to load into.
    wsam.zero_grad()
    saved = get_optimizer_state_dict(model, wsam, options=options)
    saved = copy.deepcopy(saved)
    wanted = get_optimizer_state_dict(other_model, other, options=options)
    assert dcp.state_dict_loader is not None

    def keys(tree, path=()):
        if not isinstance(tree, dict | list):
            return {path}
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return set().union(*(keys(v, (*path, k)) for k, v in items))

    assert keys(wanted) <= keys(saved), "dcp.load asks for what is in `wanted`"
    assert {k for k in keys(saved) if "wsam_direction" in k} <= keys(wanted)
    set_optimizer_state_dict(
        other_model, other, optim_state_dict=saved, options=options
    )


@pytest.mark.parametrize("base", ["sgd", "adamw"])
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("flatten", [False, True])
def test_wsam_goes_through_the_checkpoint_helpers(base, mode, flatten):
    model, again = start(), start()
    wsam = WSAM(BASES[base](model.parameters()), model=model, **mode)
    resumed = WSAM(BASES[base](again.parameters()), model=again, **mode)
    train(model, wsam, range(4))
    untouched = copy.deepcopy(again)
    options = StateDictOptions(flatten_optimizer_state_dict=flatten)
    helpers_round_trip(model, wsam, again, resumed, options)
    assert same(again, untouched), "making state must not step"
    again.load_state_dict(model.state_dict())
    train(model, wsam, range(4, 9))
    train(again, resumed, range(4, 9))
    assert same(model, again)


def test_wsam_checkpoint_of_a_fresh_optimizer_has_no_step_in_it():
    model, again = start(), start()
    wsam = WSAM(BASES["sgd"](model.parameters()), every_k=3)
    state = get_optimizer_state_dict(model, wsam)
    assert state["param_groups"][0]["wsam_step"] == 0
    assert wsam.needs_second_pass
    train(model, wsam, range(3))
    train(again, WSAM(BASES["sgd"](again.parameters()), every_k=3), range(3))
    assert same(model, again)


def test_wsam_groups_are_the_base_s_own_also_after_loading():
    model = start()
    wsam = WSAM(BASES["sgd"](model.parameters()))
    train(model, wsam, range(2))
    wsam.load_state_dict(wsam.state_dict())
    extra = torch.nn.Parameter(torch.ones(2))
    wsam.add_param_group({"params": [extra], "rho": 0.5})
    assert wsam.param_groups is wsam.base.param_groups
    assert wsam.state is wsam.base.state
    assert isinstance(wsam, torch.optim.Optimizer)
    group = wsam.param_groups[1]
    assert (group["rho"], group["gamma"], group["momentum"]) == (0.5, 0.9, 0.9)
    assert group["wsam_step"] == 2
    for each in wsam.param_groups:
        each["lr"] = 0.0
    before = copy.deepcopy(model)
    train(model, wsam, range(1))
    assert same(model, before), "the rate must reach the base"


def test_wsam_group_added_to_the_base_is_adopted():
    model = start()
    wsam = WSAM(BASES["sgd"](model.parameters()), rho=0.3, every_k=2)
    train(model, wsam, range(1))
    wsam.base.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
    train(model, wsam, range(1, 4))
    one, two = wsam.state_dict()["param_groups"]
    one.pop("params"), two.pop("params")
    assert one == two


def test_wsam_base_that_was_loaded_alone_keeps_the_options_given():
    model = start()
    base = BASES["sgd"](model.parameters())
    state = base.state_dict()
    wsam = WSAM(base, rho=0.3, every_k=2)
    base.load_state_dict(state)
    assert "rho" not in wsam.param_groups[0]
    train(model, wsam, range(1))
    group = wsam.param_groups[0]
    assert (group["rho"], group["wsam_every_k"], group["wsam_step"]) == (0.3, 2, 1)


def test_wsam_loading_replaces_options_and_drops_a_pass():
    model = start()
    wsam = WSAM(BASES["sgd"](model.parameters()), every_k=3, gamma=0.5)
    saved = copy.deepcopy(wsam.state_dict())
    other = WSAM(BASES["sgd"](model.parameters()))
    model(torch.ones(1, 3)).sum().backward()
    with other.perturb():
        model(torch.ones(1, 3)).sum().backward()
    other.load_state_dict(saved)
    group = other.param_groups[0]
    assert (group["wsam_every_k"], group["gamma"]) == (3, 0.5)
    assert other._pending is None


def test_wsam_state_dict_hooks_run():
    model = start()
    wsam = WSAM(BASES["sgd"](model.parameters()))
    seen = []
    wsam.register_state_dict_pre_hook(lambda o: seen.append(o))
    wsam.register_state_dict_post_hook(lambda o, s: {**s, "extra": 1})
    wsam.register_load_state_dict_pre_hook(
        lambda o, s: {k: v for k, v in s.items() if k != "extra"}
    )
    wsam.register_load_state_dict_post_hook(lambda o: seen.append("loaded"))
    state = wsam.state_dict()
    assert state["extra"] == 1
    wsam.load_state_dict(state)
    assert seen == [wsam, "loaded"]


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_wsam_copies_go_on_alike(copied):
    model = start()
    wsam = WSAM(BASES["adamw"](model.parameters()), model=model, every_k=2)
    train(model, wsam, range(3))
    again, resumed = copied((model, wsam))
    assert resumed.param_groups is resumed.base.param_groups
    assert resumed.param_groups[0]["params"][0] is next(again.parameters())
    train(model, wsam, range(3, 6))
    train(again, resumed, range(3, 6))
    assert same(model, again)


def test_wsam_shows_its_options():
    text = repr(WSAM(BASES["sgd"](start().parameters()), rho=0.123))
    assert text.startswith("WSAM (")
    assert "rho: 0.123" in text
    assert "wsam_base: SGD" in text


def test_wsam_holds_no_reference_that_keeps_torch_from_swapping_gradients():
    model = torch.nn.Linear(3, 2)
    wsam = WSAM(torch.optim.SGD(model.parameters(), lr=0.1))

    def closure():
        loss = model(torch.ones(1, 3, dtype=model.weight.dtype)).square().sum()
        loss.backward()
        return loss

    wsam.step(closure)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.double()  # as it always is for parameters that are DTensors
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    wsam.zero_grad()
    wsam.step(closure)
    assert model.weight.dtype is torch.float64
