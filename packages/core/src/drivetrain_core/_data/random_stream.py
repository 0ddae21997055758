"""Random numbers for data, from a state of their own that ranks can share."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def random_states() -> tuple[Any, ...]:
    """Returns the global random states of torch on the CPU, of Python and of numpy."""
    # The legacy state of numpy is what data sets in the field draw from.
    return torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002


def put_random_states(states: tuple[Any, ...]) -> None:
    """Puts global random states in place."""
    ours, python, arrays = states
    torch.set_rng_state(ours)
    random.setstate(python)
    np.random.set_state(arrays)  # noqa: NPY002


class RandomStream:
    """Global random states that are in place while data are drawn, and only then.

    Args:
        seed: What is drawn follows from it, and from what was drawn before.

    Example:
        >>> one, other = RandomStream(3), RandomStream(3)
        >>> _ = torch.manual_seed(1)
        >>> list(one.drawn(torch.rand(1).item() for _ in range(4))) == list(
        ...     other.drawn(torch.rand(1).item() for _ in range(4))
        ... )
        True
    """

    def __init__(self, seed: int) -> None:
        """Makes the states that follow from the seed."""
        outside = random_states()
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        self._states = random_states()
        put_random_states(outside)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Draws from these states inside, and goes on from there the next time."""
        outside = random_states()
        put_random_states(self._states)
        try:
            yield
        finally:
            self._states = random_states()
            put_random_states(outside)

    def drawn(self, data: Iterable[Any]) -> Iterator[Any]:
        """Yields what an iterable yields, drawn under these states."""
        with self.in_place():
            items = iter(data)
        end = object()
        while True:
            with self.in_place():
                item = next(items, end)
            if item is end:
                return
            yield item
