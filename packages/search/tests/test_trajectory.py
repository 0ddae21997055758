"""What a trajectory sees beyond the first steps, and what the guard makes of it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from drivetrain_core import Numerics, Ok
from drivetrain_core.numerics.guard import compare
from drivetrain_search.process.trajectory import nudge, observe_trajectory


def test_nudge_moves_each_weight_by_its_last_bits_and_always_the_same(built):
    plain, nudged, again = built(), built(), built()
    nudge(nudged)
    nudge(again)
    for before, after, same in zip(
        *(one.module.parameters() for one in (plain, nudged, again)), strict=True
    ):
        away = ((after - before) / before).abs().max()
        assert 0 < away <= 5 * torch.finfo(torch.float32).eps
        assert torch.equal(after, same)


def test_trajectory_measures_the_noise_of_a_random_model(built):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(16, 5)

        def forward(self, images):
            return self.inner(images.flatten(1)) + torch.randn(5)

    accelerated = built(model=Noisy)
    seen = observe_trajectory(accelerated, list(accelerated.loader), seed=0, noise=True)
    assert seen.noise > 1e-3


@pytest.mark.parametrize("strategy", [[], [("micro_batch", 2)], ["precision"]], ids=str)
def test_trajectory_of_a_random_model_is_no_reason_to_reject(built, strategy):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(16, 5)

        def forward(self, images):
            x = images.flatten(1)
            return self.inner(x + 0.3 * torch.randn_like(x))

    def watch(plan, noise):
        accelerated = built(plan, model=Noisy)
        batches = list(accelerated.loader)
        return observe_trajectory(
            accelerated, batches, seed=0, noise=noise, num_steps=14
        )

    base = watch([], True)
    assert base.gradient_noise > 0.05
    answer = compare(base, watch(strategy, False), Numerics.LOW_PRECISION)
    assert isinstance(answer, Ok)


def test_noise_of_a_trajectory_leaves_no_trace(built):
    class Normalized(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(16)
            self.inner = nn.Linear(16, 5)

        def forward(self, images):
            return self.inner(self.norm(images.flatten(1)))

    def watch(noise):
        accelerated = built(model=Normalized)
        batches = list(accelerated.loader)[:3]
        return observe_trajectory(accelerated, batches, seed=0, noise=noise)

    one, other = watch(True), watch(False)
    assert one.buffers == other.buffers
    assert one.losses == other.losses
    assert one.noise == 0.0
    assert one.swayed
    assert one.swayed_updates.keys() == one.updates.keys()
    assert one.swayed_buffers.keys() == one.buffers.keys()
    assert not other.swayed
    assert not other.swayed_updates
    assert not other.swayed_buffers


def test_guard_lets_rounding_noise_move_a_bias_before_batch_normalization(built):
    class Normalized(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)
            self.head = nn.Linear(16, 5)

        def forward(self, images):
            return self.head(torch.tanh(self.norm(self.inner(images.flatten(1)))))

    def watch(noise, *, other_rounding):
        accelerated = built(
            model=Normalized, optimizer=lambda p: torch.optim.AdamW(p, lr=1e-3)
        )
        if other_rounding:
            # Where the gradient is rounding noise, its sign is anybody's guess.
            accelerated.model.inner.bias.register_hook(torch.neg)
        batches = list(accelerated.loader)[:3]
        return observe_trajectory(accelerated, batches, seed=0, noise=noise)

    baseline = watch(True, other_rounding=False)
    seen = watch(False, other_rounding=True)
    assert max(baseline.swayed_buffers["norm.running_mean"])
    assert isinstance(compare(baseline, seen, Numerics.REORDER), Ok)
    unswayed = dataclasses.replace(baseline, swayed_buffers={})
    assert "norm.running_mean" in compare(unswayed, seen, Numerics.REORDER).because
