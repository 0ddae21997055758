"""What a package that may be missing brings: who asks for it is told what to install."""

from __future__ import annotations

_PACKAGES = "checkpoint cloud comm elastic fabric health kernels memory optim search"
COMMANDS = {word: f"drivetrain-{word}" for word in _PACKAGES.split()} | {
    "diff": "drivetrain-search",
    "quickstart": "drivetrain",
    "simulate": "drivetrain-parallel",
}
"""The distribution by the command."""

_NAMES = {
    "drivetrain-kernels": "compile_select kernels",
    "drivetrain-memory": "virtual_memory",
    "drivetrain-optim": "agd lamb wsam",
    "drivetrain-parallel": "loss_parallel mesh overlap_first_gather schedule sequence_parallel",
}
OPTIMIZATIONS = {word: home for home, names in _NAMES.items() for word in names.split()}
"""The distribution by the optimization."""
