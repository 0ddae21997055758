"""A model is put back as the very objects that it was made of."""

from __future__ import annotations

import functools
import random
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn

from drivetrain_core._model.snapshot import ModelSnapshot


def model():
    torch.manual_seed(0)
    found = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    found.kept, found.table = [1], {"a": [2]}
    found[0].weight.mark = "mine"
    return found


def test_values_attributes_and_formats_come_back():
    module = model()
    weight = module[0].weight
    before = {name: value.clone() for name, value in module.state_dict().items()}
    snapshot = ModelSnapshot(module, values=True)
    module(torch.randn(4, 3)).sum().backward()
    weight.mark, weight.other = "yours", 1
    module.kept.append(2)
    module.table["a"].append(3)
    module.eval().forward = lambda x: x
    module[0].register_forward_hook(lambda *_: None)
    module[0].weight = nn.Parameter(torch.ones(3, 3))
    with torch.no_grad():
        weight.data = weight.data.bfloat16()
        weight.zero_()
        module[1].running_mean += 1
    for _ in range(2):
        snapshot.restore()
        assert module[0].weight is weight
        for name, value in module.state_dict().items():
            assert value.dtype == before[name].dtype
            assert torch.equal(value, before[name])
        assert vars(weight) == {"mark": "mine"}
        assert (module.kept, module.table) == ([1], {"a": [2]})
        assert module.training
        assert "forward" not in vars(module)
        assert not module[0]._forward_hooks
        assert weight.grad is None


def test_hooks_on_parameters_stay_those_of_the_user():
    module, seen = model(), []
    weight = module[0].weight
    handle = weight.register_hook(lambda _: seen.append("mine"))
    snapshot = ModelSnapshot(module)
    weight.register_hook(lambda _: seen.append("other"))
    weight.register_post_accumulate_grad_hook(lambda _: seen.append("after"))
    module[0].bias.register_hook(lambda _: seen.append("bias"))
    snapshot.restore()
    module(torch.randn(4, 3)).sum().backward()
    assert seen == ["mine"]
    handle.remove()
    module(torch.randn(4, 3)).sum().backward()
    assert seen == ["mine"]


def test_classes_and_tied_parameters_come_back():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    snapshot = ModelSnapshot(module, values=True)
    module.__class__ = type("Other", (nn.Sequential,), {})
    module[1].weight = nn.Parameter(torch.zeros(3, 3))
    snapshot.restore()
    assert type(module) is nn.Sequential
    assert module[1].weight is module[0].weight


def test_buffers_that_take_no_copy_are_left_alone():
    module = nn.Linear(2, 2)
    module.register_buffer("wide", torch.zeros(1).expand(3))
    with torch.inference_mode():
        module.register_buffer("fixed", torch.ones(2))
    module.register_buffer("sparse", torch.eye(2).to_sparse())
    snapshot = ModelSnapshot(module, values=True)
    module.sparse.mul_(3)
    snapshot.restore()
    assert torch.equal(module.sparse.to_dense(), torch.eye(2))
    assert module.wide.tolist() == [0.0] * 3


def test_what_a_loss_holds_comes_back():
    class Held:
        def __init__(self):
            self.count, self.last = 0, deque([1], maxlen=2)
            self.draws = random.Random(0), np.random.default_rng(0)
            self.array, self.table = np.zeros(2), torch.zeros(2)
            self.generator = torch.Generator().manual_seed(0)

    def state():
        drawn = [draw.random() for draw in held.draws]
        drawn.append(float(torch.rand(1, generator=held.generator)))
        return held.count, list(held.last), held.array.sum(), held.table.sum(), drawn

    def counting(held, count=0):
        def loss():
            nonlocal count
            count += 1
            held.count = count
            held.last.append(count)
            held.array += 1
            held.table.add_(1)
            return count

        return loss

    held = Held()
    loss = counting(held)
    snapshot = ModelSnapshot(nn.Module(), functools.partial(loss), values=True)
    expected = state()
    for _ in range(2):
        assert loss() == 1
        snapshot.restore()
        assert state() == expected
        snapshot.restore()


def test_what_is_long_or_of_a_library_is_left_alone():
    long, optimizer = list(range(2**15)), torch.optim.SGD([torch.zeros(1)], lr=0.1)
    snapshot = ModelSnapshot(nn.Module(), lambda: (long, optimizer), values=True)
    long.append(1)
    optimizer.mark = 1
    snapshot.restore()
    assert len(long) == 2**15 + 1
    assert optimizer.mark == 1


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_parameters_of_a_scripted_module_come_back():
    module = torch.jit.script(nn.Linear(2, 2))
    before = module.weight.detach().clone()
    snapshot = ModelSnapshot(module, values=True)
    with torch.no_grad():
        module.weight.zero_()
    snapshot.restore()
    assert torch.equal(module.weight, before)


CRITIC = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
CALLS = []


def score(output):
    """Uses a global of its module, as most scripts' losses do."""
    CALLS.append(1)
    return CRITIC(output).sum()


@pytest.mark.parametrize("most", [2**24, 2])
def test_global_modules_that_a_loss_uses_come_back(monkeypatch, most):
    monkeypatch.setattr("drivetrain_core._model.snapshot._MOST_VALUES", most)
    module = model()
    loss = lambda output, _: sum(score(each) for each in [output])
    snapshot = ModelSnapshot(module, loss, values=True)
    loss(module(torch.randn(4, 3)), None).backward()
    assert CRITIC[0].weight.grad is not None
    snapshot.restore()
    assert all(parameter.grad is None for parameter in CRITIC.parameters())
    assert CALLS == []
    # Large tables are not copied.
    assert bool(CRITIC[1].running_mean.eq(0).all()) == (most > 2)
    CRITIC[1].reset_running_stats()


def test_tensors_of_all_kinds_that_a_loss_holds_are_left_well():
    with torch.inference_mode():
        fixed = torch.ones(3)
    held = [fixed, torch.ones(5, requires_grad=True)[::2], torch.ones(4).expand(2, 4)]
    loss = lambda output, _: output.sum() + sum(each.sum() for each in held)
    for values in (False, True):
        snapshot = ModelSnapshot(model(), loss, values=values)
        snapshot.restore()
        snapshot.restore()
    assert [each.is_inference() for each in held] == [True, False, False]
