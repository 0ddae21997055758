"""What shows neither in a gradient nor in a loss of a first step is found all the same."""

from __future__ import annotations

import copy

import pytest
import torch
from rehearsed_programs import layered, pairs, sgd, squared
from torch import nn
from torch.nn import functional

from drivetrain_core import PlanError, accelerate
from drivetrain_testing import run_ranks


def by_value(gradient):
    return gradient.clamp(-50.0, 50.0)


def by_norm(gradient):
    return gradient * torch.clamp(50.0 / gradient.norm(), max=1.0)


def in_place(gradient):
    gradient.clamp_(-50.0, 50.0)


def guarded(gradient):
    assert float(gradient.abs().max()) < 1e4
    return gradient.clamp(-50.0, 50.0)


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


@pytest.mark.parametrize("hook", [by_value, by_norm, in_place, guarded])
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


class Followed:
    """A loss that moves a teacher which no module registers."""

    def __init__(self, model):
        self.model, self.teachers = model, [copy.deepcopy(model)]

    def __call__(self, output, batch):
        (teacher,) = self.teachers
        with torch.no_grad():
            pairs = zip(teacher.parameters(), self.model.parameters(), strict=True)
            for mean, weight in pairs:
                mean.lerp_(weight, 0.001)
            target = teacher(batch[0])
        return squared(output, batch) + 0.1 * (output - target).square().mean()


class Annealed:
    """A loss that grows by a hundred-thousandth with each call."""

    def __init__(self, model):
        self.calls, self.last, self.size = 0, 0.0, 0

    def __call__(self, output, batch):
        self.calls += 1
        loss = squared(output, batch) * (1.0 + 1e-5 * self.calls)
        self.last, self.size = float(loss), len(output)
        return loss


def annealed_cell(model):
    calls = 0

    def loss(output, batch):
        nonlocal calls
        calls += 1
        return squared(output, batch) * (1.0 + 1e-5 * calls)

    return loss


def annealed_list(model):
    counted = [0]

    def loss(output, batch):
        counted[0] += 1
        return squared(output, batch) * (1.0 + 1e-5 * counted[0])

    return loss


temperature = 1.0


def annealed_global(model):
    def loss(output, batch):
        global temperature
        temperature *= 0.999
        return squared(output, batch) / (1.0 + 1e-3 * temperature)

    return loss


HIDDEN = {
    Followed: "a tensor that the model does not own",
    Annealed: "calls changes",
    annealed_cell: "calls changes",
    annealed_list: "0 changes",
    annealed_global: "temperature changes",
}


def of_hidden(make, item):
    model = layered()
    try:
        accelerate(model, sgd, pairs(), make(model), strategy=[item], cache=False)
    except PlanError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("make", HIDDEN)
def test_what_a_loss_counts_or_averages_for_each_part_is_refused(make):
    text = of_hidden(make, ("micro_batch", 2))
    assert HIDDEN[make] in text
    assert "otherwise" in text
    assert "once" in text or "hook of the optimizer's step" in text
    assert temperature == 1.0


@pytest.mark.parametrize("make", HIDDEN)
def test_what_a_loss_counts_or_averages_passes_where_it_is_called_as_often(make):
    assert of_hidden(make, "activation_checkpoint") == ""


class Attending(nn.Module):
    """Has a bias, that of the keys, which changes nothing."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        return functional.scaled_dot_product_attention(
            self.query(x), self.key(x), self.value(x)
        )


@pytest.mark.parametrize("item", [("precision", "bf16_autocast"), "optimizer_impl"])
def test_a_teacher_of_weights_that_go_as_rounding_goes_passes(item):
    torch.manual_seed(0)
    model = nn.Sequential(Attending(), nn.Linear(6, 6))
    data = [(torch.randn(8, 5, 6), torch.randn(8, 5, 6)) for _ in range(2)]
    loss = Followed(model)
    accelerate(model, torch.optim.AdamW, data, loss, strategy=[item], cache=False)


def test_each_rank_moves_its_own_teacher_as_the_program_does():
    assert run_ranks(of_hidden, 2, Followed, "ddp") == ["", ""]


def test_what_a_loss_only_notes_is_no_reason():
    class Noting:
        def __init__(self):
            self.size, self.flags = 8, torch.zeros(3, dtype=torch.bool)

        def __call__(self, output, batch):
            self.size = len(output)
            self.flags[0] = True
            return squared(output, batch)

    accelerate(layered(), sgd, pairs(), Noting(), strategy=[("micro_batch", 2)])


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


def clipping(limit, of_all):
    """Returns a hook of an optimizer's step, which clips by the norm of what it can see."""

    def clip(optimizer, args, kwargs):
        owned = [p for group in optimizer.param_groups for p in group["params"]]
        if of_all:
            nn.utils.clip_grad_norm_(owned, limit)
            return
        norm = sum(float(p.grad.norm()) ** 2 for p in owned) ** 0.5
        for parameter in owned if norm > limit else ():
            parameter.grad.mul_(limit / norm)

    return clip


def of_clipping(item, limit, of_all, is_instance):
    model, hook = layered(), clipping(limit, of_all)

    def factory(parameters):
        optimizer = sgd(parameters)
        optimizer.register_step_pre_hook(hook)
        return optimizer

    optimizer = factory(model.parameters()) if is_instance else factory
    try:
        accelerate(model, optimizer, pairs(), squared, strategy=[item], cache=False)
    except PlanError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("is_instance", [True, False])
@pytest.mark.parametrize("limit", [0.05, 50.0])
def test_a_hook_that_clips_by_the_norm_of_a_shard_is_refused(limit, is_instance):
    later = "on 1.04858e+06 times its loss" if limit > 1.0 else "none of the program's"
    for text in run_ranks(of_clipping, 2, "fsdp", limit, False, is_instance):
        assert later in text
        assert "the parameters go" in text


def test_a_hook_that_clips_by_the_norm_of_all_passes():
    assert run_ranks(of_clipping, 2, "fsdp", 50.0, True, True) == ["", ""]
    assert run_ranks(of_clipping, 2, "ddp", 50.0, False, True) == ["", ""]
    assert of_clipping(("micro_batch", 2), 0.05, False, True) == ""


def test_a_hook_of_an_optimizer_leaves_no_trace_of_the_check():
    model, seen, calls = layered(), [], 0

    def note(optimizer, args, kwargs):
        nonlocal calls
        calls += 1
        seen.append(calls)

    optimizer = sgd(model.parameters())
    optimizer.register_step_post_hook(note)
    accelerated = accelerate(
        model, optimizer, pairs(), squared, strategy=[("micro_batch", 2)], cache=False
    )
    assert (calls, seen) == (0, [])
    accelerated.train_step(pairs()[0])
    assert (calls, seen) == (1, [1])
