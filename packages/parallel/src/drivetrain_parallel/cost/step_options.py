"""How a step is run on a mesh: everything that is not the shape of it."""

from __future__ import annotations

from dataclasses import dataclass

from drivetrain_core import Code, PlanError
from drivetrain_parallel.cost.schedules import SCHEDULES

CHECKPOINTING = ("none", "selective", "full")
"""What is computed again in the backward: nothing, all but products, all of a block."""

_SHARES = ("overlap_tensor", "overlap_pipeline", "overlap_data", "overlap_context")
# A plain optimizer keeps nothing, and a head may keep no logits.
_LEAST_BYTES = {
    "weight_bytes": 1,
    "gathered_bytes": 1,
    "gradient_bytes": 1,
    "reduce_bytes": 1,
    "optimizer_bytes": 0,
    "logit_bytes": 0,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOptions:
    """How a step is run.

    Args:
        global_batch: Samples of a step, over all ranks and micro-batches.
        micro_batch: Samples of one pass on one rank.
        schedule: Of the pipeline; one of `schedules.SCHEDULES`.
        stages_per_rank: Stages that each rank of the pipeline holds.
        zero: What the ranks along `shard` divide: optimizer state from 1 on, gradients
            from 2 on, weights at 3; at 0 nothing.
        checkpointing: One of `CHECKPOINTING`.
        dtype: The number format of products and activations.
        weight_bytes: Bytes kept for a weight: 4 for float32 shards that are gathered
            in 16 bits, 2 for 16-bit weights.
        gathered_bytes: Bytes of a weight as it is gathered and used.
        gradient_bytes: Bytes of a gradient as it is summed and kept.
        reduce_bytes: Bytes of a gradient on the wire.
        reduce_each_micro_batch: Whether copies sum their gradients in every micro-batch,
            as DDP does without `no_sync`, instead of once a step. Up to ZeRO-1 that is an
            all-reduce; from ZeRO-2 on the ranks along `shard` do so in any case.
        reduce_rate_share: Share of the rate of links and network at which the program
            sums gradients.
        optimizer_bytes: Optimizer state of a weight: 8 for Adam, 12 with float32
            masters of 16-bit weights.
        logit_bytes: Bytes that the head and the loss keep for a logit: by default 16
            bits, a float32 copy, and what the softmax makes of it.
        sequence_parallel: Whether what lies between tensor-parallel regions is divided
            along the sequence.
        even_stages: Whether all stages have as many blocks, instead of as much work.
        fused_attention: Whether attention never writes its scores.
        fused_kernels: Whether what is neither a product nor attention is fused.
        overlap_tensor: Share of the tensor-parallel collectives that can hide behind
            computing.
        overlap_pipeline: The same for messages between stages.
        overlap_data: The same for gathering weights and summing gradients.
        overlap_context: The same for the exchange of keys and values.

    Raises:
        PlanError: A value is not valid.
    """

    global_batch: int
    micro_batch: int = 1
    schedule: str = "1f1b"
    stages_per_rank: int = 1
    zero: int = 3
    checkpointing: str = "none"
    dtype: str = "bfloat16"
    weight_bytes: int = 4
    gathered_bytes: int = 2
    gradient_bytes: int = 4
    reduce_bytes: int = 4
    reduce_each_micro_batch: bool = False
    reduce_rate_share: float = 1.0
    optimizer_bytes: int = 8
    logit_bytes: int = 10
    sequence_parallel: bool = True
    even_stages: bool = False
    fused_attention: bool = True
    fused_kernels: bool = False
    overlap_tensor: float = 0.0
    overlap_pipeline: float = 0.0
    overlap_data: float = 1.0
    overlap_context: float = 0.8

    def __post_init__(self) -> None:
        """Checks every value."""
        for name in ("global_batch", "micro_batch", "stages_per_rank"):
            self._require_integer(name, 1)
        for name, least in _LEAST_BYTES.items():
            self._require_integer(name, least)
        for name, known in (
            ("schedule", tuple(SCHEDULES)),
            ("checkpointing", CHECKPOINTING),
            ("zero", (0, 1, 2, 3)),
        ):
            value = getattr(self, name)
            if value not in known:
                choices = ", ".join(map(str, known))
                self._refuse(name, f"one of {choices}, got {value!r}")
        for name in _SHARES:
            value = getattr(self, name)
            if not 0 <= value <= 1:
                self._refuse(name, f"from 0 to 1, got {value!r}")
        if not 0 < self.reduce_rate_share <= 1:
            self._refuse(
                "reduce_rate_share",
                f"above 0 and at most 1, got {self.reduce_rate_share!r}",
            )

    def _require_integer(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if type(value) is not int or value < least:
            self._refuse(name, f"an integer of at least {least}, got {value!r}")

    @staticmethod
    def _refuse(name: str, rule: str) -> None:
        raise PlanError(Code.CONFIG, "step", because=f"{name} must be {rule}")
