"""A vocabulary in shards over two ranks, against the whole of it."""

import pytest
import torch
import torch.distributed as dist

from drivetrain_kernels import linear_cross_entropy
from drivetrain_testing import run_ranks

EXTRAS = [{}, {"label_smoothing": 0.1, "z_loss": 0.05, "softcap": 2.0}]
ROWS = [(0, 7), (7, 11)]  # shards need not be of one size


def problem():
    generator = torch.Generator().manual_seed(0)
    made = [
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((7, 5), (11, 5), (11,), (7,))
    ]
    return [*made, torch.tensor([0, 10, -100, 6, 7, 8, 1])]


def sharded(options, impl, compiles):
    x, w, b, grad, target = problem()
    start, end = ROWS[dist.get_rank()]
    leaves = [
        t.requires_grad_() for t in (x, w[start:end].clone(), b[start:end].clone())
    ]

    def call(x, w, b):
        return linear_cross_entropy(
            x, w, target, bias=b, group=dist.group.WORLD, impl=impl, **options
        )

    if compiles:
        call = torch.compile(call, fullgraph=True, backend="aot_eager")
    loss = call(*leaves)
    weigh = grad if options["reduction"] == "none" else grad[0]
    return [t.detach() for t in (loss, *torch.autograd.grad(loss, leaves, weigh))]


def several(cases):
    return [sharded(*case) for case in cases]


@pytest.mark.slow
def test_linear_cross_entropy_in_shards_equals_the_whole():
    cases = [
        ({"reduction": reduction, **extra}, impl, False)
        for reduction in ("mean", "none")
        for extra in EXTRAS
        for impl in ("chunked", "reference")
    ]
    cases.append(({"reduction": "mean", "chunk_tokens": 3}, "chunked", True))
    ranks = run_ranks(several, 2, cases)
    x, w, b, grad, target = problem()
    for number, (options, _, _) in enumerate(cases):
        leaves = [t.clone().requires_grad_() for t in (x, w, b)]
        loss = linear_cross_entropy(
            leaves[0], leaves[1], target, bias=leaves[2], impl="reference", **options
        )
        weigh = grad if options["reduction"] == "none" else grad[0]
        dx, dw, db = torch.autograd.grad(loss, leaves, weigh)
        for rank, (start, end) in enumerate(ROWS):
            wanted = [loss.detach(), dx, dw[start:end], db[start:end]]
            torch.testing.assert_close(ranks[rank][number], wanted)
