"""States and gradients that do not fit their parameters are refused, or made to fit."""

import copy

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.two_tensor import TwoTensor

from drivetrain_optim import (
    AGD,
    LAMB,
    WSAM,
    HyperparameterError,
    StateDictError,
    StepOrderError,
    UnsupportedTensorError,
    explain,
)
from drivetrain_testing import run_ranks

KINDS = pytest.mark.parametrize("kind", [AGD, LAMB])
PATHS = [
    pytest.param({"foreach": False}, id="loop"),
    pytest.param({"foreach": True}, id="foreach"),
    pytest.param({}, id="default"),
]


def stepped(kind, shape=(2, 2), dtype=torch.float32, num_steps=2, **options):
    torch.manual_seed(0)
    param = torch.nn.Parameter(torch.randn(shape).to(dtype))
    optimizer = kind([param], lr=0.01, **options)
    for _ in range(num_steps):
        param.grad = torch.randn(shape).to(dtype)
        optimizer.step()
    return param, optimizer


@KINDS
@pytest.mark.parametrize("path", PATHS)
def test_state_of_another_shape_is_refused_and_nothing_changes(kind, path):
    _, small = stepped(kind)
    _, large = stepped(kind, (64, 64), **path)
    before = copy.deepcopy(large.state_dict())
    small.param_groups[0]["lr"] = 0.7
    with pytest.raises(StateDictError, match=r"exp_avg has shape \(2, 2\)"):
        large.load_state_dict(small.state_dict())
    assert large.param_groups[0]["lr"] == 0.01
    after = large.state_dict()["state"][0]
    assert all(torch.equal(after[k], v) for k, v in before["state"][0].items())


@KINDS
@pytest.mark.parametrize("key", ["step", "exp_avg_sq"])
def test_state_that_is_not_whole_is_refused(kind, key):
    _, optimizer = stepped(kind)
    saved = copy.deepcopy(optimizer.state_dict())
    del saved["state"][0][key]
    saved["param_groups"][0]["lr"] = 0.7
    with pytest.raises(StateDictError, match=rf"parameter 0\.0 has no {key}"):
        optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] == 0.01


@KINDS
def test_state_laid_out_otherwise_than_the_weight_is_laid_out_anew(kind):
    results = []
    for path in ({"foreach": True}, {"fused": True}):
        param, optimizer = stepped(kind, (4, 3, 5, 5), **path)
        param.data = param.data.contiguous(memory_format=torch.channels_last)
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            param.grad = torch.randn(param.shape, generator=generator)
            optimizer.step()
        results.append(param.detach().clone())
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)


@KINDS
def test_wrapper_parameters_are_stepped_by_torch(kind):
    plain = [torch.nn.Parameter(torch.ones(4, 4)) for _ in range(2)]
    both = torch.nn.Parameter(TwoTensor(torch.ones(4, 4), torch.ones(4, 4)))
    optimizer = kind([both], lr=0.1)
    others = kind(plain[:1], lr=0.1, foreach=True)
    for _ in range(3):
        both.grad = TwoTensor(torch.ones(4, 4), torch.ones(4, 4))
        plain[0].grad = torch.ones(4, 4)
        optimizer.step()
        others.step()
    assert explain(optimizer).uses[0].path == "foreach"
    torch.testing.assert_close(both.detach().a, plain[0].detach())


@KINDS
@pytest.mark.parametrize("name", ["exp_avg", "exp_avg_sq"])
def test_one_moment_of_another_dtype_is_stepped_rightly(kind, name):
    results = []
    for path in ({"foreach": False}, {}):
        param, optimizer = stepped(kind, (7, 9), **path)
        state = optimizer.state[param]
        state[name] = state[name].double()
        param.grad = torch.ones(7, 9)
        optimizer.step()
        optimizer.step()
        results.append(param.detach().clone())
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


@KINDS
def test_moment_elsewhere_is_an_error_that_names_it(kind):
    param, optimizer = stepped(kind)
    optimizer.state[param]["exp_avg"] = torch.empty(2, 2, device="meta")
    with pytest.raises(StateDictError, match=r"parameter 0\.0 .* exp_avg is on meta"):
        optimizer.step()
    optimizer.state[param]["exp_avg"] = None
    with pytest.raises(StateDictError, match="exp_avg is no tensor but NoneType"):
        optimizer.step()


@KINDS
def test_moment_without_memory_of_its_own_gets_it(kind):
    param, optimizer = stepped(kind)
    optimizer.state[param]["exp_avg"] = torch.zeros(1, 1).expand(2, 2)
    optimizer.step()
    assert optimizer.state[param]["exp_avg"].is_contiguous()


@KINDS
def test_weight_that_shrinks_in_place_is_an_error(kind):
    param, optimizer = stepped(kind, (10, 4))
    param.grad = None
    param.data = param.data[:5]
    param.grad = torch.ones(5, 4)
    with pytest.raises(StateDictError, match=r"of shape \(5, 4\) does not fit"):
        optimizer.step()


@KINDS
def test_weight_that_is_transposed_in_place_is_seen(kind):
    results = []
    for path in ({"foreach": False}, {"fused": True}):
        param, optimizer = stepped(kind, (6, 6), **path)
        param.data = param.data.t()
        param.grad = torch.arange(36.0).view(6, 6)
        optimizer.step()
        results.append(param.detach().clone())
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)


@KINDS
def test_gradient_at_one_address_in_another_dtype_is_seen(kind):
    results = []
    for path in ({"foreach": False}, {"fused": True}):
        param, optimizer = stepped(kind, (64,), num_steps=1, **path)
        param.grad = None
        param.grad_dtype = None
        memory = torch.zeros(64)
        param.grad = memory
        optimizer.step()
        param.grad = None
        half = memory.view(torch.bfloat16)[:64]
        half.fill_(1.0)
        param.grad = half
        optimizer.step()
        results.append(param.detach().clone())
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)


@KINDS
def test_gradient_that_is_a_negated_view_keeps_its_sign(kind):
    results = []
    for path in ({"foreach": False}, {}):
        param, optimizer = stepped(kind, (8,), **path)
        param.grad = torch._neg_view(torch.ones(8))
        optimizer.step()
        results.append(param.detach().clone())
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)


@KINDS
@pytest.mark.parametrize("path", PATHS)
def test_clipping_of_half_precision_gradients_does_not_overflow(kind, path):
    param = torch.nn.Parameter(torch.zeros(4096, dtype=torch.float16))
    param.grad = torch.full((4096,), 6e4, dtype=torch.float16)
    optimizer = kind([param], max_grad_norm=1.0, **path)
    optimizer.step()
    moment = optimizer.state[param]["exp_avg"]
    torch.testing.assert_close(moment, torch.full((4096,), 0.1 / 64), rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("betas", (1.5, 0.9), "betas must be"),
        ("betas", 0.9, "betas must be"),
        ("foreach", "yes", "foreach must be"),
        ("weight_decay", float("nan"), "weight_decay must be"),
        ("max_grad_norm", 0, "max_grad_norm must be"),
        ("differentiable", True, "differentiable must be"),
    ],
)
@KINDS
def test_option_set_in_a_group_is_checked_before_anything_changes(
    kind, option, value, message
):
    params = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer = kind([{"params": [p]} for p in params])
    for p in params:
        p.grad = torch.ones(3)
    optimizer.param_groups[1][option] = value
    with pytest.raises(ValueError, match=message):
        optimizer.step()
    assert all(torch.equal(p, torch.ones(3)) for p in params)


def test_preset_set_in_a_group_is_resolved():
    _, optimizer = stepped(AGD)
    optimizer.param_groups[0]["delta"] = "cnn"
    optimizer.step()
    assert optimizer.param_groups[0]["delta"] == 1e-8


@KINDS
def test_checkpoint_helpers_take_the_options(kind):
    model = torch.nn.Linear(3, 2)
    optimizer = kind(model.parameters(), state_dtype=torch.float64)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    full = StateDictOptions(full_state_dict=True, cpu_offload=True)
    saved = get_optimizer_state_dict(model, optimizer, options=full)
    again = kind(model.parameters(), state_dtype=torch.float64)
    # In a full state dict torch looks for ranks, and there are none here.
    options = StateDictOptions(cpu_offload=True)
    set_optimizer_state_dict(model, again, saved, options=options)
    assert again.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]
    assert again.state[model.weight]["exp_avg"].dtype is torch.float64


def sharded(shape, seed=0):
    torch.manual_seed(seed)
    mesh = init_device_mesh("cpu", (2,))
    return torch.nn.Parameter(distribute_tensor(torch.randn(shape), mesh, [Shard(0)]))


def refuse_plain(kind):
    errors = []
    param = sharded((4, 3))
    optimizer = kind([param])
    param.grad = distribute_tensor(torch.ones(4, 3), param.device_mesh, [Shard(0)])
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][0]["exp_avg"] = saved["state"][0]["exp_avg"].full_tensor()
    try:
        optimizer.load_state_dict(saved)
    except ValueError as error:
        errors.append(str(error))
    optimizer.state[param]["exp_avg"] = saved["state"][0]["exp_avg"]
    try:
        optimizer.step()
    except ValueError as error:
        errors.append(str(error))
    return errors


@pytest.mark.slow
@KINDS
def test_plain_state_of_a_sharded_parameter_is_refused(kind):
    for errors in run_ranks(refuse_plain, 2, kind):
        assert len(errors) == 2
        assert all(
            "is a plain tensor, and the parameter a DTensor" in e for e in errors
        )


def uneven(kind, path):
    params = [sharded((3, 100_000), seed) for seed in range(2)]
    optimizer = kind(params, lr=0.01, max_grad_norm=1.0, **path)
    for seed, p in enumerate(params):
        torch.manual_seed(seed)
        full = torch.randn(p.shape)
        p.grad = distribute_tensor(full, p.device_mesh, [Shard(0)])
    optimizer.step()
    return [p.full_tensor().detach().numpy() for p in params]


@KINDS
@pytest.mark.parametrize("path", PATHS)
def test_ranks_with_unequal_batches_exchange_the_same(kind, path):
    plain = []
    for seed in range(2):
        torch.manual_seed(seed)
        plain.append(torch.nn.Parameter(torch.randn(3, 100_000)))
        torch.manual_seed(seed)
        plain[-1].grad = torch.randn(3, 100_000)
    kind(plain, lr=0.01, max_grad_norm=1.0, foreach=False).step()
    for weights in run_ranks(uneven, 2, kind, path):
        for ours, expected in zip(weights, plain, strict=True):
            np.testing.assert_allclose(
                ours, expected.detach().numpy(), rtol=1e-5, atol=1e-6
            )


def partly(kind, which):
    """Steps when this rank has gradients for some of its parameters only."""
    rank = torch.distributed.get_rank()
    params = [sharded((4, 3), seed) for seed in range(2)]
    optimizer = kind(params, lr=0.01, max_grad_norm=1.0)
    for index, p in enumerate(params):
        if (rank, index) in which:
            p.grad = distribute_tensor(torch.ones(4, 3), p.device_mesh, [Shard(0)])
        else:
            # Distributing is a collective: every rank takes part in it.
            distribute_tensor(torch.ones(4, 3), p.device_mesh, [Shard(0)])
    optimizer.step()
    return [bool(optimizer.state.get(p)) for p in params]


@KINDS
@pytest.mark.parametrize(
    "which", [[(0, 0), (1, 1)], [(0, 0), (0, 1), (1, 0)], [(0, 0)], []], ids=str
)
def test_gradients_that_ranks_lack_hang_and_mix_nothing(kind, which):
    results = run_ranks(partly, 2, kind, which, timeout_s=60)
    for rank, has_state in enumerate(results):
        assert has_state == [(rank, index) in which for index in range(2)]


def one_bad_shard():
    param = sharded((4, 3))
    optimizer = LAMB([("weight", param)], check_finite=True)
    full = torch.ones(4, 3)
    full[3, 0] = float("nan")
    param.grad = distribute_tensor(full, param.device_mesh, [Shard(0)])
    try:
        optimizer.step()
    except ArithmeticError as error:
        return str(error)
    return ""


def test_check_finite_stops_every_rank():
    first, second = run_ranks(one_bad_shard, 2)
    assert "on another rank" in first
    assert "parameter weight" in second


@KINDS
def test_option_of_a_group_that_is_misspelt_is_refused(kind):
    with pytest.raises(ValueError, match=r"no option .maximise. .* nearest: maximize"):
        kind([{"params": [torch.zeros(2)], "maximise": True}])
    kind([{"params": [torch.zeros(2)], "label": "mine"}])  # the user's own affair


@KINDS
def test_state_dict_of_a_whole_checkpoint_is_refused(kind):
    _, optimizer = stepped(kind)
    whole = {"model": {}, "optimizer": optimizer.state_dict()}
    with pytest.raises(StateDictError, match="got 'model', 'optimizer'"):
        optimizer.load_state_dict(whole)


@KINDS
def test_eight_bit_parameters_are_refused(kind):
    with pytest.raises(TypeError, match=r"is torch\.float8_e4m3fn"):
        kind([torch.zeros(2, dtype=torch.float8_e4m3fn)])


def test_wsam_pass_with_a_scaler_must_end_through_it():
    weight = torch.nn.Parameter(torch.ones(3))
    wsam = WSAM(AGD([weight]))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(weight.square().sum()).backward()
    with wsam.perturb(scaler=scaler):
        scaler.scale(weight.square().sum()).backward()
    with pytest.raises(StepOrderError, match=r"must end with scaler\.step"):
        wsam.step()
    assert torch.equal(weight, torch.ones(3))
    scaler.step(wsam)
    assert not torch.equal(weight, torch.ones(3))


@pytest.mark.parametrize("name", ["found_inf", "grad_scale"])
@pytest.mark.parametrize("kind", ["AGD", "WSAM"])
def test_what_fused_steps_take_of_a_scaler_is_refused(kind, name):
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    optimizer = AGD([weight], fused=True)
    if kind == "WSAM":
        optimizer = WSAM(optimizer, gamma=0.0)
    setattr(optimizer, name, torch.ones(()))
    with pytest.raises(HyperparameterError, match=f"takes no {name}.*scaler.step"):
        optimizer.step()
    assert weight.tolist() == [1, 1, 1]
    setattr(optimizer, name, None)
    optimizer.step()
    assert weight.tolist() != [1, 1, 1]


@pytest.mark.parametrize("kind", ["AGD", "LAMB", "WSAM"])
def test_a_parameter_that_is_twice_in_a_group_is_refused(kind):
    weight = torch.nn.Parameter(torch.ones(3))
    make = {
        "AGD": AGD,
        "LAMB": LAMB,
        "WSAM": lambda params: WSAM(torch.optim.SGD(params)),
    }[kind]
    with (
        pytest.warns(UserWarning, match="duplicate"),
        pytest.raises(UnsupportedTensorError, match=r"1 of group 0.*dict\.fromkeys"),
    ):
        make([weight, weight])
