"""The training step: micro-batches, clipping, schedulers, and bad losses."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from torch import nn

from drivetrain_core import (
    BaseOptimization,
    Numerics,
    Phase,
    ProgramError,
    Slot,
    _registry,
    accelerate,
    register,
)


def train(accelerated, steps=6):
    losses = []
    for _ in range(steps):
        for batch in accelerated.loader:
            losses.append(accelerated.train_step(batch).item())
    return losses


def by_hand(program, steps=6, clip=None, schedule=None):
    model = program.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = schedule(optimizer) if schedule else None
    losses = []
    for _ in range(steps):
        for batch in program.data:
            loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
            if scheduler:
                scheduler.step()
            losses.append(loss.item())
    return losses, model


def test_step_equals_a_loop_by_hand_to_the_bit(program, built):
    losses, model = by_hand(program)
    accelerated = built()
    assert train(accelerated) == losses
    for ours, theirs in zip(
        accelerated.module.parameters(), model.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_step_clips_and_schedules_like_a_loop_by_hand(program, built):
    def schedule(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)

    losses, _ = by_hand(program, clip=0.05, schedule=schedule)
    unclipped, _ = by_hand(program)
    accelerated = built(max_grad_norm=0.05, scheduler=schedule)
    assert train(accelerated) == losses
    assert losses != unclipped
    assert accelerated.optimizer.param_groups[0]["lr"] < 1e-3


@pytest.mark.parametrize("num", [1, 2, 3, 8])
def test_micro_batches_give_the_gradient_of_the_whole(program, built, num):
    losses, _ = by_hand(program)
    accelerated = built([("micro_batch", num)])
    assert train(accelerated) == pytest.approx(losses, rel=1e-5)


class Doubling(torch.optim.SGD):
    """Runs each batch at doubled weights as well, on steps that are even."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, lr=1e-3)
        self.num_steps = 0
        self.seen = []

    @property
    def needs_second_pass(self):
        return self.num_steps % 2 == 0

    @contextlib.contextmanager
    def perturb(self):
        params = [p for g in self.param_groups for p in g["params"]]
        self.seen.append([p.grad.norm().item() for p in params])
        with torch.no_grad():
            torch._foreach_mul_(params, 2)
        self.zero_grad()
        yield
        with torch.no_grad():
            torch._foreach_div_(params, 2)

    def step(self, closure=None):
        self.num_steps += 1
        return super().step(closure)


class Wrapping(BaseOptimization):
    """Puts `Doubling` around the optimizer."""

    name = "doubling"
    slot = Slot.OPTIMIZER_WRAPPER
    phase = Phase.OPTIMIZER

    def numerics(self, config):
        return Numerics.CHANGES_ALGORITHM

    def apply(self, state, config):
        state.wrap_optimizer(Doubling)


@pytest.mark.parametrize("strategy", [["doubling"], ["doubling", ("micro_batch", 2)]])
def test_optimizer_with_two_passes_gets_them_when_it_asks(
    program, built, strategy, monkeypatch
):
    monkeypatch.setattr(_registry, "_registered", {})
    register(Wrapping())
    accelerated = built(strategy, max_grad_norm=0.5)
    losses = train(accelerated, steps=2)

    model = program.build_model()
    optimizer = Doubling(torch.optim.SGD(model.parameters(), lr=1e-3))
    expected = []
    for batch in [*program.data, *program.data]:
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        expected.append(loss.item())
        if optimizer.needs_second_pass:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            with optimizer.perturb():
                nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    assert losses == pytest.approx(expected, rel=1e-4)
    assert len(accelerated.optimizer.seen) == (len(expected) + 1) // 2
    for ours, own in zip(accelerated.optimizer.seen, optimizer.seen, strict=True):
        assert ours == pytest.approx(own, rel=1e-3)


def test_last_batch_may_be_smaller(program, built):
    tail = (torch.randn(3, 1, 4, 4), torch.tensor([0, 1, 2]))
    data = [*program.data, tail]
    plain = train(built(data=data), steps=2)
    split = train(built([("micro_batch", 4)], data=data), steps=2)
    assert split == pytest.approx(plain, rel=1e-4)


def test_a_batch_without_samples_is_one_error(built):
    step = built([("micro_batch", 2)]).train_step
    with pytest.raises(ProgramError, match="must hold a sample"):
        step((torch.zeros(0, 1, 4, 4), torch.zeros(0, dtype=torch.long)))


def test_own_loop_equals_train_step(program, built):
    owned = train(built([("precision", "bf16_autocast")]))
    model, optimizer, loader = accelerated = built([("precision", "bf16_autocast")])
    losses = []
    for _ in range(6):
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
            accelerated.backward(loss)
            accelerated.optimizer_step()
            losses.append(loss.item())
    assert losses == owned
    assert optimizer is accelerated.optimizer


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda output, _: output, r"got shape \(8, 5\)"),
        (lambda output, _: output.mean().item(), "got float"),
        (lambda output, _: output.detach().mean(), "does not depend on any parameter"),
        (lambda _output, _batch: None, "got NoneType"),
    ],
)
def test_loss_that_is_wrong_is_one_error_and_changes_nothing(built, loss, words):
    accelerated = built(loss=loss)
    before = copy.deepcopy(accelerated.module.state_dict())
    with pytest.raises(ProgramError, match=words):
        accelerated.train_step(next(iter(accelerated.loader)))
    for name, tensor in accelerated.module.state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("broken_part", ["loss", "optimizer"])
def test_a_batch_that_fails_leaves_nothing_for_the_next(broken_part):
    def weights(fails):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        step = iter(range(9))

        def loss(output, batch):
            # The second of two parts, of which the first has left its gradient.
            if fails and broken_part == "loss" and next(step) == 1:
                message = "bad sample"
                raise ValueError(message)
            return output.square().mean()

        class Refusing(torch.optim.SGD):
            def step(self, closure=None):
                if fails and broken_part == "optimizer" and next(step) == 0:
                    message = "bad sample"
                    raise ValueError(message)
                super().step(closure)

        data = [torch.randn(4, 3) for _ in range(2)]
        accelerated = accelerate(
            model,
            lambda p: Refusing(p, lr=0.1),
            data,
            loss,
            strategy={"micro_batch": 2},
            check=False,
        )
        if fails:
            with pytest.raises(ValueError, match="bad sample"):
                accelerated.train_step(data[0])
        accelerated.train_step(data[1])
        return model.weight.detach()

    assert torch.equal(weights(fails=True), weights(fails=False))


def test_loss_may_come_from_the_model(built, program):
    class WithLoss(nn.Module):
        def __init__(self, key):
            super().__init__()
            self.inner = nn.Linear(16, 1)
            self.key = key

        def forward(self, images):
            loss = self.inner(images.flatten(1)).square().mean()
            if self.key == "tensor":
                return loss
            return {"loss": loss} if self.key == "mapping" else Output(loss)

    class Output:
        def __init__(self, loss):
            self.loss = loss

    for key in ("tensor", "mapping", "object"):
        accelerated = built(model=lambda key=key: WithLoss(key), loss=None)
        assert train(accelerated, 3)[-1] < train(accelerated, 1)[0] + 1


def test_model_without_a_loss_says_what_to_pass(built):
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, _):
            return "no tensor"

    accelerated = built(model=Words, loss=None)
    with pytest.raises(ProgramError, match="pass loss="):
        accelerated.train_step(next(iter(accelerated.loader)))


def test_mapping_batches_become_keyword_arguments(built):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 1)

        def forward(self, *, x, target):
            return ((self.inner(x) - target) ** 2).mean()

    data = [{"x": torch.randn(4, 3), "target": torch.randn(4, 1)}]
    assert len(train(built(model=Named, data=data, loss=None), 2)) == 2


def test_no_sync_without_ranks_is_harmless(built):
    accelerated = built()
    with accelerated.no_sync():
        loss = accelerated.train_step(next(iter(accelerated.loader)))
    assert torch.isfinite(loss)
    assert float(accelerated.clip_grad_norm_(1.0)) == 0.0


def test_state_dict_continues_to_the_bit(built):
    first = built(["optimizer_impl"])
    train(first, 2)
    state = copy.deepcopy(first.state_dict())
    rest = train(first, 2)
    second = built(["optimizer_impl"])
    second.load_state_dict(state)
    assert train(second, 2) == rest
