"""The facts of a common program on this machine, to say what could be used here."""

from __future__ import annotations

from drivetrain_core._context import (
    BatchFacts,
    BlockFacts,
    Context,
    LoopFacts,
    ModelFacts,
)
from drivetrain_core._probe import default_device, probe_device, probe_world


def typical_context() -> Context:
    """Returns an fp32 transformer trained by AdamW from a `DataLoader`, on this machine.

    Example:
        >>> typical_context().model.kind
        'Transformer'
    """
    options = ("lr", "betas", "eps", "weight_decay", "foreach", "fused")
    return Context(
        device=probe_device(default_device()),
        model=ModelFacts(
            kind="Transformer",
            fingerprint="",
            num_parameters=10_000_000,
            parameter_bytes=40_000_000,
            dtypes=("float32",),
            blocks=BlockFacts(container="layers", kind="Block", count=6),
        ),
        batch=BatchFacts(size=64, signature="int64[*, 128]", num_tokens=8192),
        loop=LoopFacts(
            optimizer="AdamW", optimizer_options=frozenset(options), loader="torch"
        ),
        world=probe_world(),
    )
