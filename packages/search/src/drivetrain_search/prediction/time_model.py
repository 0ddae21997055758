"""The time of a step, from counted operations and measured rates; pure arithmetic.

A class of operators takes the longer of its arithmetic and its memory traffic, and a
constant a call. The sum is off by a factor that is the same for plans of one program,
so the baseline's measured step sets it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MATMUL, POINTWISE, OTHER = "matmul", "pointwise", "other"

# Of a compiled plan: the parts of pointwise traffic and of all calls that must stay.
_UNFUSED_BYTES = 0.15
_UNFUSED_CALLS = 0.10
# A product may run above the rate that the probe found for its best size.
_OPTIMISTIC_RATE = 1.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Operations:
    """A class of operators: one kind, in one number format.

    Args:
        kind: `matmul`, `pointwise` or `other`.
        dtype: The format of the arithmetic, such as `float32`.
        flops: Floating-point operations; only products count any.
        bytes: Bytes read and written.
        calls: Operators called.
    """

    kind: str
    dtype: str
    flops: float = 0.0
    bytes: float = 0.0
    calls: float = 0.0


Work = Mapping[str, Operations]
"""Classes of operators by `kind/dtype`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """What an all-reduce costs: `alpha_s + beta_s_per_byte * bytes`.

    Args:
        alpha_s: Seconds of an empty one.
        beta_s_per_byte: Seconds that each byte adds.
    """

    alpha_s: float
    beta_s_per_byte: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """What the device does at best.

    Args:
        flops_per_s: The best rate of a matrix product, by number format.
        bytes_per_s: Memory traffic, read and written.
        overhead_s: Seconds of an operator on a tiny tensor.
        all_reduce: Between the ranks; None for one rank, or when it failed.
    """

    flops_per_s: Mapping[str, float] = field(default_factory=dict)
    bytes_per_s: float
    overhead_s: float
    all_reduce: Collective | None = None

    def rate(self, dtype: str) -> float:
        """Returns the rate of a format; the slowest known one for another."""
        known = self.flops_per_s
        return known.get(dtype) or min(known.values(), default=float("inf"))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Rates:
        """Returns the rates that a probe sent as JSON."""
        found = fields.get("all_reduce")
        return cls(**{**fields, "all_reduce": Collective(**found) if found else None})


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """Seconds of a step, before the baseline's measurement scales them.

    Args:
        likely_s: As the operations are.
        optimistic_s: With everything fused and overlapped that may be.
    """

    likely_s: float
    optimistic_s: float


def work_from_dict(fields: Mapping[str, Any]) -> Work:
    """Returns operations by class from plain data."""
    return {key: Operations(**value) for key, value in fields.items()}


def between(one: Work, other: Work, share: float) -> Work:
    """Returns one work and a share of the way to the other; the share may exceed 1.

    Example:
        >>> a = {"x": Operations(kind="other", dtype="float32", calls=10)}
        >>> b = {"x": Operations(kind="other", dtype="float32", calls=14)}
        >>> between(a, b, 2.0)["x"].calls
        18.0
    """
    mixed = {}
    for key in {**one, **other}:
        known = one.get(key) or other[key]
        a = one.get(key) or Operations(kind=known.kind, dtype=known.dtype)
        b = other.get(key) or Operations(kind=known.kind, dtype=known.dtype)
        mixed[key] = dataclasses.replace(
            known,
            flops=max(0.0, a.flops + (b.flops - a.flops) * share),
            bytes=max(0.0, a.bytes + (b.bytes - a.bytes) * share),
            calls=max(0.0, a.calls + (b.calls - a.calls) * share),
        )
    return mixed


def predict_time(
    passes: Work,
    optimizer: Work,
    rates: Rates,
    *,
    num_micro_batches: int = 1,
    compiled: bool = False,
    fused: bool = False,
    collective_s: float = 0.0,
) -> StepTime:
    """Returns the seconds of a step.

    Args:
        passes: The operations of one micro-batch.
        optimizer: The operations of the optimizer's step.
        rates: What the device does.
        num_micro_batches: Passes of a step.
        compiled: Whether the passes are compiled; the optimizer is not.
        fused: Whether the optimizer is one kernel.
        collective_s: Seconds of collectives in a step.
    """
    eager = sum(_seconds(ops, rates) for ops in passes.values())
    fastest = sum(_best_seconds(ops, rates, compiled) for ops in passes.values())
    if compiled:
        # Between doing nothing for the model and all that fusion can.
        eager = (eager + fastest) / 2
    update = sum(_seconds(ops, rates) for ops in optimizer.values())
    best_update = sum(_best_seconds(ops, rates, True) for ops in optimizer.values())
    return StepTime(
        likely_s=num_micro_batches * eager
        + (best_update if fused else update)
        + collective_s,
        # Collectives may hide behind the backward.
        optimistic_s=num_micro_batches * fastest + best_update,
    )


def _seconds(ops: Operations, rates: Rates) -> float:
    arithmetic = ops.flops / rates.rate(ops.dtype)
    return max(arithmetic, ops.bytes / rates.bytes_per_s) + rates.overhead_s * ops.calls


def _best_seconds(ops: Operations, rates: Rates, compiled: bool) -> float:
    traffic, calls = ops.bytes, ops.calls
    if compiled:
        traffic = traffic * (_UNFUSED_BYTES if ops.kind != MATMUL else 1.0)
        calls = calls * _UNFUSED_CALLS
    arithmetic = ops.flops / rates.rate(ops.dtype)
    longer = max(arithmetic, traffic / rates.bytes_per_s)
    return longer / _OPTIMISTIC_RATE + rates.overhead_s * calls


def collective_time_s(
    all_reduce: Collective | None,
    *,
    world_size: int,
    data_parallel: str,
    gradient_bytes: int,
    parameter_bytes: int,
    calls: int,
    reshard: bool = True,
) -> float:
    """Returns the seconds of a step's collectives.

    An all-reduce is a reduce-scatter and an all-gather, each of half its time.

    Args:
        all_reduce: What one costs; None counts as nothing.
        world_size: Ranks.
        data_parallel: Empty, `ddp` or `fsdp`.
        gradient_bytes: All gradients.
        parameter_bytes: All weights, as they are gathered.
        calls: Buckets or blocks.
        reshard: Whether weights are gathered again for the backward.

    Example:
        >>> cost = Collective(alpha_s=0.5, beta_s_per_byte=0.01)
        >>> collective_time_s(cost, world_size=2, data_parallel="ddp",
        ...     gradient_bytes=100, parameter_bytes=100, calls=2)
        2.0
    """
    if all_reduce is None or world_size == 1 or not data_parallel:
        return 0.0

    def seconds(num_bytes: float) -> float:
        return all_reduce.alpha_s * calls + all_reduce.beta_s_per_byte * num_bytes

    if data_parallel == "ddp":
        return seconds(gradient_bytes)
    gathers = 2 if reshard else 1
    return seconds(gradient_bytes) / 2 + gathers * seconds(parameter_bytes) / 2
