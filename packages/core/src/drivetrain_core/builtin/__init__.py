"""The optimizations that torch itself offers, one a file, in one literal table.

The table holds where each stands, not the thing itself: importing it imports no
optimization and no torch. A new one is a file here and an entry of the table.
"""

from __future__ import annotations

__all__ = ["BUILTINS"]

BUILTINS: dict[str, str] = {
    "activation_checkpoint": (
        "drivetrain_core.builtin.activation_checkpoint:ActivationCheckpoint"
    ),
    "channels_last": "drivetrain_core.builtin.channels_last:ChannelsLast",
    "compile": "drivetrain_core.builtin.compile:Compile",
    "cpu_threads": "drivetrain_core.builtin.cpu_threads:CpuThreads",
    "data_loading": "drivetrain_core.builtin.data_loading:DataLoading",
    "ddp": "drivetrain_core.builtin.ddp:Ddp",
    "fsdp": "drivetrain_core.builtin.fsdp:Fsdp",
    "host_allocator": "drivetrain_core.builtin.host_allocator:HostAllocator",
    "micro_batch": "drivetrain_core.builtin.micro_batch:MicroBatch",
    "optimizer_impl": "drivetrain_core.builtin.optimizer_impl:OptimizerImpl",
    "precision": "drivetrain_core.builtin.precision:Precision",
}
