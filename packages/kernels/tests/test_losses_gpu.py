"""The losses on a GPU: the kernels as compiled, and no waiting for the device."""

import pytest
import torch

from drivetrain_kernels import cross_entropy, explain, linear_cross_entropy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

MODES = [{}, {"label_smoothing": 0.1, "z_loss": 0.01, "softcap": 20.0}]


def head(dtype, num_tokens=300, classes=5003):
    generator = torch.Generator().manual_seed(0)
    x, w = (
        torch.randn(n, 256, generator=generator).to("cuda", dtype).requires_grad_()
        for n in (num_tokens, classes)
    )
    target = torch.randint(classes, (num_tokens,), generator=generator).cuda()
    target[::7] = -100
    return x, w, target


def relative(ours, exact):
    mine, theirs = ours.detach().double(), exact.detach().double()
    return float((mine - theirs).norm() / theirs.norm())


def errors(call, exact, leaves):
    wide = [t.detach().double().requires_grad_() for t in leaves]
    wanted, got = exact(*wide), call(*leaves)
    pairs = zip(
        [got, *torch.autograd.grad(got.sum(), leaves)],
        [wanted, *torch.autograd.grad(wanted.sum(), wide)],
        strict=True,
    )
    return [relative(*pair) for pair in pairs]


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cross_entropy_on_a_gpu_is_as_exact_as_the_reference(mode, reduction, dtype):
    x, w, target = head(dtype)
    logits = (0.1 * x @ w.t()).detach().requires_grad_()
    options = mode | {"reduction": reduction}

    def by(impl):
        return lambda z: cross_entropy(z, target, impl=impl, **options)

    assert (
        explain("cross_entropy", logits, target, **options).implementation == "triton"
    )
    ours = errors(by("auto"), by("reference"), [logits])
    theirs = errors(by("reference"), by("reference"), [logits])
    for one, other in zip(ours, theirs, strict=True):
        assert one <= 1.5 * other + 1e-6


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("impl", ["triton", "chunked"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear_cross_entropy_on_a_gpu(mode, reduction, impl, dtype):
    x, w, target = head(dtype)
    options = mode | {"reduction": reduction}

    def by(name):
        return lambda x, w: linear_cross_entropy(
            0.1 * x, w, target, impl=name, chunk_tokens=128, **options
        )

    ours = errors(by(impl), by("reference"), [x, w])
    theirs = errors(by("reference"), by("reference"), [x, w])
    for one, other in zip(ours, theirs, strict=True):
        assert one <= 1.5 * other + 1e-5


@pytest.mark.parametrize("impl", ["triton", "chunked"])
def test_losses_on_a_gpu_never_wait_for_it(impl):
    x, w, target = head(torch.bfloat16)
    logits = (x @ w.t()).detach().requires_grad_()
    for _ in range(2):  # the first compiles
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error" if _ else "default")
        try:
            linear_cross_entropy(x, w, target, impl=impl).backward()
            cross_entropy(logits, target).backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_losses_on_a_gpu_mark_a_target_that_is_out_of_range():
    x, w, target = head(torch.float32)
    target[1] = 9999
    for impl in ("triton", "chunked"):
        assert linear_cross_entropy(x, w, target, impl=impl).isnan()
    assert cross_entropy(x @ w.t(), target, impl="triton").isnan()
