"""Rows of torch's test_errors: what an optimizer must not accept."""

import pytest
import torch
from torch_behaviour import EVERY, OURS_ALONE, Regression, row, same


def _sample():
    return torch.nn.Parameter(torch.randn(1, 1))


def _refuses(subject, way, error, params=None, **options):
    with pytest.raises(error) as raised:
        subject.build(params or [_sample()], **{**way.options, **options})
    assert str(raised.value), "an error without a word"


@row("test_errors: a tensor for params", "TypeError: params must be an iterable")
def tensor_for_params(subject, way):
    _refuses(subject, way, TypeError, _sample())


@row(
    "test_errors: duplicates in a group",
    "a warning that a group has the same parameter twice, and will be an error",
    refused=EVERY,
    as_in_torch="all warn that it will be an error; the three ways of Adam end at "
    "three different weights",
)
def duplicates_in_a_group(subject, way):
    param = _sample()
    with pytest.warns(UserWarning, match="duplicate parameters"):
        subject.build([param, param], **way.options)


@row(
    "test_errors: duplicates in two groups",
    "ValueError: a parameter is in more than one group",
)
def duplicates_in_two_groups(subject, way):
    param = _sample()
    groups = [{"params": param}, {"params": param}]
    _refuses(subject, way, ValueError, groups)


@row("test_errors: lr of two elements", "ValueError: a tensor lr has one element")
def lr_of_two_elements(subject, way):
    _refuses(subject, way, ValueError, lr=torch.tensor([0.001, 0.001]))


@row("test_errors: names for some", "ValueError: all parameters have names or none")
def names_for_some(subject, way):
    _refuses(subject, way, ValueError, [("weight", _sample()), _sample()])


@row(
    "test_errors: names in one group",
    "ValueError: the parameters of all groups have names or none",
)
def names_in_one_group(subject, way):
    groups = [
        {"params": [_sample()], "lr": 0.01},
        {"params": [("weight", _sample())]},
    ]
    _refuses(subject, way, ValueError, groups)


@row("test_errors: a rate out of bounds", "ValueError: beta1 must be below 1")
def rate_out_of_bounds(subject, way):
    wrong = {"momentum": -0.5} if "SGD" in subject.name else {"betas": (1.0, 0.0)}
    _refuses(subject, way, ValueError, lr=0.01, **wrong)


@row("test_errors: negative weight decay", "ValueError: weight_decay must be >= 0")
def negative_weight_decay(subject, way):
    _refuses(subject, way, ValueError, lr=0.01, weight_decay=-1)


@row("test_errors: negative lr", "ValueError: the learning rate must be >= 0")
def negative_lr(subject, way):
    _refuses(subject, way, ValueError, lr=-1.0)


@row(
    "test_errors: tensor lr and foreach",
    "Adam refuses a tensor lr with foreach=True unless it is capturable, SGD takes it; "
    "what is taken must step as with a number",
)
def tensor_lr_and_foreach(subject, way):
    ends = []
    for lr in (0.01, torch.tensor(0.01, device="cpu")):
        torch.manual_seed(0)
        problem = Regression()
        optimizer = subject.build(problem.params, **{**way.options, "lr": lr})
        for _ in range(3):
            subject.step(optimizer, problem.closure(optimizer))
        ends.append([p.detach() for p in problem.params])
    same(*ends)


@row(
    "test_errors: one beta a tensor",
    "ValueError: both betas are numbers or both are tensors",
)
def one_beta_a_tensor(subject, way):
    # SGD has none: what takes no such option says so.
    error = TypeError if "SGD" in subject.name else ValueError
    for betas in ((0.9, torch.tensor(0.99)), (torch.tensor(0.9), 0.99)):
        _refuses(subject, way, error, betas=betas)


@row(
    "test_errors: tensor betas",
    "Adam and AdamW take tensors for betas where the step is capturable, and refuse "
    "them with foreach=True otherwise",
    refused=OURS_ALONE | {"WSAM over AGD"},
    as_in_torch="Adam refuses them with foreach=True unless it is capturable",
)
def tensor_betas(subject, way):
    if "SGD" in subject.name:
        _refuses(subject, way, TypeError, betas=(0.9, 0.99))
        return
    tensors = (torch.tensor(0.9), torch.tensor(0.99))
    subject.build([_sample()], **{**way.options, "betas": tensors})


@row(
    "test_errors: foreach and fused",
    "an error: at most one of both may be True",
    once=True,
)
def foreach_and_fused(subject, way):
    del way
    with pytest.raises((ValueError, RuntimeError), match="foreach"):
        subject.build([_sample()], foreach=True, fused=True)


@row(
    "test_errors: fused and differentiable",
    "an error: a fused step cannot be differentiated through",
    once=True,
)
def fused_and_differentiable(subject, way):
    del way
    with pytest.raises((ValueError, RuntimeError), match="differentiable"):
        subject.build([_sample()], fused=True, differentiable=True)


@row(
    "TestDifferentiableOptimizer",
    "gradients flow through a step, where the optimizer has differentiable",
    refused=EVERY,
    as_in_torch="Adafactor, Muon, SparseAdam and LBFGS have no such option, and the "
    "fused ways refuse it",
)
def differentiable(subject, way):
    options = {k: v for k, v in way.options.items() if k != "fused"}
    leaf = torch.ones(2, requires_grad=True)
    param = leaf.clone()
    optimizer = subject.build([param], differentiable=True, **options)
    param.grad = torch.ones(2)
    subject.step(optimizer, lambda: None)
    param.sum().backward()
    assert leaf.grad is not None
