"""Windowed attention: its time grows with the window, not with the square of the sequence."""

import functools
import math

import torch
from timing import NOT_QUICK, median_ratio, seconds, turns

from drivetrain_core.testing import Row
from drivetrain_kernels import attention

HEADS, HEAD_DIM, WINDOW = 8, 64, 256


def calls(lengths, window=WINDOW):
    """Steps of attention by length, with a window if there is one."""
    made = {}
    for length in lengths:
        q, k, v = (
            torch.randn(1, length, HEADS, HEAD_DIM, requires_grad=True)
            for _ in range(3)
        )
        made[length] = functools.partial(_step, q, k, v, window)
    return made


def _step(q, k, v, window):
    q.grad = k.grad = v.grad = None
    attention(q, k, v, window=window).sum().backward()


def scaling(quick):
    """The exponent of the time over the sequence's length."""
    lengths = (1024, 4096) if quick else (2048, 4096, 8192, 16384)
    times = turns(calls(lengths), 3 if quick else 9)
    shortest, longest = lengths[0], lengths[-1]
    growth = median_ratio(times, longest, shortest)
    exponent = math.log(growth) / math.log(longest / shortest)
    return Row(
        figure=f"S^{exponent:.2f} from {shortest} to {longest}",
        holds=exponent <= 1.15,
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
    ("window-scaling", "<= S^1.15", scaling),
    ("window-cost", "<= 0.5 x at a quarter of the window", over_window),
    ("window-causal", ">= 4 x faster than causal (quick: 2 x)", against_causal),
    ("window-masked", ">= 1 x the masked one's speed", against_masked),
]
