"""A mixture of experts: each token goes through the few experts that suit it.

    y_t = sum over the K experts e of token t of  w_te E_e(x_t)
    E_e(x) = Wdown_e (silu(Wgate_e x) * (Wup_e x))

Shazeer et al., Outrageously Large Neural Networks, 2017, equation 1
(https://arxiv.org/abs/1701.06538), with the experts of Mixtral.

Shapes: T tokens, H width, I inner width, E experts, K experts a token, N = T K.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

from drivetrain_kernels._available import (
    torch_function_missing,
    transforms_active,
    triton_missing,
)
from drivetrain_kernels._check import (
    autocast_dtype,
    check_floating,
    check_like,
    check_one_of,
    check_shape,
    check_whole,
    is_distributed,
)
from drivetrain_kernels._dispatch import (
    Example,
    Implementation,
    Op,
    reference_form,
    triton_form,
)
from drivetrain_kernels._errors import DeviceError, OptionError, ShapeError
from drivetrain_kernels.ops._moe_gemm import grouped_gemm, split_gemm
from drivetrain_kernels.ops._moe_permute import permute, sort_by_expert, unpermute
from drivetrain_kernels.ops._moe_route import SCORES, route
from drivetrain_kernels.ops._norm_rows import MAX_COLUMNS
from drivetrain_kernels.ops._swiglu import swiglu

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_ALIGNMENT_BYTES = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class MoEFacts:
    """What the choice of an implementation depends on.

    Args:
        device: The type of the device.
        dtype: That of tokens and experts.
        width: The length of a token.
        aligned: Whether rows of every matrix are whole multiples of 16 bytes.
    """

    device: str
    dtype: torch.dtype
    width: int
    aligned: bool


class MoEResult(NamedTuple):
    """What the experts made of the tokens, and how the router did.

    Args:
        output: Of the shape and dtype of the tokens.
        balance_loss: 1 if experts are used evenly, up to E if one gets everything;
            add a small multiple of it to the loss.
        z_loss: Grows with the router's logits; likewise.
        counts: How many assignments each expert got, before any was dropped.
    """

    output: Tensor
    balance_loss: Tensor
    z_loss: Tensor
    counts: Tensor


def moe(
    x: Tensor,
    router_weight: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    w_down: Tensor,
    *,
    top_k: int,
    normalize: bool = True,
    scores: str = "softmax",
    capacity: int | None = None,
    impl: str = "auto",
) -> MoEResult:
    """Sends each token through `top_k` experts and sums what they return.

    Under autocast tokens and experts are cast to its dtype; the router is not.

    Args:
        x: Tokens, `(..., H)`.
        router_weight: `(E, H)`, of the dtype of `x` or float32.
        w_gate: `(E, I, H)`, the layout of a stack of `torch.nn.Linear` weights.
        w_up: Likewise.
        w_down: `(E, H, I)`.
        top_k: How many experts take a token, from 1 to E.
        normalize: Whether the weights of a token's experts sum to one.
        scores: How the router's logits become weights: "softmax" or "sigmoid".
        capacity: The most assignments that an expert takes; those of later tokens
            count as zero. None for no limit.
        impl: "auto", or "triton" (torch's grouped GEMM between Triton kernels),
            "grouped_mm" (the same GEMM between torch's operators), "split" (a GEMM for
            each expert that has tokens) or "reference" (a loop over experts).

    Returns:
        The output, the router's two losses, and the assignments of each expert.

    Raises:
        ShapeError: The shapes do not fit each other.
        DtypeError: A dtype is not floating-point, or they do not fit each other.
        OptionError: `top_k`, `scores` or `capacity` has no allowed value.
        ImplementationError: The implementation asked for cannot take this call.

    Example:
        >>> x, router = torch.randn(5, 4), torch.randn(3, 4)
        >>> up, down = torch.randn(3, 8, 4), torch.randn(3, 4, 8)
        >>> moe(x, router, up, up, down, top_k=2).output.shape
        torch.Size([5, 4])
    """
    check_floating("moe", "x", x)
    dtype = autocast_dtype(x.device)
    if dtype is not None:
        x, w_gate, w_up, w_down = (t.to(dtype) for t in (x, w_gate, w_up, w_down))
    found = facts(
        x,
        router_weight,
        w_gate,
        w_up,
        w_down,
        top_k=top_k,
        normalize=normalize,
        scores=scores,
        capacity=capacity,
    )
    x_TH = x.reshape(-1, x.shape[-1])
    routing = route(x_TH, router_weight, top_k, scores=scores, normalize=normalize)
    weights_TK = routing.weights
    if capacity is not None:
        kept_TK = _within(capacity, routing.experts, routing.counts)
        weights_TK = weights_TK * kept_TK
    args = (x_TH, routing.experts, weights_TK, routing.counts)
    output = OP.run(found, impl, *args, w_gate, w_up, w_down)
    return MoEResult(
        output.view(x.shape), routing.balance_loss, routing.z_loss, routing.counts
    )


def facts(
    x: Tensor,
    router_weight: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    w_down: Tensor,
    *,
    top_k: int,
    normalize: bool = True,
    scores: str = "softmax",
    capacity: int | None = None,
) -> MoEFacts:
    """Checks a call and returns what the choice depends on.

    Args:
        x: See `moe`.
        router_weight: Likewise.
        w_gate: Likewise.
        w_up: Likewise.
        w_down: Likewise.
        top_k: Likewise.
        normalize: Likewise.
        scores: Likewise.
        capacity: Likewise.
    """
    del normalize
    check_floating("moe", "x", x)
    check_floating("moe", "router_weight", router_weight)
    for name, weight in (("w_gate", w_gate), ("w_up", w_up), ("w_down", w_down)):
        check_floating("moe", name, weight)
    if x.dim() == 0 or w_gate.dim() != 3:
        message = (
            "moe: x must be (..., width) and w_gate (experts, inner, width), got "
            f"{tuple(x.shape)} and {tuple(w_gate.shape)}"
        )
        raise ShapeError(message)
    if is_distributed(x):
        message = (
            "moe: it routes tokens by their values, for which a DTensor has no rule; "
            "give x.to_local() or x.full_tensor(), and plain weights"
        )
        raise DeviceError(message)
    check_like("moe", ("x", x), ("router_weight", router_weight), float32_allowed=True)
    check_like("moe", ("x", x), ("w_gate", w_gate), ("w_up", w_up), ("w_down", w_down))
    width = x.shape[-1]
    num_experts, inner, _ = w_gate.shape
    check_shape("moe", "router_weight", router_weight, (num_experts, width))
    check_shape("moe", "w_gate", w_gate, (num_experts, inner, width))
    check_shape("moe", "w_up", w_up, (num_experts, inner, width))
    check_shape("moe", "w_down", w_down, (num_experts, width, inner))
    check_one_of("moe", "scores", scores, SCORES)
    check_whole("moe", "top_k", top_k)
    if capacity is not None:
        check_whole("moe", "capacity", capacity)
    if not 1 <= top_k <= num_experts:
        message = f"moe: top_k must be from 1 to the {num_experts} experts, got {top_k}"
        raise OptionError(message)
    if capacity is not None and capacity < 1:
        message = f"moe: capacity must be >= 1, or None for no limit, got {capacity}"
        raise OptionError(message)
    size = x.element_size()
    return MoEFacts(
        device=x.device.type,
        dtype=x.dtype,
        width=width,
        aligned=all(n > 0 and n * size % _ALIGNMENT_BYTES == 0 for n in (width, inner)),
    )


def _within(capacity: int, experts_TK: Tensor, counts_E: Tensor) -> Tensor:
    """Returns which assignments are among the first `capacity` of their expert."""
    order = sort_by_expert(experts_TK, counts_E)
    firsts_E = order.ends - counts_E
    return order.rows - firsts_E[experts_TK] < capacity


def _sorted(
    gemm: Callable[[Tensor, Tensor, Tensor], Tensor], *, fused: bool = False
) -> Callable[..., Tensor]:
    """Returns the layer on tokens that are sorted by expert, with a grouped GEMM."""

    def call(*tensors: Tensor) -> Tensor:
        x_TH, experts_TK, weights_TK, counts_E, w_gate_EIH, w_up_EIH, w_down_EHI = (
            tensors
        )
        order = sort_by_expert(experts_TK, counts_E)
        x_NH = permute(x_TH, order, fused=fused)
        gate_NI = gemm(x_NH, w_gate_EIH, order.ends)
        up_NI = gemm(x_NH, w_up_EIH, order.ends)
        y_NH = gemm(swiglu(gate_NI, up_NI), w_down_EHI, order.ends)
        return unpermute(y_NH, weights_TK, order, fused=fused)

    return call


def _reference(*tensors: Tensor) -> Tensor:
    x_TH, experts_TK, weights_TK, _, w_gate_EIH, w_up_EIH, w_down_EHI = tensors
    total_TH = torch.zeros_like(x_TH)
    for expert in range(w_gate_EIH.shape[0]):
        token, place = torch.where(experts_TK == expert)
        x_NH = x_TH[token]
        gate_NI = functional.linear(x_NH, w_gate_EIH[expert])
        up_NI = functional.linear(x_NH, w_up_EIH[expert])
        y_NH = functional.linear(functional.silu(gate_NI) * up_NI, w_down_EHI[expert])
        weighted_NH = y_NH * weights_TK[token, place][:, None]
        total_TH = total_TH.index_add(0, token, weighted_NH.to(x_TH.dtype))
    return total_TH


def _grouped_refuses(facts: MoEFacts) -> str | None:
    transformed: str | None = transforms_active()
    if transformed is not None:
        return transformed
    missing = torch_function_missing("torch.nn.functional.grouped_mm")
    if missing is not None:
        return f"needs a newer torch: {missing}"
    if facts.device != "cpu" and facts.dtype != torch.bfloat16:
        return f"takes bfloat16 on a GPU, got {facts.dtype}"
    if facts.dtype == torch.float64:
        return "takes no float64"
    if not facts.aligned:
        return f"needs widths of whole multiples of {_ALIGNMENT_BYTES} bytes"
    return None


def _triton_refuses(facts: MoEFacts) -> str | None:
    if facts.width > MAX_COLUMNS:
        return f"takes tokens of at most {MAX_COLUMNS} columns, got {facts.width}"
    return triton_missing(facts.device) or _grouped_refuses(facts)


def _waits(facts: MoEFacts) -> str | None:
    if facts.device not in {"cpu", "meta"}:
        return "waits for the GPU to know how many tokens an expert has"
    return None


def _example(device: torch.device, dtype: torch.dtype) -> Example:
    shapes = ((6, 16), (4, 16), (4, 32, 16), (4, 32, 16), (4, 16, 32))
    tensors = tuple(torch.randn(s, device=device, dtype=dtype) for s in shapes)
    return tensors, {"top_k": 2}


OP = Op(
    name="moe",
    implementations=(
        triton_form(
            _sorted(grouped_gemm, fused=True),
            refuse=_triton_refuses,
            because="torch's grouped GEMM between kernels that move tokens once",
        ),
        Implementation(
            name="grouped_mm",
            call=_sorted(grouped_gemm),
            refuse=_grouped_refuses,
            because="one kernel of torch for all experts",
        ),
        Implementation(
            name="split",
            call=_sorted(split_gemm),
            refuse=lambda _: transforms_active(),
            automatic=_waits,
            because="tokens are sorted once, and each expert is three GEMMs",
        ),
        reference_form(_reference),
    ),
    facts=facts,
    example=_example,
)
