"""Every bad input is one clear error, and leaves everything as it was."""

import copy
import math

import pytest
import torch

from drivetrain_core import DrivetrainError
from drivetrain_optim import (
    AGD,
    GraphCaptureError,
    HyperparameterError,
    StateDictError,
    UnsupportedTensorError,
)

BAD_OPTIONS = [
    ({"lr": -0.1}, r"lr must be a finite number >= 0, got -0\.1"),
    ({"lr": math.nan}, "lr must be a finite number >= 0, got nan"),
    ({"lr": math.inf}, "lr must be a finite number >= 0, got inf"),
    ({"lr": "fast"}, "lr must be .* got 'fast'"),
    ({"lr": True}, "lr must be .* got True"),
    ({"lr": torch.tensor(-1.0)}, r"lr must be .* got -1\.0"),
    ({"lr": torch.ones(2)}, r"lr as a tensor must be one real element, got .*\(2,\)"),
    ({"lr": torch.ones(1, device="meta")}, "lr as a tensor on meta needs capturable"),
    ({"betas": (1.0, 0.9)}, r"betas must be two numbers in \[0, 1\), got \(1\.0, 0\.9"),
    ({"betas": (0.9, -0.1)}, r"betas must be .* got \(0\.9, -0\.1\)"),
    ({"betas": (0.9,)}, r"betas must be .* got \(0\.9,\)"),
    ({"betas": 0.9}, r"betas must be .* got 0\.9"),
    ({"betas": (0.9, math.nan)}, r"betas must be .* nan"),
    ({"delta": 0.0}, r"delta must be a finite number > 0 or one of .* got 0\.0"),
    ({"delta": -1e-8}, "delta must be .* got -1e-08"),
    ({"delta": math.nan}, "delta must be .* got nan"),
    (
        {"delta": "transfomer"},
        "delta must be .* got 'transfomer'; nearest: transformer",
    ),
    ({"weight_decay": -0.1}, r"weight_decay must be .* got -0\.1"),
    ({"weight_decay": math.nan}, "weight_decay must be .* got nan"),
    ({"decay": "decouple"}, "decay must be one of .* got 'decouple'; nearest: decoup"),
    ({"decay": True}, "decay must be one of .* got True"),
    ({"amsgrad": 1}, "amsgrad must be True or False, got 1"),
    ({"clip": 0}, "clip must be a finite number > 0 or None, got 0"),
    ({"clip": -1.0}, r"clip must be .* got -1\.0"),
    ({"clip": math.inf}, "clip must be .* got inf"),
    ({"maximize": "yes"}, "maximize must be True or False, got 'yes'"),
    ({"foreach": 2}, "foreach must be True, False or None, got 2"),
    ({"state_dtype": torch.bfloat16}, r"state_dtype must be .* got torch\.bfloat16"),
    ({"state_dtype": "float"}, r"state_dtype must be .* got 'float'"),
]


def linear(num_steps=2, **options):
    """A small model, its optimizer after some steps, and fresh gradients."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = AGD(model.named_parameters(), **options)
    for _ in range(num_steps):
        model.zero_grad()
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
    model(torch.randn(4, 3)).square().sum().backward()
    return model, optimizer


def snapshot(model, optimizer):
    return copy.deepcopy((model.state_dict(), optimizer.state_dict()))


def assert_same(before, after):
    """Nested containers of tensors and other values must be equal, bit by bit."""
    if isinstance(before, torch.Tensor):
        torch.testing.assert_close(before, after, rtol=0, atol=0)
    elif isinstance(before, dict):
        assert list(before) == list(after)
        assert_same(list(before.values()), list(after.values()))
    elif isinstance(before, list | tuple):
        for one, other in zip(before, after, strict=True):
            assert_same(one, other)
    else:
        assert before == after


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS, ids=lambda v: str(v)[:40])
def test_option_that_is_not_allowed_is_refused(options, message):
    with pytest.raises(HyperparameterError, match=f"^AGD: {message}") as caught:
        AGD([torch.zeros(2)], **options)
    assert isinstance(caught.value, DrivetrainError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS, ids=lambda v: str(v)[:40])
def test_option_of_a_group_that_is_not_allowed_is_refused(options, message):
    model, optimizer = linear()
    before = snapshot(model, optimizer)
    with pytest.raises(HyperparameterError, match=message):
        optimizer.add_param_group({"params": [("more", torch.zeros(2))], **options})
    assert_same(before, snapshot(model, optimizer))


def test_params_that_are_empty_are_refused():
    for empty in ([], iter(())):
        with pytest.raises(
            HyperparameterError, match=r"at least one parameter .* got 0"
        ):
            AGD(empty)


def test_params_that_are_one_tensor_are_refused():
    with pytest.raises(TypeError, match="iterable of Tensors"):
        AGD(torch.zeros(2))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64, torch.bool])
def test_parameter_that_is_not_real_is_refused(dtype):
    model, optimizer = linear()
    before = snapshot(model, optimizer)
    group = {"params": [("ok", torch.zeros(1)), ("odd", torch.zeros(2, 3).to(dtype))]}
    message = rf"parameter odd of shape \(2, 3\) is {dtype}"
    with pytest.raises(UnsupportedTensorError, match=message) as caught:
        optimizer.add_param_group(group)
    assert isinstance(caught.value, TypeError)
    assert ("view_as_real" in str(caught.value)) == dtype.is_complex
    assert_same(before, snapshot(model, optimizer))


@pytest.mark.parametrize("foreach", [False, True])
def test_sparse_gradient_is_refused_and_nothing_changes(foreach):
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    model, optimizer = linear(foreach=foreach)
    optimizer.add_param_group({"params": [("embedding", embedding.weight)]})
    embedding(torch.tensor([1, 1])).sum().backward()
    before = snapshot(model, optimizer)
    message = r"embedding of shape \(4, 2\) is torch\.sparse_coo; nothing was stepped"
    with pytest.raises(UnsupportedTensorError, match=message):
        optimizer.step()
    assert_same(before, snapshot(model, optimizer))
    assert len(optimizer.state) == 2


@pytest.mark.parametrize("name", ["exp_avg", "master"])
def test_state_whose_memory_was_freed_is_refused(name):
    weight = torch.nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
    optimizer = AGD([weight], lr=0.1, master_weights=True)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    optimizer.state[weight][name].untyped_storage().resize_(0)
    with pytest.raises(StateDictError, match=f"does not fit it: {name} was freed"):
        optimizer.step()


def test_negated_master_is_refused():
    weight = torch.nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
    optimizer = AGD([weight], lr=0.1, master_weights=True)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    state = optimizer.state[weight]
    state["master"] = torch._neg_view(-state["master"])
    with pytest.raises(StateDictError, match="master is a view that negates"):
        optimizer.step()


@pytest.mark.parametrize("of_gradient", [False, True])
@pytest.mark.parametrize("num_steps", [0, 2])
@pytest.mark.parametrize("foreach", [False, None])
def test_tensor_whose_memory_was_freed_is_refused(foreach, num_steps, of_gradient):
    odd = torch.nn.Parameter(torch.ones(64))
    _, optimizer = linear(foreach=foreach)
    optimizer.add_param_group({"params": [("odd", odd)]})
    odd.grad = torch.ones(64)
    for _ in range(num_steps):
        optimizer.step()
    (odd.grad if of_gradient else odd).untyped_storage().resize_(0)
    with pytest.raises(UnsupportedTensorError, match=r"odd of shape \(64,\).* freed"):
        optimizer.step()


def test_complex_gradient_is_refused_and_nothing_changes():
    model, optimizer = linear()
    odd = torch.nn.Parameter(torch.zeros(2))
    optimizer.add_param_group({"params": [("odd", odd)]})
    # Autograd does not let a real parameter have one; a subclass can.
    odd.data = odd.data.to(torch.complex64)
    odd.grad = torch.zeros(2, dtype=torch.complex64)
    before = snapshot(model, optimizer)
    with pytest.raises(UnsupportedTensorError, match=r"odd .* is torch\.complex64"):
        optimizer.step()
    assert_same(before, snapshot(model, optimizer))


@pytest.mark.parametrize("lr", [math.nan, -1.0, math.inf, torch.tensor(math.nan)])
def test_rate_that_a_schedule_broke_is_refused_and_nothing_changes(lr):
    model, optimizer = linear()
    optimizer.add_param_group({"params": [("more", torch.zeros(2))]})
    optimizer.param_groups[-1]["lr"] = lr
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))
    with pytest.raises(HyperparameterError, match="lr must be a finite number"):
        optimizer.step()
    assert_same(before, (model.state_dict(), optimizer.state_dict()["state"]))


def test_state_dict_of_another_optimizer_is_refused_and_nothing_changes():
    model, optimizer = linear()
    other = torch.optim.AdamW(model.named_parameters())
    other.step()
    before = snapshot(model, optimizer)
    with pytest.raises(StateDictError, match="group 0 has no delta, decay, clip"):
        optimizer.load_state_dict(other.state_dict())
    assert_same(before, snapshot(model, optimizer))


def test_state_dict_of_other_groups_is_refused_and_nothing_changes():
    model, optimizer = linear()
    before = snapshot(model, optimizer)
    other = AGD([torch.zeros(2)])
    with pytest.raises(ValueError, match="doesn't match the size"):
        optimizer.load_state_dict(other.state_dict())
    assert_same(before, snapshot(model, optimizer))


def test_capture_in_a_cuda_graph_is_refused(monkeypatch):
    class OnCuda:
        device = torch.device("cuda")

    _, optimizer = linear()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setitem(optimizer.param_groups[0], "params", [OnCuda()])
    with pytest.raises(GraphCaptureError, match="must not be captured"):
        optimizer.step()
