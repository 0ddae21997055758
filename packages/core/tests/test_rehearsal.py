"""A plan that is named trains what the program trains, or is refused and leaves nothing."""

from __future__ import annotations

import copy
import logging
from collections import deque

import pytest
import torch
from rehearsed_programs import layered, pairs, sgd, squared, summed
from torch import nn
from torch.nn import functional

from drivetrain_core import Plan, PlanError, _accelerate, accelerate
from drivetrain_core.extending import read_strategy
from drivetrain_testing import RankError, run_ranks


def compared_within(output, batch):
    scores = functional.normalize(output) @ functional.normalize(batch[1]).T * 5
    return functional.cross_entropy(scores, torch.arange(len(scores)))


def unmasked(output, batch):
    wanted = batch[1] > 0.6
    return (output - batch[1]).square()[wanted].mean()


@pytest.mark.parametrize("loss", [compared_within, summed, unmasked])
def test_micro_batches_that_change_a_loss_are_refused(loss):
    model = layered()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(PlanError, match="none of the program's") as caught:
        accelerate(model, sgd, pairs(size=16), loss, strategy=[("micro_batch", 2)])
    assert caught.value.code == "NUMERICS"
    assert "check=False" in caught.value.fix
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_without_the_check_the_plan_says_so():
    plan = accelerate(
        layered(), sgd, pairs(), summed, strategy=[("micro_batch", 2)], check=False
    ).plan
    assert plan.guard == {"checked": False}


def test_what_was_seen_stands_in_the_plan(tmp_path):
    path = tmp_path / "plan.yaml"
    plan = accelerate(
        layered(), sgd, pairs(), squared, strategy=[("micro_batch", 2)], plan_out=path
    ).plan
    assert plan.guard["loss_rel"] < 1e-6
    assert plan.guard["num_steps"] == 2
    assert "num_steps: 2" in path.read_text()


class Counting(nn.Module):
    """A block whose forward counts in a buffer."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.inner(x)


@pytest.mark.parametrize(
    "item", ["activation_checkpoint", ("micro_batch", 2)], ids=["recomputed", "divided"]
)
def test_a_forward_that_writes_buffers_is_not_run_twice(item):
    model = nn.Sequential(Counting(), Counting(), Counting())
    with pytest.raises(PlanError, match="the buffer differs"):
        accelerate(model, sgd, pairs(), squared, strategy=[item])
    assert [float(block.calls) for block in model] == [0.0] * 3


def test_a_step_that_fails_under_the_plan_alone_is_a_plan_error():
    table = nn.Embedding(9, 4, sparse=True)
    data = [torch.tensor([[1, 2], [3, 4]])]
    with pytest.raises(PlanError, match="its step fails") as caught:
        accelerate(
            table,
            sgd,
            data,
            lambda o, b: o.square().mean(),
            strategy=[("optimizer_impl", "fused")],
        )
    assert "sparse" in str(caught.value)


def test_a_plan_that_cannot_be_leaves_the_model_for_the_next():
    model = layered()
    forward = model.forward

    def impossible(optimizer):
        message = f"no schedule for {optimizer.param_groups[0]['lr']}"
        raise ValueError(message)

    with pytest.raises(ValueError, match="no schedule"):
        accelerate(
            model, sgd, pairs(), squared, strategy=["precision"], scheduler=impossible
        )
    assert model.forward == forward
    mended = accelerate(
        model, sgd, pairs(), squared, strategy=[("precision", "bf16_params")]
    )
    assert torch.isfinite(mended.train_step(pairs()[0]))


def test_fallback_drops_what_trains_something_else(caplog):
    with caplog.at_level(logging.WARNING):
        accelerated = accelerate(
            layered(),
            sgd,
            pairs(),
            summed,
            strategy=["activation_checkpoint", ("micro_batch", 2)],
            on_error="fallback",
        )
    assert [c.name for c in accelerated.plan.choices] == ["activation_checkpoint"]
    assert "micro_batch(num=2) is dropped" in caplog.text
    assert accelerated.plan.rejected[0].code == "NUMERICS"
    assert "checked" not in accelerated.plan.guard


def trained(strategy, make, steps=3, **options):
    torch.manual_seed(0)
    model, optimizer, loss = make()
    accelerated = accelerate(
        model, optimizer, pairs(), loss, strategy=strategy, **options
    )
    losses = [float(accelerated.train_step(batch)) for batch in pairs()[:steps]]
    return losses, accelerated


def whose_loss_holds_the_model():
    model = layered()
    return (
        model,
        sgd,
        lambda o, b: squared(o, b) + 0.1 * model[0][0].weight.square().sum(),
    )


def whose_optimizer_holds_the_model():
    model = layered()
    return model, lambda _: sgd(model.parameters()), squared


def whose_block_holds_a_function():
    model = layered()
    inner = nn.Linear(6, 6)
    model[1].inner = inner
    model[1].forward = lambda x: inner(x)
    return model, sgd, squared


def whose_blocks_keep_a_tensor():
    class Keeping(nn.Linear):
        def forward(self, x):
            self.kept = super().forward(x)
            return self.kept

    model = nn.Sequential(Keeping(6, 6), Keeping(6, 6))
    return model, sgd, lambda o, b: squared(o, b) + 0.01 * model[0].kept.square().mean()


def whose_loss_changes_its_batch():
    def loss(output, batch):
        return functional.mse_loss(output, batch[1].mul_(0.5))

    return layered(), sgd, loss


@pytest.mark.parametrize(
    "make",
    [
        whose_loss_holds_the_model,
        whose_optimizer_holds_the_model,
        whose_block_holds_a_function,
        whose_blocks_keep_a_tensor,
        whose_loss_changes_its_batch,
    ],
)
def test_programs_that_hold_their_own_objects_pass(make):
    expected, _ = trained([], make)
    found, accelerated = trained([("micro_batch", 2)], make)
    assert found == pytest.approx(expected, rel=1e-5)
    assert "checked" not in accelerated.plan.guard


def test_a_program_that_draws_is_held_to_no_more_than_its_own_noise():
    def make():
        return layered(), sgd, lambda o, b: squared(o + 0.3 * torch.randn_like(o), b)

    _, accelerated = trained([("micro_batch", 2)], make)
    assert "checked" not in accelerated.plan.guard


def test_a_rehearsal_leaves_no_trace():
    import random

    import numpy as np

    seen = []
    model = layered()
    model.register_forward_hook(
        lambda *_: seen.append(random.random() + np.random.rand())  # noqa: NPY002
    )
    model.history = []
    states = torch.get_rng_state(), random.getstate()
    plan = accelerate(model, sgd, pairs(), squared, strategy=[("micro_batch", 2)]).plan
    assert plan.guard["num_steps"] == 2
    assert seen == []
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert model.history == []
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_loss_with_statistics_of_its_own_is_put_back():
    class Tracking(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(()))

        def forward(self, output, batch):
            loss = squared(output, batch)
            self.mean += loss.detach()
            return loss

    loss = Tracking()
    accelerate(layered(), sgd, pairs(), loss, strategy=["activation_checkpoint"])
    assert float(loss.mean) == 0.0


class Warming:
    """A loss that grows with the steps that it has seen."""

    def __init__(self):
        self.steps, self.last = 0, deque(maxlen=2)

    def __call__(self, output, batch):
        self.steps += 1
        self.last.append(self.steps)
        return squared(output, batch) * sum(self.last)


def warming_closure():
    steps = 0

    def loss(output, batch):
        nonlocal steps
        steps += 1
        return squared(output, batch) * steps

    return loss


def noisy():
    generator = torch.Generator().manual_seed(1)

    def loss(output, batch):
        noise = torch.randn(output.shape[1:], generator=generator)
        return squared(output + noise, batch)

    return loss


@pytest.mark.parametrize("make", [Warming, warming_closure, noisy])
def test_what_a_loss_counts_or_draws_is_what_the_program_would(make):
    def losses(step, batches):
        return [float(step(batch)) for batch in batches]

    model, loss = layered(), make()
    optimizer = sgd(model.parameters())

    def plain(batch):
        optimizer.zero_grad()
        value = loss(model(batch[0]), batch)
        value.backward()
        optimizer.step()
        return value.detach()

    expected = losses(plain, pairs())
    accelerated = accelerate(
        layered(), sgd, pairs(), make(), strategy=["activation_checkpoint"]
    )
    found = losses(accelerated.train_step, accelerated.loader)
    assert found == pytest.approx(expected, rel=1e-5)
    with pytest.raises(PlanError, match="none of the program's"):
        accelerate(layered(), sgd, pairs(), make(), strategy=[("micro_batch", 2)])


def test_a_program_that_counts_where_it_cannot_be_put_back_is_refused():
    class Counted(nn.Module):
        steps = 0

        def forward(self, output, batch):
            type(self).steps += 1
            return squared(output, batch) * self.steps

    with pytest.raises(PlanError, match="a second step from the same start"):
        accelerate(
            layered(), sgd, pairs(), Counted(), strategy=["activation_checkpoint"]
        )


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_module_is_not_trained_by_its_rehearsal():
    model = torch.jit.script(layered())
    before = copy.deepcopy(model.state_dict())
    accelerate(model, sgd, pairs(), squared, strategy=[("micro_batch", 2)])
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_a_part_of_the_batch_that_is_no_program_is_passed_over():
    def graph(output, batch):
        return (torch.eye(8) @ output).square().mean()

    plan = accelerate(
        layered(), sgd, pairs(), graph, strategy=["activation_checkpoint"]
    ).plan
    assert "checked" not in plan.guard


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.gate = nn.Linear(6, 6), nn.Parameter(torch.zeros(6))

    def forward(self, x):
        return x + self.gate * self.inner(x)


def test_weights_that_begin_at_zero_hide_nothing():
    """A wrong backward behind a gate of zeros shows in the loss from the second step."""
    from drivetrain_core import BaseOptimization, Phase, Slot, register, unregister

    class Wrong(BaseOptimization):
        name, slot, phase, options = "wrong", Slot.PRECISION, Phase.MODEL_SWAP, {}

        def apply(self, state, config):
            state.module.inner.forward = lambda x: x @ state.module.inner.weight.T

    register(Wrong())
    try:
        with pytest.raises(PlanError, match="wrong"):
            accelerate(Gated(), sgd, pairs(), squared, strategy=["wrong"])
    finally:
        unregister("wrong")


class Search:
    """Finds one plan for any program."""

    def __init__(self, choices):
        self.plan = Plan(
            choices=read_strategy(choices).choices, measured={"step_ms": 1.0}
        )

    def search(self, request):
        return self.plan, None


def found_by(monkeypatch, choices, loss, **options):
    monkeypatch.setattr(_accelerate, "get_service", lambda _: Search(choices))
    return accelerate(layered(), sgd, pairs(), loss, cache=False, **options)


FOUND = ["activation_checkpoint", ("micro_batch", 2)]


def test_what_a_search_found_is_dropped_where_it_trains_something_else(
    monkeypatch, caplog
):
    with caplog.at_level(logging.WARNING):
        plan = found_by(monkeypatch, FOUND, summed).plan
    assert [c.name for c in plan.choices] == ["activation_checkpoint"]
    assert "micro_batch(num=2) is dropped" in caplog.text
    assert plan.rejected[0].code == "NUMERICS"
    assert plan.measured == {}
    plan = found_by(monkeypatch, FOUND, squared).plan
    assert (len(plan.choices), plan.measured) == (2, {"step_ms": 1.0})


@pytest.mark.parametrize(
    "asked",
    [
        {"require": ["micro_batch"]},
        {"strategy": {"micro_batch": [2, 4]}},
    ],
)
def test_what_a_search_was_told_to_hold_is_not_dropped(monkeypatch, asked):
    with pytest.raises(PlanError, match="none of the program's"):
        found_by(monkeypatch, FOUND, summed, **asked)
    assert found_by(monkeypatch, FOUND, summed, check=False, **asked).plan.choices


# Several ranks.


def searched_for_several(loss):
    _accelerate.get_service = None  # No search begins.
    try:
        accelerate(layered(), sgd, pairs(), loss, cache=False)
    except PlanError as error:
        return str(error)
    return ""


def test_a_program_that_ranks_would_train_otherwise_is_refused_before_a_search():
    for text in run_ranks(searched_for_several, 2, summed):
        assert "every gradient is" in text


class Encoding(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def encode(self, x):
        return self.inner(x)

    def forward(self, x):
        return self.encode(x)


def refused_then_trained(strategy, forward, loss):
    torch.manual_seed(torch.distributed.get_rank())  # ranks begin with other weights
    model = Encoding()
    try:
        accelerate(model, sgd, pairs(), loss, strategy=strategy, forward=forward)
    except PlanError as error:
        code = str(error.code)
    else:
        return "accepted"
    accelerated = accelerate(model, sgd, pairs(), squared, strategy=[])
    loss = accelerated.train_step(next(iter(accelerated.loader)))
    torch.distributed.all_reduce(loss)
    weight = model.inner.weight.detach().clone()
    torch.distributed.all_reduce(weight)
    same = torch.allclose(weight, 2 * model.inner.weight)
    return code, type(model.inner.weight).__name__, bool(torch.isfinite(loss)), same


@pytest.mark.parametrize(
    ("strategy", "through", "loss", "code"),
    [
        (["ddp"], "encode", squared, "ERROR"),
        (["fsdp"], "encode", squared, "ERROR"),
        (["ddp"], "forward", compared_within, "NUMERICS"),
        (["fsdp"], "forward", summed, "NUMERICS"),
    ],
)
def test_what_ranks_would_train_otherwise_is_refused_on_all(
    strategy, through, loss, code
):
    def forward(model, batch):
        return (
            getattr(model, through)(batch[0])
            if through == "encode"
            else model(batch[0])
        )

    for found in run_ranks(refused_then_trained, 2, strategy, forward, loss):
        assert found == (code, "Parameter", True, True)


def checked_that_draws():
    def drawing(output, batch):
        return squared(output + 0.3 * torch.randn_like(output), batch)

    return accelerate(layered(), sgd, pairs(), drawing, strategy=["ddp"]).plan.guard


def test_a_program_that_draws_is_held_to_its_own_noise_on_ranks_as_well():
    for guard in run_ranks(checked_that_draws, 2):
        assert "loss_rel" in guard


def step_that_leaves_a_part_out(number):
    class Sparing(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.other, self.steps = nn.Linear(6, 6), nn.Linear(6, 6), 0

        def forward(self, x):
            self.steps += 1
            return self.inner(x) if self.steps == number else self.other(self.inner(x))

    try:
        accelerated = accelerate(Sparing(), sgd, pairs(), squared, strategy=["ddp"])
        for batch in accelerated.loader:
            accelerated.train_step(batch)
    except PlanError as error:
        return str(error)
    return "trained"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_step_that_leaves_parameters_out_is_told_of_with_its_way_out(number):
    for text in run_ranks(step_that_leaves_a_part_out, 2, number):
        assert "find_unused_parameters" in text


def with_a_hook(strategy):
    torch.manual_seed(0)
    model = Encoding()
    model.inner.weight.register_hook(torch.zeros_like)
    try:
        accelerated = accelerate(model, sgd, pairs(), squared, strategy=strategy)
    except PlanError as error:
        return str(error.code)
    before = model.inner.weight.detach().clone()
    accelerated.train_step(next(iter(accelerated.loader)))
    return torch.equal(before, model.inner.weight)


def test_a_hook_on_a_parameter_runs_or_the_plan_is_refused():
    assert run_ranks(with_a_hook, 2, ["ddp"]) == [True, True]
    assert run_ranks(with_a_hook, 2, ["fsdp"]) == ["NUMERICS", "NUMERICS"]


def test_an_error_of_the_program_on_ranks_is_its_own():
    def wrong(model, batch):
        message = "no such thing"
        raise RuntimeError(message)

    with pytest.raises(RankError, match="no such thing"):
        run_ranks(step_of, 2, wrong)


def step_of(forward):
    accelerated = accelerate(
        Encoding(), sgd, pairs(), squared, forward=forward, strategy=[]
    )
    accelerated.train_step(next(iter(accelerated.loader)))
