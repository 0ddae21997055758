"""AdaBelief, which the trajectories are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.optim import Optimizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim.optimizer import ParamsT


class AdaBelief(Optimizer):
    """Divides by how far gradients were from what their average foretold.

        m_t = beta1 * m_{t-1} + (1 - beta1) * g_t
        s_t = beta2 * s_{t-1} + (1 - beta2) * (g_t - m_t)^2 + eps
        w_t = w_{t-1} - lr * mhat_t / (sqrt(shat_t) + eps)

    `w_t` are the weights after step `t`, `g_t` is the gradient at `w_{t-1}`,
    `m_0 = s_0 = 0`, `mhat_t = m_t / (1 - beta1^t)` and `shat_t = s_t / (1 - beta2^t)`.

    Algorithm 2 of Zhuang et al., "AdaBelief Optimizer: Adapting Stepsizes by the
    Belief in Observed Gradients", NeurIPS 2020, https://arxiv.org/abs/2010.07468.

    Args:
        params: Parameters or parameter groups.
        lr: Learning rate.
        betas: Decay rates `beta1` and `beta2`.
        eps: Small number in `s_t` and in the denominator.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-16,
    ) -> None:
        """Builds the parameter groups."""
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Performs one step, and returns what the closure returned, or None."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            (beta1, beta2), eps = group["betas"], group["eps"]
            for param in (p for p in group["params"] if p.grad is not None):
                state = self.state[param]
                if not state:
                    state.update(t=0, m=torch.zeros_like(param))
                    state["s"] = torch.zeros_like(param)
                state["t"] += 1
                t, m, s, grad = state["t"], state["m"], state["s"], param.grad
                m.lerp_(grad, 1 - beta1)
                s.mul_(beta2).addcmul_(grad - m, grad - m, value=1 - beta2).add_(eps)
                denominator = (s / (1 - beta2**t)).sqrt_().add_(eps)
                param.addcdiv_(m, denominator, value=-group["lr"] / (1 - beta1**t))
        return loss
