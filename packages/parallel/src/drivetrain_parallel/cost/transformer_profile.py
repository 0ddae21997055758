"""The profile of a transformer from its sizes alone."""

from __future__ import annotations

from drivetrain_core import Code, PlanError
from drivetrain_parallel.cost.model_profile import Matmul, ModelProfile, Part

# Kernels of a forward pass through a block of an eager program: two norms, two residual
# sums, four products, the reshapes and casts around attention.
_KERNELS = 40
# What eager programs move besides, in 16-bit elements: an RMS norm of single operators
# (to float32, square, mean, scale, back, weight), and a rotation of queries and keys in
# float32. Layer norms are one kernel everywhere.
_RMS_NORM_ELEMENTS = 16.0
_ROTATION_ELEMENTS = 8.0


def profile_transformer(
    *,
    layers: int,
    hidden: int,
    heads: int,
    vocab: int,
    seq: int,
    kv_heads: int | None = None,
    head_width: int | None = None,
    ffn: int | None = None,
    gated: bool = False,
    biases: bool = False,
    positions: bool = False,
    tied: bool = False,
    causal: bool = True,
    window: int | None = None,
    parallel_block: bool = False,
    experts: int = 0,
    active_experts: int = 1,
    name: str = "transformer",
) -> ModelProfile:
    """Returns the profile of a decoder or encoder of equal blocks.

    Args:
        layers: Blocks.
        hidden: Width of the residual stream.
        heads: Attention heads.
        vocab: Tokens of the vocabulary.
        seq: Tokens of a sample.
        kv_heads: Heads of keys and values; None for as many as `heads`.
        head_width: Width of a head; None for `hidden / heads`.
        ffn: Width inside the feed-forward part; None for four times `hidden`.
        gated: Whether the feed-forward part has a gate (three weights, and RMS norms
            without a bias), as in Llama.
        biases: Whether linears and norms have biases, as in GPT.
        positions: Whether positions are embedded by a table.
        tied: Whether the head is the embedding.
        causal: Whether a token sees only those before it.
        window: How many tokens before it a token sees; None for all.
        parallel_block: Whether attention and the feed-forward part read one norm and
            are summed at once.
        experts: Feed-forward parts of which a router picks; 0 for a dense model.
        active_experts: How many it picks for each token.
        name: What to call the model.

    Raises:
        PlanError: A size is not positive, or heads do not divide.

    Example:
        >>> llama = profile_transformer(layers=32, hidden=4096, heads=32, kv_heads=8,
        ...     ffn=14336, vocab=128256, seq=8192, gated=True)
        >>> llama.num_parameters
        8030261248
    """
    kv_heads = heads if kv_heads is None else kv_heads
    ffn = 4 * hidden if ffn is None else ffn
    _check(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocab=vocab,
        seq=seq,
        active_experts=active_experts,
    )
    if head_width is None:
        if hidden % heads:
            raise PlanError(
                Code.CONFIG,
                "model",
                because=f"hidden {hidden} is not divisible by {heads} heads",
            )
        head_width = hidden // heads
    if heads % kv_heads:
        raise PlanError(
            Code.CONFIG,
            "model",
            because=f"{heads} heads are not divisible by {kv_heads} kv_heads",
        )
    if experts and active_experts > experts:
        raise PlanError(
            Code.CONFIG,
            "model",
            because=f"active_experts {active_experts} of only {experts} experts",
        )
    queries, keys = heads * head_width, kv_heads * head_width
    fan_out = ffn * (2 if gated else 1)
    attention = (
        Matmul(inputs=hidden, outputs=queries + 2 * keys, split="outputs"),
        Matmul(inputs=queries, outputs=hidden, split="inputs"),
    )
    feed_forward = _feed_forward(hidden, ffn, fan_out, experts, active_experts)
    dense = sum(m.inputs * m.outputs for m in attention)
    per_expert = hidden * fan_out + ffn * hidden
    # A bias of a column-parallel weight is divided with it; a row-parallel one is not.
    split = dense + per_expert * max(experts, 1)
    norms = 1 if parallel_block else 2
    small = norms * hidden * (2 if biases else 1)
    if biases:
        split += queries + 2 * keys + fan_out * max(experts, 1)
        small += hidden + hidden * max(experts, 1)
    router = hidden * experts
    if experts:
        feed_forward += (Matmul(inputs=hidden, outputs=experts),)
    span = _keys_per_query(seq, causal, window)
    active = active_experts if experts else 1
    rotated = _ROTATION_ELEMENTS * (queries + keys)
    block = Part(
        parameters=split + small + router,
        split_parameters=split,
        expert_parameters=per_expert * experts,
        matmuls=(*attention, *feed_forward),
        attention_flops=4.0 * seq * queries,
        attention_work=4.0 * span * queries,
        score_elements=float(heads * seq),
        key_elements=2.0 * keys,
        # A norm reads and writes, a residual sum reads two and writes one.
        outer_elements=hidden * (2 + 4 if parallel_block else 2 * 2 + 2 * 3),
        # The activation function, and the rotation or the reshapes of queries and keys.
        inner_elements=(fan_out + ffn) * active + 2.0 * (queries + keys),
        unfused_outer=norms * hidden * _RMS_NORM_ELEMENTS if gated else 0.0,
        unfused_inner=2.0 * ffn * active + rotated if gated else 0.0,
        outer_saved=hidden * (2.0 if parallel_block else 4.0),
        inner_saved=2.0 * queries + 2 * keys + (fan_out + ffn) * active,
        regions=1 if parallel_block else 2,
        exchanges=2 if experts else 0,
        kernels=_KERNELS + 3 * experts,
        routed_elements=float(hidden * active) if experts else 0.0,
    )
    table = vocab * hidden
    norm = hidden * (2 if biases else 1)
    return ModelProfile(
        name=name,
        num_blocks=layers,
        block=block,
        prologue=Part(
            parameters=table + (seq * hidden if positions else 0),
            split_parameters=table,
            outer_elements=2.0 * hidden,
            regions=1,
            kernels=4,
        ),
        epilogue=Part(
            parameters=table + norm,
            split_parameters=table,
            matmuls=(Matmul(inputs=hidden, outputs=vocab, split="outputs"),),
            outer_elements=2.0 * hidden,
            # The cast to float32, the softmax and the loss each pass over the logits.
            inner_elements=8.0 * vocab,
            outer_saved=2.0 * hidden,
            inner_saved=float(vocab),
            regions=1,
            kernels=10,
        ),
        width=hidden,
        sequence=seq,
        vocabulary=vocab,
        tied_parameters=table if tied else 0,
        heads=tuple(sorted({heads, kv_heads})),
        num_experts=experts,
    )


def _feed_forward(
    hidden: int, ffn: int, fan_out: int, experts: int, active: int
) -> tuple[Matmul, ...]:
    share = active / experts if experts else 1.0
    count = max(experts, 1)
    return (
        Matmul(
            inputs=hidden, outputs=fan_out, split="outputs", count=count, tokens=share
        ),
        Matmul(inputs=ffn, outputs=hidden, split="inputs", count=count, tokens=share),
    )


def _keys_per_query(seq: int, causal: bool, window: int | None) -> float:
    """Returns how many keys a token visits, in the mean."""
    if not causal:
        return float(seq if window is None else min(seq, 2 * window + 1))
    if window is None or window >= seq:
        return (seq + 1) / 2
    return window - window * (window - 1) / (2 * seq)


def _check(**sizes: object) -> None:
    for name, size in sizes.items():
        if type(size) is not int or size < 1:
            raise PlanError(
                Code.CONFIG,
                "model",
                because=f"{name} must be an integer of at least 1, got {size!r}",
            )
