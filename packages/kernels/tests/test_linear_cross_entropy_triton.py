"""Linear cross-entropy with Triton kernels over its chunks, interpreted or on a GPU."""

import os

import pytest
import torch
from kernel_checks import as_exact_as, normal, outcome, same

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.extra,
    pytest.mark.interpreter,
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1"
    ),
]

from drivetrain_kernels import ImplementationError, linear_cross_entropy
from drivetrain_kernels.ops import _linear_cross_entropy_autograd as operators

TARGET = torch.tensor([0, 10, -100, 3, 3, 7, 1])
EXTRAS = [{}, {"label_smoothing": 0.1, "z_loss": 0.05, "softcap": 2.0}]


def forms(target=TARGET, **options):
    def call(x, w, b, impl):
        return linear_cross_entropy(x, w, target, bias=b, impl=impl, **options)

    return (
        lambda x, w, b: call(x, w, b, "triton"),
        lambda x, w, b: call(x, w, b, "reference"),
    )


@pytest.mark.parametrize("extra", EXTRAS, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_linear_cross_entropy_kernels_equal_the_reference_in_float64(extra, reduction):
    options = {"reduction": reduction, "chunk_tokens": 3} | extra
    same(*forms(**options), normal((7, 5), (11, 5), (11,)), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_linear_cross_entropy_kernels_are_as_exact_as_the_reference(reduction):
    triton, reference = forms(torch.arange(16) * 6, reduction=reduction, chunk_tokens=7)
    tensors = normal((16, 32), (101, 32), (101,))
    # The error of one mean is chance: roundings of logits cancel more or less.
    as_exact_as(triton, reference, reference, [0.3 * t for t in tensors], floor=1e-4)


def test_linear_cross_entropy_kernels_take_no_tokens():
    x, w = torch.zeros(0, 4), torch.ones(3, 4, requires_grad=True)
    loss = linear_cross_entropy(
        x, w, torch.zeros(0, dtype=torch.int64), reduction="sum", impl="triton"
    )
    loss.backward()
    assert loss == 0
    assert torch.equal(w.grad, torch.zeros(3, 4))


def test_linear_cross_entropy_kernels_repeat_every_bit():
    triton, _ = forms(chunk_tokens=3)
    tensors = normal((7, 5), (11, 5), (11,), dtype=torch.float32)
    assert all(map(torch.equal, outcome(triton, tensors), outcome(triton, tensors)))


def test_linear_cross_entropy_kernels_are_operators_that_compile():
    x, w, b = (
        t.requires_grad_() for t in normal((7, 5), (11, 5), (11,), dtype=torch.float32)
    )
    numbers = (-100, 0.1, 0.1, 2.0, 3, "", True)
    total = (x, w, b, TARGET, torch.tensor(0.3), *numbers, [True, True, True])
    torch.library.opcheck(operators.linear_cross_entropy_total, total)


def test_linear_cross_entropy_kernels_refuse_shards():
    from drivetrain_kernels.ops._linear_cross_entropy import OP, facts

    x, w, _ = normal((7, 5), (11, 5), (11,))
    found = facts(x, w, TARGET, group=object())
    with pytest.raises(ImplementationError, match="knows no vocabulary in shards"):
        OP.choose(found, "triton")
