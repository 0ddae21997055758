"""Every Triton form on a GPU against the reference: results, gradients, host waits."""

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

import drivetrain_kernels
from drivetrain_kernels._explain import OPS, load_op

pytestmark = pytest.mark.gpu

WITH_TRITON = [
    name
    for name in OPS
    if any(one.name == "triton" for one in load_op(name).implementations)
]
MOST_ERROR = {torch.float32: 1e-3, torch.bfloat16: 3e-2}


def trained(value):
    """A copy that takes a gradient, if it can have one."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().clone().requires_grad_()
    return value


def outcome(name, impl, args, kwargs):
    """Results and gradients of one call of an op."""
    function = getattr(drivetrain_kernels, name)
    if name == "clip_grad_norm_":
        (weights, max_norm) = args
        copies = [weight.clone() for weight in weights]
        for weight, copy in zip(weights, copies, strict=True):
            copy.grad = weight.grad.clone()
        total = function(copies, max_norm, **kwargs, impl=impl)
        return [total, *(copy.grad for copy in copies)]
    leaves, spec = tree_flatten(tree_map(trained, args))
    results = tree_leaves(function(*tree_unflatten(leaves, spec), **kwargs, impl=impl))
    found = [r for r in results if isinstance(r, torch.Tensor)]
    losses = [r for r in found if r.requires_grad]
    # Ones would do for little: a normalised row's sum of squares does not change.
    torch.manual_seed(1)
    grads = [torch.randn(r.shape, device=r.device, dtype=r.dtype) for r in losses]
    torch.autograd.backward(losses, grads)
    grads = [leaf.grad for leaf in leaves if getattr(leaf, "grad", None) is not None]
    return [r.detach() for r in found] + grads


@pytest.mark.parametrize("name", WITH_TRITON)
@pytest.mark.parametrize("dtype", MOST_ERROR, ids=str)
def test_kernels_on_a_gpu_equal_the_reference_and_do_not_wait(name, dtype):
    torch.manual_seed(0)
    op = load_op(name)
    args, kwargs = op.example(torch.device("cuda"), dtype)
    facts = op.facts(*args, **kwargs)
    triton = next(one for one in op.implementations if one.name == "triton")
    why = triton.refuse(facts)
    if why is not None:
        pytest.skip(f"triton {why}")
    wanted = outcome(name, "reference", args, kwargs)
    outcome(name, "triton", args, kwargs)  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = outcome(name, "triton", args, kwargs)
        again = outcome(name, "triton", args, kwargs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for one, other in zip(found, wanted, strict=True):
        error = (one.float() - other.float()).norm() / other.float().norm()
        assert error <= MOST_ERROR[dtype]
    for one, other in zip(found, again, strict=True):
        assert torch.equal(one, other)


def test_rope_on_a_gpu_reaches_heads_beyond_two_to_the_31_elements():
    heads, length, dim = 65, 1 << 18, 128
    base = torch.randn(1, heads, length, dim, device="cuda", dtype=torch.bfloat16)
    x = base.transpose(1, 2)
    assert (heads - 1) * x.stride(2) >= 1 << 31
    rope = drivetrain_kernels.rope
    found, _ = rope(x, x[:, :, :1], impl="triton")
    # Positions count from the first one.
    first = x[:, :8, -1:].contiguous()
    wanted, _ = rope(first, first, impl="reference")
    torch.testing.assert_close(found[:, :8, -1:], wanted, rtol=2e-2, atol=2e-2)
