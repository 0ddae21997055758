"""The router of a mixture of experts: which experts take a token, with what weight.

For token t with router logits z (E of them), scores s = softmax(z) or sigmoid(z), the K
largest scores choose the experts, and are their weights, divided by their sum if they
are normalised. Two losses keep the router healthy: with f_e the share of assignments
that expert e got, and P_e the mean of its scores (divided by their sum over experts),

    balance = E sum_e f_e P_e        Fedus et al., Switch Transformers, 2021, equation 4
    z = mean_t logsumexp(z_t)^2      Zoph et al., ST-MoE, 2022, equation 5

https://arxiv.org/abs/2101.03961 and https://arxiv.org/abs/2202.08906.

Shapes: T tokens, H width, E experts, K experts a token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

from drivetrain_kernels._accumulation import accumulation_dtype
from drivetrain_kernels._check import without_autocast

if TYPE_CHECKING:
    from torch import Tensor

SCORES = ("softmax", "sigmoid")
_LEAST_SUM = 1e-20  # its inverse is far from overflowing, also in gradients


class Routing(NamedTuple):
    """Where the tokens go.

    Args:
        experts: `(T, K)`, the experts of each token, int64.
        weights: `(T, K)`, their weights, in float32 (float64 for float64 tokens).
        counts: `(E,)`, how many assignments each expert got, before any was dropped.
        balance_loss: 1 if experts are used evenly, up to E if one gets everything.
        z_loss: Grows with the logits.
    """

    experts: Tensor
    weights: Tensor
    counts: Tensor
    balance_loss: Tensor
    z_loss: Tensor


def route(
    x_TH: Tensor,
    router_EH: Tensor,
    top_k: int,
    *,
    scores: str = "softmax",
    normalize: bool = True,
) -> Routing:
    """Returns the experts of each token, their weights, and the router's losses.

    Args:
        x_TH: The tokens.
        router_EH: The router's weight.
        top_k: How many experts take a token.
        scores: "softmax" or "sigmoid".
        normalize: Whether the weights of a token sum to one.

    Example:
        >>> tokens = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> found = route(tokens, torch.eye(2), 1, normalize=False)
        >>> found.experts.flatten(), found.weights.flatten()
        (tensor([0, 1]), tensor([0.8808, 0.7311]))
    """
    wide = accumulation_dtype(x_TH.dtype)
    logits_TE = _logits(x_TH.to(wide), router_EH.to(wide))
    if scores == "softmax":
        scores_TE = logits_TE.softmax(-1)
        shares_TE = scores_TE
    else:
        scores_TE = logits_TE.sigmoid()
        shares_TE = _shared(scores_TE)
    weights_TK, experts_TK = scores_TE.topk(top_k, -1)
    if normalize:
        weights_TK = _shared(weights_TK)
    num_tokens, num_experts = logits_TE.shape
    # A sum of comparisons instead of a histogram, which adds atomically on a GPU.
    every = torch.arange(num_experts, device=x_TH.device)
    counts_E = (experts_TK[..., None] == every).sum((0, 1))
    part = max(num_tokens, 1)
    used_E = counts_E.to(wide) / (part * top_k)
    balance = num_experts * (used_E * shares_TE.sum(0) / part).sum()
    z_loss = logits_TE.logsumexp(-1).square().sum() / part
    return Routing(experts_TK, weights_TK, counts_E, balance, z_loss)


def _shared(scores: Tensor) -> Tensor:
    """Returns scores divided by their sum; sigmoids may all have become zero."""
    return scores / scores.sum(-1, keepdim=True).clamp(min=_LEAST_SUM)


def _logits(x_TH: Tensor, router_EH: Tensor) -> Tensor:
    with without_autocast(x_TH.device):
        return functional.linear(x_TH, router_EH)
