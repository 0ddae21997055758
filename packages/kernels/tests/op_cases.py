"""Every op with small tensors, and a plain formula that it must equal."""

import math
from dataclasses import dataclass
from functools import partial

import torch
from kernel_checks import normal
from torch.nn import functional

import drivetrain_kernels as ops

__all__ = ["CASES", "Case"]

TARGET = torch.tensor([[0, 4, -100], [2, 3, 3], [1, 0, 5], [-100, 2, 1]])
BOUNDS = torch.tensor([0, 5, 5, 12])
KEEP_SEED = 5
_SOME = {"label_smoothing": 0.1, "z_loss": 0.05, "softcap": 3.0}


@dataclass(frozen=True, kw_only=True)
class Case:
    """An op on tensors that it can be differentiated by.

    `call` and `plain` take the tensors by name. `batched` are those whose first dimension
    is that of the batch. `empty` names, for each dimension that may be 0, the tensors and
    where they have it. `large` are sizes of more than 2^31 elements.
    """

    call: object
    plain: object
    tensors: dict
    batched: tuple
    empty: tuple
    large: dict
    differentiable: bool = True
    target: torch.Tensor | None = None


def _tensors(**shapes):
    return dict(zip(shapes, normal(*shapes.values()), strict=True))


def rms(x, weight=None, eps=1e-6):
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return normed if weight is None else normed * weight


def add_rms(x, residual, weight):
    total = x + residual
    return rms(total, weight), total


def dropped(x, residual, weight):
    shape = torch.ones(x.shape)
    keep = ops.dropout_add_rms_norm(shape, 0 * shape, seed=KEEP_SEED, p=0.3)[1]
    keep = keep.ne(0).to(x.device)
    return add_rms(torch.where(keep, x / 0.7, 0.0), residual, weight)


def dropout_add_rms(x, residual, weight):
    return ops.dropout_add_rms_norm(x, residual, weight, p=0.3, seed=KEEP_SEED)


def turned(q, k, cos=None, sin=None, interleaved=False):
    if cos is None:
        angle = torch.arange(q.shape[-3], dtype=torch.float64)[:, None]
        half = torch.arange(0, q.shape[-1], 2, dtype=torch.float64) / q.shape[-1]
        angle = angle * 10000.0**-half
        cos, sin = angle.cos().to(q.dtype), angle.sin().to(q.dtype)
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)

    def one(x):
        x1, x2 = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
        parts = (x1 * cos - x2 * sin, x2 * cos + x1 * sin)
        return (
            torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
        )

    return one(q), one(k)


def _softmax_of(q, k, v, seen, softcap=None):
    groups = q.shape[-2] // k.shape[-2]
    k, v = (t.repeat_interleave(groups, -2) for t in (k, v))
    scores = torch.einsum("...qhd,...khd->...hqk", q, k) * q.shape[-1] ** -0.5
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    shares = scores.masked_fill(~seen, -math.inf).softmax(-1)
    return torch.einsum("...hqk,...khd->...qhd", shares, v)


def attended(q, k, v, window=None, softcap=None):
    query = torch.arange(q.shape[-3])[:, None] + k.shape[-3] - q.shape[-3]
    key = torch.arange(k.shape[-3])
    seen = key <= query
    if window is not None:
        seen = seen & (key > query - window)
    return _softmax_of(q, k, v, seen, softcap)


def packed(q, k, v):
    token = torch.arange(q.shape[-3])
    part = torch.bucketize(token, BOUNDS[1:], right=True)
    seen = (part[:, None] == part) & (token <= token[:, None])
    return _softmax_of(q, k, v, seen)


def loss_of(
    logits, reduction="mean", label_smoothing=0.0, z_loss=0.0, softcap=None, target=None
):
    target = TARGET if target is None else target
    z = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    counts = target != -100
    lse = z.logsumexp(-1)
    taken = z.gather(-1, target.clamp(min=0)[..., None])[..., 0]
    losses = lse - (1 - label_smoothing) * taken - label_smoothing * z.mean(-1)
    losses = torch.where(counts, losses + z_loss * lse.square(), 0.0)
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / counts.sum()


def head_loss(hidden, weight, bias, **options):
    return loss_of(functional.linear(hidden, weight, bias), **options)


def mixture(x, router_weight, w_gate, w_up, w_down):
    scores = functional.linear(x, router_weight).softmax(-1)
    top, experts = scores.topk(2, -1)
    top = top / top.sum(-1, keepdim=True)
    chosen = functional.one_hot(experts, len(w_gate)).to(x.dtype)
    shares = (top[..., None] * chosen).sum(-2)
    gate = torch.einsum("...h,eih->...ei", x, w_gate)
    up = torch.einsum("...h,eih->...ei", x, w_up)
    each = torch.einsum("...ei,ehi->...eh", functional.silu(gate) * up, w_down)
    return torch.einsum("...eh,...e->...h", each, shares)


def block(x, norm_weight, w_in, w_out):
    joined = functional.linear(rms(x, norm_weight), w_in)
    q, k, v, gate, up = joined.split_with_sizes([8, 4, 4, 12, 12], -1)
    q, k, v = (t.unflatten(-1, (-1, 4)) for t in (q, k, v))
    heads = attended(*turned(q, k), v).flatten(-2)
    both = torch.cat((heads, functional.silu(gate) * up), -1)
    return x + functional.linear(both, w_out)


def clipped_by(clip):
    def call(**grads):
        holders = [torch.zeros_like(g).detach() for g in grads.values()]
        for holder, grad in zip(holders, grads.values(), strict=True):
            holder.grad = grad.clone()
        total = clip(holders, 1.0)
        return total, *(holder.grad for holder in holders)

    return call


def scaled(**grads):
    total = torch.stack([g.square().sum() for g in grads.values()]).sum().sqrt()
    scale = (1.0 / (total + 1e-6)).clamp(max=1.0)
    return total, *(g * scale for g in grads.values())


def _norm(call, plain, large=2**20, **shapes):
    tensors = _tensors(**shapes)
    rows = tuple(n for n in tensors if n not in {"weight", "bias"})
    return Case(
        call=call,
        plain=plain,
        tensors=tensors,
        batched=rows,
        empty=(
            dict.fromkeys(rows, 0),
            dict.fromkeys(rows, 1),
        ),
        large={n: (large, 4096) if n in rows else (4096,) for n in tensors},
    )


_X, _ROW = (4, 3, 6), (6,)
_Q, _K = (2, 5, 4, 8), (2, 5, 2, 8)


def _attention(num, heads=(4, 2), dim=8, **options):
    key = (2, num, heads[1], dim)
    shapes = {"q": (2, num, heads[0], dim), "k": key, "v": key}
    return Case(
        call=partial(ops.attention, **options),
        plain=partial(attended, **{n: v for n, v in options.items() if n != "impl"}),
        tensors=_tensors(**shapes),
        batched=("q", "k", "v"),
        empty=({"q": 0, "k": 0, "v": 0}, {"q": 1}, {"q": 1, "k": 1, "v": 1}),
        large={
            "q": (2**14, 64, 32, 128),
            "k": (2**14, 64, 8, 128),
            "v": (2**14, 64, 8, 128),
        },
    )


def _loss(impl="auto", **options):
    def call(logits, target=TARGET):
        return ops.cross_entropy(logits, target.to(logits.device), impl=impl, **options)

    return Case(
        call=call,
        plain=partial(loss_of, **options),
        tensors=_tensors(logits=(4, 3, 6)),
        target=TARGET,
        batched=("logits",),
        empty=({"logits": 0}, {"logits": 1}),
        large={"logits": (2**16, 2**16)},
    )


def _head(impl="auto", **options):
    def call(hidden, weight, bias, target=TARGET):
        target = target.to(hidden.device)
        return ops.linear_cross_entropy(
            hidden, weight, target, bias=bias, impl=impl, **options
        )

    return Case(
        call=call,
        plain=partial(head_loss, **options),
        tensors=_tensors(hidden=(4, 3, 6), weight=(6, 6), bias=(6,)),
        target=TARGET,
        batched=("hidden",),
        empty=({"hidden": 0}, {"hidden": 1}, {"hidden": 2, "weight": 1}),
        large={"hidden": (2**17, 2**15), "weight": (2**17, 2**15), "bias": (2**17,)},
    )


def _mixture(impl="auto"):
    def call(**tensors):
        return ops.moe(**tensors, top_k=2, impl=impl).output

    shapes = {"w_gate": (4, 16, 8), "w_up": (4, 16, 8), "w_down": (4, 8, 16)}
    large = {"w_gate": (64, 8192, 8192), "w_up": (64, 8192, 8192)}
    return Case(
        call=call,
        plain=mixture,
        tensors=_tensors(x=(4, 3, 8), router_weight=(4, 8), **shapes),
        batched=("x",),
        empty=(
            {"x": 0},
            {"x": 1},
            {"w_gate": 1, "w_up": 1, "w_down": 2},
        ),
        large={
            "x": (2**19, 8192),
            "router_weight": (64, 8192),
            **large,
            "w_down": (64, 8192, 8192),
        },
    )


def _table_rope(q, k, cos, sin):
    return ops.rope(q, k, cos, sin, interleaved=True)


CASES = {
    "rms_norm": _norm(ops.rms_norm, rms, x=_X, weight=_ROW),
    "rms_norm eager": _norm(
        partial(ops.rms_norm, impl="eager"), rms, x=_X, weight=_ROW
    ),
    "rms_norm reference": _norm(
        partial(ops.rms_norm, impl="reference"), rms, x=_X, weight=_ROW
    ),
    "add_rms_norm": _norm(ops.add_rms_norm, add_rms, x=_X, residual=_X, weight=_ROW),
    "dropout_add_rms_norm": _norm(
        dropout_add_rms, dropped, x=_X, residual=_X, weight=_ROW
    ),
    "layer_norm": _norm(
        ops.layer_norm,
        lambda x, weight, bias: functional.layer_norm(x, x.shape[-1:], weight, bias),
        x=_X,
        weight=_ROW,
        bias=_ROW,
    ),
    "swiglu": _norm(
        ops.swiglu, lambda gate, up: functional.silu(gate) * up, gate=_X, up=_X
    ),
    "geglu": _norm(
        ops.geglu,
        lambda gate, up: functional.gelu(gate, approximate="tanh") * up,
        gate=_X,
        up=_X,
    ),
    "rope": Case(
        call=ops.rope,
        plain=turned,
        tensors=_tensors(q=_Q, k=_K),
        batched=("q", "k"),
        empty=({"q": 0, "k": 0}, {"q": 1, "k": 1}, {"q": 2}),
        large={"q": (2**14, 64, 32, 128), "k": (2**14, 64, 8, 128)},
    ),
    "rope of tables": Case(
        call=_table_rope,
        plain=partial(turned, interleaved=True),
        tensors=_tensors(q=_Q, k=_K, cos=(5, 4), sin=(5, 4)),
        batched=("q", "k"),
        empty=({"q": 0, "k": 0}, {"q": 1, "k": 1, "cos": 0, "sin": 0}, {"q": 2}),
        large={
            "q": (2**14, 64, 32, 128),
            "k": (2**14, 64, 8, 128),
            "cos": (64, 64),
            "sin": (64, 64),
        },
    ),
    "attention": _attention(5),
    "attention window": _attention(70, (2, 1), 1, window=3),
    "attention softcap": _attention(5, softcap=2.0),
    "attention packed": Case(
        call=lambda q, k, v: ops.attention(
            q, k, v, cu_seqlens_q=BOUNDS.to(q.device).clamp(max=len(q)), causal=True
        ),
        plain=packed,
        tensors=_tensors(q=(12, 4, 8), k=(12, 2, 8), v=(12, 2, 8)),
        batched=(),
        empty=({"q": 0, "k": 0, "v": 0},),
        large={"q": (2**18, 128, 128), "k": (2**18, 64, 128), "v": (2**18, 64, 128)},
    ),
    "cross_entropy": _loss(),
    "cross_entropy none": _loss(reduction="none", **_SOME),
    "linear_cross_entropy": _head(),
    "linear_cross_entropy none": _head(reduction="none", **_SOME),
    "linear_cross_entropy reference": _head(impl="reference", reduction="sum"),
    "moe": _mixture(),
    "moe split": _mixture("split"),
    "moe reference": _mixture("reference"),
    "parallel_block": Case(
        call=partial(ops.parallel_block, num_heads=2, num_kv_heads=1),
        plain=block,
        tensors=_tensors(x=(2, 5, 8), norm_weight=(8,), w_in=(40, 8), w_out=(8, 20)),
        batched=("x",),
        empty=({"x": 0}, {"x": 1}),
        large={
            "x": (2**10, 2**9, 2**13),
            "norm_weight": (2**13,),
            "w_in": (2**15, 2**13),
            "w_out": (2**13, 2**14),
        },
    ),
    "clip_grad_norm_": Case(
        call=clipped_by(ops.clip_grad_norm_),
        plain=scaled,
        tensors=_tensors(a=(3, 4), b=(5,)),
        batched=(),
        empty=({"a": 0}, {"b": 0}),
        large={"a": (2**16, 2**16), "b": (5,)},
        differentiable=False,
    ),
}
