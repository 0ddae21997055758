"""Parameters that others resize, tie, append or take away, between steps."""

import numpy as np
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from drivetrain_optim import AGD, LAMB, WSAM, UnsupportedTensorError
from drivetrain_testing import run_ranks

KINDS = pytest.mark.parametrize("kind", [AGD, LAMB])
PATHS = pytest.mark.parametrize(
    "path",
    [
        pytest.param({"foreach": False}, id="loop"),
        pytest.param({"foreach": True}, id="foreach"),
        pytest.param({}, id="default"),
    ],
)


def parameter(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    param = torch.nn.Parameter(torch.randn(shape, generator=generator))
    param.grad = torch.randn(shape, generator=generator)
    return param


@KINDS
@PATHS
def test_gradient_of_a_parameter_that_grew_is_refused(kind, path):
    param = parameter(3)
    optimizer = kind([param], **path)
    param.data = torch.ones(4096)  # its gradient still is of three elements
    with pytest.raises(UnsupportedTensorError, match=r"of shape \(3,\) on cpu"):
        optimizer.step()
    assert torch.equal(param, torch.ones(4096))
    assert not optimizer.state


@KINDS
@PATHS
@pytest.mark.parametrize("shape", [(1,), (2, 3), (12,)], ids=str)
def test_gradient_of_another_shape_is_refused(kind, path, shape):
    param = parameter(6)
    optimizer = kind([param], **path)
    optimizer.step()
    before = param.detach().clone()
    param.grad.data = torch.ones(shape)
    with pytest.raises(UnsupportedTensorError, match="shaped like their parameters"):
        optimizer.step()
    assert torch.equal(param, before)
    param.grad = torch.ones(6)
    optimizer.step()
    assert not torch.equal(param, before)


def test_gradient_of_another_shape_is_refused_by_wsam():
    param = parameter(6)
    wsam = WSAM(torch.optim.SGD([param], lr=0.1))
    param.grad.data = torch.ones(1)
    with pytest.raises(UnsupportedTensorError, match="shaped like their parameters"):
        wsam.first_step()


def whole(memory):
    return [memory[:20_000] for _ in range(40)]


def shifted(memory):
    return [memory[k * 1000 :][:20_000] for k in range(40)]


@KINDS
@pytest.mark.parametrize("views", [whole, shifted])
def test_weights_in_one_memory_are_stepped_one_after_the_other(kind, views):
    def stepped(**options):
        memory = parameter(60_000).data
        params = [torch.nn.Parameter(view) for view in views(memory)]
        for seed, param in enumerate(params):
            param.grad = parameter(20_000, seed=seed).grad
        kind(params, lr=0.1, **options, **alone).step()
        return memory

    # So the step of each is the same whatever was stepped before it.
    alone = {} if kind is AGD else {"adapt": "none", "weight_decay": 0.0}
    expected = stepped(foreach=False)
    torch.set_num_threads(2)
    for _ in range(5):
        torch.testing.assert_close(stepped(), expected, rtol=1e-4, atol=1e-4)


@KINDS
def test_parameter_that_is_appended_to_named_ones_is_stepped(kind):
    first, second = parameter(3), parameter(4)
    optimizer = kind([("first", first)])
    optimizer.step()
    optimizer.param_groups[0]["params"].append(second)
    before = second.detach().clone()
    optimizer.step()
    assert not torch.equal(second, before)


def changed_lists(path, change, *, is_sharded):
    """Steps two groups whose lists of parameters change between the steps."""
    mesh = init_device_mesh("cpu", (2,)) if is_sharded else None

    def placed(tensor):
        if mesh is None:
            return tensor.detach().clone()
        return distribute_tensor(tensor.detach(), mesh, [Shard(0)])

    sources = [parameter(5, 3, seed=seed) for seed in range(4)]
    params = [torch.nn.Parameter(placed(source)) for source in sources]
    groups = [{"params": params[:2]}, {"params": params[2:3]}]
    optimizer = LAMB(groups, lr=0.1, **path)
    for number in range(3):
        for param, source in zip(params, sources, strict=True):
            param.grad = placed(source.grad * (number + 1))
        optimizer.step()
        if number == 0 and change == "append":
            optimizer.param_groups[0]["params"].append(params[3])
        if number == 0 and change == "pop":
            optimizer.param_groups[0]["params"].pop(0)
    full = [getattr(param, "full_tensor", lambda p=param: p)() for param in params]
    return [tensor.detach().numpy() for tensor in full]


@pytest.mark.slow
@PATHS
@pytest.mark.parametrize("change", ["append", "pop"])
def test_norms_of_shards_are_right_when_a_list_of_parameters_changes(path, change):
    expected = changed_lists(path, change, is_sharded=False)
    for found in run_ranks(lists_of_shards, 2, path, change):
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def lists_of_shards(path, change):
    return changed_lists(path, change, is_sharded=True)


@KINDS
@PATHS
def test_clipping_of_large_float32_gradients_does_not_overflow(kind, path):
    param = torch.nn.Parameter(torch.zeros(4096))
    param.grad = torch.full((4096,), 1e25)
    optimizer = kind([param], max_grad_norm=1.0, **path)
    optimizer.step()
    moment = optimizer.state[param]["exp_avg"]
    torch.testing.assert_close(moment, torch.full((4096,), 0.1 / 64), rtol=1e-3, atol=0)
