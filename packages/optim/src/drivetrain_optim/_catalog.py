"""What there is to know about each optimizer without importing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from drivetrain_optim.algorithms._agd_options import AGD_OPTIONS
from drivetrain_optim.algorithms._lamb_options import LAMB_OPTIONS
from drivetrain_optim.wsam._options import WSAM_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_optim.checks._options import Rule


class Description(NamedTuple):
    """One optimizer, described.

    Args:
        line: What it does, in one line.
        paths: The ways it can run.
        equations: One step, as in the class's docstring.
        symbols: What the equations' symbols are.
        paper: Where the equations come from.
        options: Its options.
    """

    line: str
    paths: tuple[str, ...]
    equations: tuple[str, ...]
    symbols: str
    paper: str
    options: Mapping[str, Rule]


OPTIMIZERS: Mapping[str, Description] = {
    "agd": Description(
        line="Switches each coordinate between an adaptive step and SGD with momentum.",
        paths=("loop", "foreach", "native", "triton", "capturable"),
        equations=(
            "m_t = beta1 * m_{t-1} + (1 - beta1) * g_t",
            "s_t = m_t / (1 - beta1^t) - m_{t-1} / (1 - beta1^(t-1))",
            "s_1 = m_1 / (1 - beta1)",
            "b_t = beta2 * b_{t-1} + (1 - beta2) * s_t^2",
            "w_t = w_{t-1} - lr * mhat_t / max(sqrt(bhat_t), delta)",
        ),
        symbols=(
            "w weights, g gradient, t = 1, 2, ... step, "
            "mhat_t = m_t / (1 - beta1^t), bhat_t = b_t / (1 - beta2^t)"
        ),
        paper=(
            "Yue et al., NeurIPS 2023, Algorithm 1, https://arxiv.org/abs/2312.01658"
        ),
        options=AGD_OPTIONS,
    ),
    "lamb": Description(
        line=(
            "Scales Adam's step for each parameter by a trust ratio, for very large "
            "batches."
        ),
        paths=("loop", "foreach", "native", "triton", "capturable"),
        equations=(
            "m_t = beta1 * m_{t-1} + (1 - beta1) * g_t",
            "v_t = beta2 * v_{t-1} + (1 - beta2) * g_t^2",
            "u_t = mhat_t / (sqrt(vhat_t) + eps) + weight_decay * w_{t-1}",
            "w_t = w_{t-1} - lr * phi(||w_{t-1}||) / ||u_t|| * u_t",
        ),
        symbols=(
            "w weights of one tensor, g gradient, t = 1, 2, ... step, "
            "mhat_t = m_t / (1 - beta1^t), vhat_t = v_t / (1 - beta2^t), phi a bound; "
            "presets: paper, nvlamb, timm"
        ),
        paper="You et al., ICLR 2020, Algorithm 2, https://arxiv.org/abs/1904.00962",
        options=LAMB_OPTIONS,
    ),
    "wsam": Description(
        line=(
            "Minimizes the loss and, with a weight, its sharpness, by any base "
            "optimizer."
        ),
        paths=("the base optimizer's",),
        equations=(
            "L_WSAM(w) = L(w) + a * (L(w + e) - L(w))    a = gamma / (1 - gamma)",
            (
                "e  = rho * g / ||g||                        "
                "adaptive: rho * w^2 * g / || w * g ||"
            ),
            "g  = grad L(w),  gs = grad L(w + e)",
            "w <- Base(w, g) - lr * a * (gs - g)         decouple=True",
            "w <- Base(w, g + a * (gs - g))              decouple=False",
        ),
        symbols="w weights, L loss of the batch, lr learning rate of the base",
        paper=(
            "Yue et al., KDD 2023, Algorithm 1, equations 4 and 8, "
            "https://arxiv.org/abs/2305.15817"
        ),
        options=WSAM_OPTIONS,
    ),
}
"""The optimizers of this package by name."""
