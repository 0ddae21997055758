"""bf16 weights: what must stay in fp32 does, and the module is an ordinary one again."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn
from torch.nn import functional

from drivetrain_core import accelerate

BF16 = [("precision", "bf16_params")]


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05)


class Rotated(nn.Module):
    """Turns its input by angles from a table of frequencies, and averages what it sees."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.register_buffer("frequency", 1.0 / 100.0 ** torch.linspace(0, 1, 4))
        self.register_buffer("average", torch.full((8,), 4.0))

    def angles(self, length):
        return torch.arange(length)[:, None] * self.frequency

    def forward(self, x):
        with torch.no_grad():
            self.average.lerp_(x.mean((0, 1)), 0.01)
        turn = self.angles(x.shape[1])
        a, b = self.inner(x).chunk(2, -1)
        turned = torch.cat(
            [a * turn.cos() - b * turn.sin(), a * turn.sin() + b * turn.cos()], -1
        )
        return self.norm(turned + x)


def rotated(strategy):
    torch.manual_seed(0)
    data = [torch.randn(4, 16, 8) + 1.0 for _ in range(4)]
    accelerated = accelerate(
        Rotated(), sgd, data, lambda o, b: (o - b).square().mean(), strategy=strategy
    )
    losses = [float(accelerated.train_step(batch)) for _ in range(60) for batch in data]
    return losses, accelerated.module


def test_tables_and_averages_stay_in_fp32():
    expected, plain = rotated([])
    losses, module = rotated(BF16)
    assert module.inner.weight.dtype == torch.bfloat16
    assert torch.equal(module.angles(4096), plain.angles(4096))
    torch.testing.assert_close(module.average, plain.average)
    assert losses == pytest.approx(expected, rel=3e-2)


class OwnLoss(nn.Module):
    def __init__(self, is_own):
        super().__init__()
        self.is_own = is_own
        self.body = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 33))

    def forward(self, x, y):
        scores = self.body(x)
        return functional.cross_entropy(scores, y) if self.is_own else scores


def test_a_loss_in_the_model_is_as_near_as_one_outside():
    def losses(is_own, strategy):
        torch.manual_seed(0)
        data = [(torch.randn(32, 16), torch.randint(33, (32,))) for _ in range(6)]
        accelerated = accelerate(
            OwnLoss(is_own),
            sgd,
            data,
            None if is_own else lambda o, b: functional.cross_entropy(o, b[1]),
            forward=lambda model, batch: model(*batch),
            strategy=strategy,
        )
        return [float(accelerated.train_step(batch)) for batch in data]

    def away(is_own):
        both = zip(losses(is_own, []), losses(is_own, BF16), strict=True)
        return max(abs(a - b) / a for a, b in both)

    assert away(is_own=True) < 5 * away(is_own=False) + 1e-5


class Stepping(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 4), nn.Linear(4, 8)

    def forward(self, x):
        return self.encoder(x)

    def training_step(self, batch):
        return functional.mse_loss(self.decoder(self.encoder(batch)), batch)


def test_a_method_of_the_model_trains_as_its_forward_does():
    def losses(strategy):
        torch.manual_seed(0)
        data = [torch.randn(8, 8) for _ in range(4)]
        accelerated = accelerate(
            Stepping(),
            sgd,
            data,
            forward=lambda model, batch: model.training_step(batch),
            strategy=strategy,
        )
        return [float(accelerated.train_step(batch)) for batch in data]

    assert losses(BF16) == pytest.approx(losses([]), rel=1e-2)


@pytest.mark.parametrize("has_buffer", [True, False])
def test_the_module_of_a_closed_plan_is_saved_and_runs_without_us(has_buffer):
    torch.manual_seed(0)
    model = Rotated() if has_buffer else nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    data = [torch.randn(4, 16, 8)]
    accelerated = accelerate(
        model, sgd, data, lambda o, b: (o - b).square().mean(), strategy=BF16
    )
    accelerated.train_step(data[0])
    expected = model(data[0]).detach()
    accelerated.close()
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    torch.testing.assert_close(model(data[0]), expected, atol=2e-2, rtol=2e-2)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    found = torch.load(file, weights_only=False)
    torch.testing.assert_close(found(data[0]), expected, atol=2e-2, rtol=2e-2)
    accelerated.train_step(data[0])  # goes on, in fp32
    assert torch.isfinite(model(data[0])).all()
