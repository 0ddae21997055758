"""Random numbers that are drawn aside: the generators outside do not move."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from drivetrain_core.accelerators._lookup import accelerator_of

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def isolated_rng(seed: int | None = None) -> Iterator[None]:
    """Keeps torch's generators of the CPU and of all devices as they are outside.

    A device that this process has not started stays so, and keeps the seed that it will
    start with. Do not call `torch.manual_seed` inside: it would set that seed.

    Args:
        seed: What is drawn inside follows from it; None for what stands outside.

    Example:
        >>> before = torch.get_rng_state()
        >>> with isolated_rng(0):
        ...     first = torch.rand(2)
        >>> with isolated_rng(0):
        ...     torch.equal(first, torch.rand(2))
        True
        >>> torch.equal(before, torch.get_rng_state())
        True
    """
    here = torch.accelerator.current_accelerator()
    accelerator = accelerator_of(here or "cpu")
    states = accelerator.rng_states() if accelerator.is_initialized() else []
    with torch.random.fork_rng(devices=[]):
        try:
            if seed is not None:
                seed_all = (
                    torch.manual_seed if states else torch.default_generator.manual_seed
                )
                seed_all(seed)
            yield
        finally:
            accelerator.set_rng_states(states)
