"""Models whose gradients are real and whose computing is sleep, as on an accelerator."""

from __future__ import annotations

import time

import torch
from torch import nn

from rig.model_shapes import SHAPES


class _Block(torch.autograd.Function):
    """y = x + scale / 2 |w|^2 for the values w of all tensors of a block.

    The derivative is exact: for w it is scale w. Both directions sleep as long as a
    device would compute, since cores that many ranks share cannot.
    """

    @staticmethod
    def forward(ctx, x, scale, seconds, *tensors):
        ctx.save_for_backward(*tensors)
        ctx.scale, ctx.backward_s = scale, seconds[1]
        time.sleep(seconds[0])
        flat = [tensor.detach().view(-1) for tensor in tensors]
        return x + sum(torch.dot(one, one) for one in flat) * (scale / 2)

    @staticmethod
    def backward(ctx, upstream):
        time.sleep(ctx.backward_s)
        factor = ctx.scale * float(upstream)
        grads = [tensor * factor for tensor in ctx.saved_tensors]
        return upstream, None, None, *grads


class Block(nn.Module):
    """Tensors of given sizes that take a given time.

    Args:
        sizes: The numbers of values.
        seconds: How long forward and backward take.
    """

    def __init__(self, sizes, seconds):
        super().__init__()
        self.tensors = nn.ParameterList(torch.randn(size) for size in sizes)
        self._seconds = seconds

    def forward(self, x, scale):
        """Adds half the scaled square norm of the tensors to x."""
        return _Block.apply(x, scale, self._seconds, *self.tensors)


class Model(nn.Module):
    """Blocks one after another; its loss per value is scale / 2 mean(w^2).

    Args:
        shape: The sizes of its tensors.
        compute_s: How long forward and backward take together.
    """

    def __init__(self, shape, compute_s):
        super().__init__()
        pairs = zip(shape.blocks, shape.seconds(compute_s), strict=True)
        self.blocks = nn.ModuleList(Block(*pair) for pair in pairs)

    def forward(self, scale):
        """The loss of a batch, which is one number here: how much it counts."""
        first = next(self.parameters())
        # It needs a gradient, since the first block's parameters get theirs through it.
        x = torch.zeros((), dtype=first.dtype, requires_grad=True)
        for block in self.blocks:
            x = block(x, scale)
        return x


def make_model(name, compute_s):
    """A model by the name of its shape, the same on all ranks that seed alike."""
    return Model(SHAPES[name], compute_s)
