"""What there is to know about each optimizer without importing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from drivetrain_optim._agd_options import AGD_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_optim._options import Rule

__all__ = ["OPTIMIZERS", "Explanation"]


class Explanation(NamedTuple):
    """One optimizer, explained.

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


OPTIMIZERS: Mapping[str, Explanation] = {
    "agd": Explanation(
        line="Switches each coordinate between an adaptive step and SGD with momentum.",
        paths=("loop", "foreach"),
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
}
"""The optimizers of this package by name."""
