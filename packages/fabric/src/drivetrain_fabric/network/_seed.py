"""What a seed may be: numpy takes no negative one."""

from __future__ import annotations

from drivetrain_fabric.network._errors import FabricError


def check_seed(seed: int, name: str = "seed") -> None:
    """Refuses a seed that numbers cannot be drawn by.

    Args:
        seed: The seed.
        name: What to call it in the error.

    Raises:
        FabricError: It is negative.
    """
    if seed < 0:
        message = f"{name} must be at least 0, got {seed}"
        raise FabricError(message)
