"""How results and gradients of an implementation are compared with exact ones."""

import torch
from torch.utils._pytree import tree_leaves

__all__ = ["as_exact_as", "errors", "normal", "outcome", "same"]


def normal(*shapes, dtype=torch.float64, seed=0):
    """Tensors of normal numbers, one of each shape."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(s, generator=generator, dtype=torch.float64).to(dtype)
        for s in shapes
    ]


def outcome(call, tensors):
    """Results of a call, and the gradients of a fixed weighting of them."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    results = tree_leaves(call(*leaves))
    weights = normal(*(r.shape for r in results), seed=9)
    grads = [w.to(r.dtype) for w, r in zip(weights, results, strict=True)]
    found = torch.autograd.grad(results, leaves, grads, allow_unused=True)
    return [r.detach() for r in results] + [f for f in found if f is not None]


def same(ours, theirs, tensors, **tolerances):
    """Asserts that two calls have the same results and gradients."""
    pairs = zip(outcome(ours, tensors), outcome(theirs, tensors), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, **tolerances)


def errors(call, exact, tensors, dtype):
    """Relative errors of results and gradients in a dtype, against float64."""
    narrow = [t.to(dtype) for t in tensors]
    wanted = outcome(exact, [t.double() for t in narrow])
    got = outcome(call, narrow)
    return [
        float((one.double() - other).norm() / other.norm().clamp(min=1e-30))
        for one, other in zip(got, wanted, strict=True)
    ]


def as_exact_as(call, plain, exact, tensors, dtype=torch.bfloat16, floor=1e-12):
    """Asserts that errors are at most 1.5 times those of torch's plain operators."""
    ours = errors(call, exact, tensors, dtype)
    theirs = errors(plain, exact, tensors, dtype)
    for one, other in zip(ours, theirs, strict=True):
        assert one <= 1.5 * other + floor, (ours, theirs)
