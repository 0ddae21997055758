"""The ops as a GPU is asked to run them: ours, torch's, and those of Liger-Kernel.

T tokens, H hidden size, F inner size of the MLP, V classes. Bytes count each operand that
must be read or written once.
"""

import functools
from dataclasses import dataclass
from importlib import import_module

import torch
from torch.nn import functional

import drivetrain_kernels as dk

T, H, F, V = 8192, 4096, 14336, 128256
HEADS, KEY_HEADS, HEAD_DIM = 32, 8, 128
DTYPE = torch.bfloat16


@dataclass(frozen=True, kw_only=True)
class Case:
    """One op.

    Args:
        make: Returns the tensors for a number of tokens.
        ours: The op.
        eager: The same in torch's operators.
        liger: The function's name in `liger_kernel.transformers.functional`, or None.
        as_liger: Calls Liger's function with the tensors.
        forward: How often the forward moves the first tensor's bytes, or what weighs.
        backward: Likewise for the backward.
        weight: The elements that count once.
        tokens: How many tokens are taken.
    """

    make: object
    ours: object
    eager: object
    liger: str | None = None
    as_liger: object = None
    forward: float
    backward: float
    weight: int
    tokens: int = T


def normal(*shape):
    return torch.randn(shape, device="cuda", dtype=DTYPE)


def rows(tokens):
    return [normal(tokens, H), normal(H)]


def pairs_of_rows(tokens):
    return [normal(tokens, H), normal(tokens, H), normal(H)]


def gates(tokens):
    return [normal(tokens, F), normal(tokens, F)]


def heads(tokens):
    q, k = normal(1, tokens, HEADS, HEAD_DIM), normal(1, tokens, KEY_HEADS, HEAD_DIM)
    return [q, k]


def classes(tokens):
    return [normal(tokens, V)]


@functools.cache
def angles(tokens):
    """Cosines and sines of positions, as halves that repeat."""
    frequency = 10000.0 ** -(torch.arange(0, HEAD_DIM, 2, device="cuda") / HEAD_DIM)
    angle = torch.arange(tokens, device="cuda")[:, None] * frequency
    both = torch.cat([angle, angle], -1)
    return both.cos().to(DTYPE), both.sin().to(DTYPE)


def rotated_half(x):
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def eager_rope(q, k):
    cos, sin = (t[None, :, None] for t in angles(q.shape[1]))
    return tuple(t * cos + rotated_half(t) * sin for t in (q, k))


@functools.cache
def half_angles(tokens):
    """The same without the repetition."""
    return tuple(t[:, : HEAD_DIM // 2].contiguous() for t in angles(tokens))


def our_rope(q, k):
    return dk.rope(q, k, *half_angles(q.shape[1]))


def liger_rope(function, q, k):
    cos, sin = (t[None] for t in angles(q.shape[1]))
    return function(q.transpose(1, 2), k.transpose(1, 2), cos, sin)


def eager_add_norm(x, residual, w):
    z = x + residual
    return functional.rms_norm(z, (H,), w, 1e-6), z


def eager_dropout_add_norm(x, residual, w):
    return eager_add_norm(functional.dropout(x, 0.1), residual, w)


def targets(tokens):
    return torch.arange(tokens, device="cuda")


def eager_cross_entropy(z):
    return functional.cross_entropy(z.float(), targets(len(z)))


CASES = {
    "rms_norm": Case(
        make=rows,
        ours=lambda x, w: dk.rms_norm(x, w),
        eager=lambda x, w: functional.rms_norm(x, (H,), w, 1e-6),
        liger="liger_rms_norm",
        as_liger=lambda function, x, w: function(x, w, 1e-6, in_place=False),
        forward=2,
        backward=3,
        weight=T * H,
    ),
    "layer_norm": Case(
        make=rows,
        ours=lambda x, w: dk.layer_norm(x, w, w),
        eager=lambda x, w: functional.layer_norm(x, (H,), w, w),
        liger="liger_layer_norm",
        as_liger=lambda function, x, w: function(x, w, w, 1e-5),
        forward=2,
        backward=3,
        weight=T * H,
    ),
    "add_rms_norm": Case(
        make=pairs_of_rows,
        ours=lambda x, r, w: dk.add_rms_norm(x, r, w),
        eager=eager_add_norm,
        liger="liger_fused_add_rms_norm",
        as_liger=lambda function, x, r, w: function(x, r, w, 1e-6, in_place=False),
        forward=4,
        backward=4,
        weight=T * H,
    ),
    "dropout_add_rms_norm": Case(
        make=pairs_of_rows,
        ours=lambda x, r, w: dk.dropout_add_rms_norm(x, r, w, p=0.1, seed=1),
        eager=eager_dropout_add_norm,
        forward=4,
        backward=5,
        weight=T * H,
    ),
    "rope": Case(
        make=heads,
        ours=our_rope,
        eager=eager_rope,
        liger="liger_rope",
        as_liger=liger_rope,
        forward=2,
        backward=2,
        weight=T * (HEADS + KEY_HEADS) * HEAD_DIM,
    ),
    "swiglu": Case(
        make=gates,
        ours=lambda g, u: dk.swiglu(g, u),
        eager=lambda g, u: functional.silu(g) * u,
        liger="liger_swiglu",
        as_liger=lambda function, g, u: function(g, u),
        forward=3,
        backward=5,
        weight=T * F,
    ),
    "geglu": Case(
        make=gates,
        ours=lambda g, u: dk.geglu(g, u),
        eager=lambda g, u: functional.gelu(g, approximate="tanh") * u,
        liger="liger_geglu",
        as_liger=lambda function, g, u: function(g, u),
        forward=3,
        backward=5,
        weight=T * F,
    ),
    "cross_entropy": Case(
        make=classes,
        ours=lambda z: dk.cross_entropy(z, targets(len(z))),
        eager=eager_cross_entropy,
        liger="liger_cross_entropy",
        # It writes the gradient over the logits, so that it needs a copy in a benchmark.
        as_liger=lambda function, z: function(z.clone(), targets(len(z))),
        forward=1,
        backward=2,
        weight=T // 2 * V,
        tokens=T // 2,
    ),
}


def liger_form(case):
    """Liger's form of a case, or None if it has none or is not installed."""
    try:
        module = import_module("liger_kernel.transformers.functional")
    except ImportError:
        return None
    function = getattr(module, case.liger or "", None)
    return None if function is None else functools.partial(case.as_liger, function)


def forms_of(name):
    """Every form of an op that is here, by name."""
    case = CASES[name]
    forms = {
        "ours": case.ours,
        "eager": case.eager,
        "inductor": torch.compile(case.eager, dynamic=False),
        "liger": liger_form(case),
    }
    return {key: form for key, form in forms.items() if form is not None}
