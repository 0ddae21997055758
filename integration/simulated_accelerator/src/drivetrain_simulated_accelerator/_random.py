"""Random numbers of `torch.sim`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from drivetrain_simulated_accelerator import _native
from drivetrain_simulated_accelerator._devices import DeviceLike, index_of

if TYPE_CHECKING:
    from collections.abc import Iterable


def _generators() -> list[torch.Generator]:
    """Returns the generators of all devices."""
    return [_native.default_generator(i) for i in range(_native.device_count())]


def get_rng_state(device: DeviceLike = "sim") -> torch.Tensor:
    """Returns the random state of a device, as bytes on the CPU."""
    return _native.default_generator(index_of(device)).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """Returns the random states of all devices."""
    return [generator.get_state() for generator in _generators()]


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = "sim") -> None:
    """Takes a random state of a device."""
    _native.default_generator(index_of(device)).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Takes the random states of all devices."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the current device."""
    _native.default_generator(_native.current_device()).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds all devices."""
    for generator in _generators():
        generator.manual_seed(int(seed))


def seed() -> None:
    """Seeds the current device by chance."""
    _native.default_generator(_native.current_device()).seed()


def seed_all() -> None:
    """Seeds all devices alike, by chance."""
    generators = _generators()
    chosen = generators[0].seed()
    for generator in generators[1:]:
        generator.manual_seed(chosen)


def initial_seed() -> int:
    """Returns the seed of the current device."""
    return _native.default_generator(_native.current_device()).initial_seed()
