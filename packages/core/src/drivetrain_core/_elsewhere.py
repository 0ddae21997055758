"""What a package that may be missing brings: who asks for it is told what to install."""

from __future__ import annotations

_PACKAGES = "checkpoint cloud comm elastic fabric health kernels memory optim search"
COMMANDS = {word: f"drivetrain-{word}" for word in _PACKAGES.split()} | {
    "quickstart": "drivetrain",
    "simulate": "drivetrain-parallel",
}
"""The distribution by the command."""

OPTIMIZATIONS = {
    "agd": "drivetrain-optim",
    "compile_select": "drivetrain-kernels",
    "kernels": "drivetrain-kernels",
    "lamb": "drivetrain-optim",
    "loss_parallel": "drivetrain-parallel",
    "mesh": "drivetrain-parallel",
    "overlap_first_gather": "drivetrain-parallel",
    "schedule": "drivetrain-parallel",
    "sequence_parallel": "drivetrain-parallel",
    "virtual_memory": "drivetrain-memory",
    "wsam": "drivetrain-optim",
}
"""The distribution by the optimization."""
