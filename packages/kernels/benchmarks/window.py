"""Windowed attention: its time grows with the window, not with the square of the sequence."""

import functools
import math

import torch
from timing import NOT_QUICK, median_ratio, seconds, turns

from drivetrain_kernels import attention
from drivetrain_testing import Row

HEADS, HEAD_DIM, WINDOW = 8, 64, 256


def calls(lengths, window=WINDOW, batch=1):
    """Steps of attention by length, with a window if there is one."""
    made = {}
    for length in lengths:
        q, k, v = (
            torch.randn(batch, length, HEADS, HEAD_DIM, requires_grad=True)
            for _ in range(3)
        )
        made[length] = functools.partial(_step, q, k, v, window)
    return made


def _step(q, k, v, window):
    q.grad = k.grad = v.grad = None
    attention(q, k, v, window=window).sum().backward()


def scaling(quick):
    """The time of a long sequence over that of as many tokens in short ones.

    The exponent over the length alone would hold what tensors cost that outgrow the cache.
    """
    lengths = (1024, 4096) if quick else (2048, 4096, 8192, 16384)
    shortest, longest = lengths[0], lengths[-1]
    number = longest // shortest
    parts = f"{number} of {shortest}"
    made = calls(lengths) | {parts: calls([shortest], batch=number)[shortest]}
    times = turns(made, 3 if quick else 9)
    found = median_ratio(times, longest, parts)
    growth = median_ratio(times, longest, shortest)
    exponent = math.log(growth) / math.log(longest / shortest)
    return Row(
        figure=f"{found:.2f} x, one sequence of {longest} against {parts} "
        f"(S^{exponent:.2f} from {shortest} on)",
        holds=found <= 1.15,
        details={str(length): s for length, s in seconds(times).items()},
    )


def over_window(quick):
    """Time at a quarter of the window."""
    if quick:
        return NOT_QUICK
    length, long, short = 8192, 1024, 256
    made = {w: calls([length], w)[length] for w in (long, short)}
    found = median_ratio(turns(made, 7), short, long)
    return Row(figure=f"{found:.2f} x for {short} of {long}", holds=found <= 0.5)


def against_causal(quick):
    """Time against torch's causal attention without a window."""
    lengths = (4096,) if quick else (2048, 4096, 8192)
    medians = {}
    for length in lengths:
        made = {
            "window": calls([length])[length],
            "causal": calls([length], None)[length],
        }
        times = turns(made, 3 if quick else 7)
        found = 1 / median_ratio(times, "window", "causal")
        medians[str(length)] = seconds(times)
    return Row(
        figure=f"{found:.1f} x faster at S={length}, W={WINDOW}",
        holds=found >= (2.0 if quick else 4.0),
        details=medians,
    )


def against_masked(quick):
    """Time against torch's attention with the window as a mask."""
    if quick:
        return NOT_QUICK
    length = 4096
    q, k, v = (
        torch.randn(1, length, HEADS, HEAD_DIM, requires_grad=True) for _ in range(3)
    )

    def masked():
        attention(q, k, v, window=WINDOW, impl="sdpa").sum().backward()

    times = turns({"window": calls([length])[length], "masked": masked}, 5)
    found = 1 / median_ratio(times, "window", "masked")
    return Row(
        figure=f"{found:.1f} x faster at S={length}, W={WINDOW}",
        holds=found >= 1.0,
        details=seconds(times),
    )


TABLE = [
    ("window-scaling", "<= 1.15 x as many tokens in short sequences", scaling),
    ("window-cost", "<= 0.5 x at a quarter of the window", over_window),
    ("window-causal", ">= 4 x faster than causal (quick: 2 x)", against_causal),
    ("window-masked", ">= 1 x the masked one's speed", against_masked),
]
