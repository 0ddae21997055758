"""Losses: how exact they are, and how long they take beside torch's plain operators."""

import functools
import warnings

import torch
from timing import NOT_QUICK, median_ratio, seconds, turns
from torch.nn import functional

from drivetrain_kernels import cross_entropy, linear_cross_entropy
from drivetrain_testing import Row

CLASSES = 131072
HIDDEN = 128


def head(num_tokens, dtype=torch.float32, hidden=HIDDEN, classes=CLASSES):
    """Hidden states, the weight of a head, and targets."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_tokens, hidden, generator=generator)
    w = torch.randn(classes, hidden, generator=generator) * hidden**-0.5
    target = torch.randint(classes, (num_tokens,), generator=generator)
    return x.to(dtype).requires_grad_(), w.to(dtype).requires_grad_(), target


def plain(x, w, target):
    """The head that keeps all logits."""
    return functional.cross_entropy(functional.linear(x, w).float(), target)


def step(loss, x, w, target):
    """Forward and backward."""
    x.grad = w.grad = None
    loss(x, w, target).backward()


def exactness(quick):
    """The float32 loss of a head against float64."""
    x, w, target = head(128 if quick else 512)
    with torch.no_grad():
        exact = float(plain_float64(x, w, target))
        ours = float(linear_cross_entropy(x, w, target))
        theirs = float(plain(x, w, target))
    found = abs(ours - exact) / exact
    return Row(
        figure=f"{found:.1e} (plain {abs(theirs - exact) / exact:.1e})",
        holds=found <= 5e-7,
    )


def plain_float64(x, w, target):
    logits = functional.linear(x.double(), w.double())
    return functional.cross_entropy(logits, target)


def narrow_errors(quick):
    """Loss and gradients in bfloat16, against float64, beside the plain operators."""
    ratios = {}
    forms = {"ours": linear_cross_entropy, "plain": plain, "exact": plain_float64}
    x, w, target = head(128, torch.bfloat16, classes=4096 if quick else 32768)
    results = {}
    for name, form in forms.items():
        step(form, x, w, target)
        with torch.no_grad():
            results[name] = [form(x, w, target), x.grad, w.grad]
    for name, place in (("loss", 0), ("hidden", 1), ("weight", 2)):
        exact = results["exact"][place].double()
        ours, theirs = (
            float((results[form][place].double() - exact).norm())
            for form in ("ours", "plain")
        )
        ratios[name] = ours / theirs
    worst = max(ratios["hidden"], ratios["weight"])
    return Row(
        figure=f"{worst:.2f} x the error of the gradients", holds=worst <= 1.5,
        details=ratios,
    )  # fmt: skip


@functools.cache
def head_times(dtype, num_tokens, hidden, rounds):
    tensors = head(num_tokens, dtype, hidden)
    calls = {
        "ours": lambda: step(linear_cross_entropy, *tensors),
        "plain": lambda: step(plain, *tensors),
    }
    return turns(calls, rounds)


def head_time(dtype, hidden=HIDDEN):
    """A head's step against that with all logits, which must fit the memory."""

    def measure(quick):
        if quick and (hidden != HIDDEN or dtype != torch.float32):
            return NOT_QUICK
        num_tokens, rounds = (256, 1) if quick else (1024, 3)
        times = head_times(dtype, num_tokens, hidden, rounds)
        found, medians = median_ratio(times, "ours", "plain"), seconds(times)
        return Row(
            figure=f"{found:.2f} x ({medians['ours']:.2f} s, plain "
            f"{medians['plain']:.2f} s) at {num_tokens} x {CLASSES} x {hidden}",
            holds=found <= 1.0,
            details=medians,
        )

    return measure


def head_peer(quick):
    """A head's step against torch's own in chunks."""
    if not hasattr(functional, "linear_cross_entropy"):
        return Row(figure="-", holds=None, details={"needs": "torch >= 2.13"})
    if quick:
        return NOT_QUICK
    tensors = head(256)
    options = torch.nn.LinearCrossEntropyOptions()

    def peer(x, w, target):
        return functional.linear_cross_entropy(x, w, target, options=options)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        times = turns(
            {
                "ours": lambda: step(linear_cross_entropy, *tensors),
                "torch": lambda: step(peer, *tensors),
            },
            1,
        )
    found, medians = median_ratio(times, "ours", "torch"), seconds(times)
    return Row(
        figure=f"{found:.2f} x ({medians['ours']:.2f} s, torch {medians['torch']:.2f} s)",
        holds=found <= 1.0,
        details=medians,
    )


def auto_time(quick):
    """`cross_entropy` against torch's, of which it is the dispatch on a CPU."""
    logits = torch.randn(64 if quick else 512, 32768, requires_grad=True)
    target = torch.arange(len(logits))

    def backward(loss):
        logits.grad = None
        loss(logits, target).backward()

    times = turns(
        {
            "ours": lambda: backward(cross_entropy),
            "torch": lambda: backward(functional.cross_entropy),
        },
        9,
    )
    found = median_ratio(times, "ours", "torch")
    return Row(figure=f"{found:.2f} x", holds=found <= 1.1, details=seconds(times))


TABLE = [
    ("linear-cross-entropy-loss", "<= 5e-7 from float64", exactness),
    ("linear-cross-entropy-bf16", "<= 1.5 x plain's error", narrow_errors),
    ("linear-cross-entropy-time", "<= 1 x plain", head_time(torch.float32)),
    ("linear-cross-entropy-time-bf16", "<= 1 x plain", head_time(torch.bfloat16)),
    ("linear-cross-entropy-time-wide", "<= 1 x plain", head_time(torch.float32, 1024)),
    ("linear-cross-entropy-torch", "<= 1 x torch's chunks", head_peer),
    ("cross-entropy-time", "<= 1.1 x torch", auto_time),
]
