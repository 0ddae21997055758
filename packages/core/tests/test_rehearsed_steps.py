"""What shows neither in a gradient nor in a loss of a first step is found all the same."""

from __future__ import annotations

import pytest
import torch
from rehearsed_programs import layered, pairs, sgd, squared
from torch import nn

from drivetrain_core import PlanError, accelerate
from drivetrain_testing import run_ranks


def by_value(gradient):
    return gradient.clamp(-50.0, 50.0)


def by_norm(gradient):
    return gradient * torch.clamp(50.0 / gradient.norm(), max=1.0)


def in_place(gradient):
    gradient.clamp_(-50.0, 50.0)


def scaled(gradient):
    return gradient * 0.5


def with_decay(gradient):
    return gradient + 0.25


def applied(hook, item):
    """Returns what a plan is refused for, of a model with a hook; nothing if it is not."""
    model = layered()
    if hook is in_place:
        # Torch lends what a hook gets.
        model[0][0].weight.register_post_accumulate_grad_hook(lambda p: hook(p.grad))
    else:
        model[0][0].weight.register_hook(hook)
    try:
        accelerate(model, sgd, pairs(), squared, strategy=[item], cache=False)
    except PlanError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("hook", [by_value, by_norm, in_place])
def test_a_hook_that_clips_later_is_refused_where_it_would_clip_each_part(hook):
    text = applied(hook, ("micro_batch", 2))
    assert "0.0.weight does not grow with the loss" in text
    assert "max_grad_norm" in text


@pytest.mark.parametrize("item", ["ddp", "fsdp"])
@pytest.mark.parametrize("hook", [by_value, by_norm])
def test_a_hook_that_clips_later_is_refused_where_it_would_clip_each_rank(hook, item):
    for text in run_ranks(applied, 2, hook, item):
        assert "0.0.weight does not grow with the loss" in text


def test_a_hook_that_is_a_straight_line_passes():
    assert applied(scaled, ("micro_batch", 2)) == ""
    assert run_ranks(applied, 2, scaled, "ddp") == ["", ""]
    # What each rank adds is there once in their mean, and once more with each part.
    assert run_ranks(applied, 2, with_decay, "ddp") == ["", ""]
    assert "gradient differs" in applied(with_decay, ("micro_batch", 2))


def test_a_hook_that_clips_passes_where_the_backward_is_one():
    assert applied(by_norm, "activation_checkpoint") == ""


class Taught(nn.Module):
    """A student, and a teacher that its forward moves by a thousandth."""

    def __init__(self, holds_buffers):
        super().__init__()
        self.student = layered()
        copies = [p.detach().clone() for p in self.student.parameters()]
        self.teacher = nn.ParameterList()
        for number, values in enumerate(copies):
            if holds_buffers:
                self.register_buffer(f"mean_{number}", values)
            else:
                self.teacher.append(nn.Parameter(values, requires_grad=False))

    def forward(self, x):
        kept = list(self.buffers()) or self.teacher
        with torch.no_grad():
            for mean, weight in zip(kept, self.student.parameters(), strict=True):
                mean.lerp_(weight, 0.001)
        return self.student(x)


@pytest.mark.parametrize("holds_buffers", [True, False])
def test_a_teacher_that_each_part_would_move_is_refused(holds_buffers):
    model = Taught(holds_buffers)
    with pytest.raises(
        PlanError, match=r"the forward moves (mean_|teacher).* otherwise"
    ):
        accelerate(model, sgd, pairs(), squared, strategy=[("micro_batch", 2)])
    accelerate(model, sgd, pairs(), squared, strategy=["precision"])


class Warm(nn.Module):
    """Centres its output by a mean of the batches before; the first has none."""

    def __init__(self):
        super().__init__()
        self.inner = layered()
        self.mean = None

    def forward(self, x):
        out = self.inner(x)
        centred = out if self.mean is None else out - self.mean
        self.mean = out.detach().mean(0)
        return centred


def refused_of_warm():
    try:
        accelerate(Warm(), sgd, pairs(), squared, strategy=["ddp"], cache=False)
    except PlanError as error:
        return str(error)
    return ""


def test_a_statistic_of_one_rank_that_acts_from_the_second_step_on_is_refused():
    for text in run_ranks(refused_of_warm, 2):
        assert "the loss differs at step 2" in text
