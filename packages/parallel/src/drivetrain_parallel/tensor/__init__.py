"""Tensor parallelism: a plan derived from a model's data flow, proven, and applied."""

from __future__ import annotations

from drivetrain_parallel.tensor.apply import apply_tensor_plan
from drivetrain_parallel.tensor.canonical import (
    CanonicalSlice,
    canonical_slices,
    full_gradients,
    full_parameters,
)
from drivetrain_parallel.tensor.derive import plan_tensor_parallel
from drivetrain_parallel.tensor.explain import explain_tensor_plan
from drivetrain_parallel.tensor.loss import has_split_loss, local_loss, loss_context
from drivetrain_parallel.tensor.plan import (
    Dropped,
    HeadInput,
    ModuleStyle,
    Style,
    TensorPlan,
)
from drivetrain_parallel.tensor.verify import Verdict, verify_tensor_plan

__all__ = [
    "CanonicalSlice",
    "Dropped",
    "HeadInput",
    "ModuleStyle",
    "Style",
    "TensorPlan",
    "Verdict",
    "apply_tensor_plan",
    "canonical_slices",
    "explain_tensor_plan",
    "full_gradients",
    "full_parameters",
    "has_split_loss",
    "local_loss",
    "loss_context",
    "plan_tensor_parallel",
    "verify_tensor_plan",
]
