"""What `select` leaves as it was, of all that a step may change."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from drivetrain_kernels import SelectionError, select


class Codebook(nn.Module):
    """Writes its codes past autograd, as vector quantisers do."""

    def __init__(self):
        super().__init__()
        self.body, self.codes = nn.Linear(8, 4), nn.Embedding(16, 4)

    def forward(self, x):
        z = self.body(x)
        near = torch.cdist(z, self.codes.weight).argmin(1)
        self.codes.weight.data.mul_(0.9)
        return z + (self.codes(near) - z).detach()


class MomentumEncoder(nn.Module):
    """Moves weights that have no gradient."""

    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(8, 4), nn.Linear(8, 4).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            self.key.weight.mul_(0.9).add_(self.query.weight, alpha=0.1)
        return self.query(x) * self.key(x)


@pytest.mark.parametrize("make", [Codebook, MomentumEncoder])
def test_weights_that_a_step_writes_past_autograd_are_seen_and_put_back(make):
    model = make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(SelectionError, match="must not change parameters"):
        select(model, [torch.randn(16, 8)], candidates=[], cache=False)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


class Collecting(nn.Module):
    """Holds what its forwards change: containers, generators, arrays, counters."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 4)
        self.losses, self.seen, self.names = [], {"calls": 0, "deep": [[]]}, set()
        self.generator = torch.Generator().manual_seed(0)
        self.numpy = np.random.default_rng(0)
        self.counts, self.calls, self.plain = np.zeros(3), 0, torch.zeros(2)

    def forward(self, x):
        y = self.body(x)
        self.losses.append(y.square().mean())
        self.seen["calls"] += 1
        self.seen["deep"][0].append(1)
        self.names.add(len(self.losses))
        self.counts += 1
        self.calls += 1
        self.plain += 1
        noise = torch.randn(x.shape[0], 4, generator=self.generator)
        return y + noise + float(self.numpy.random())

    def held(self):
        return (
            *(list(self.losses), copy.deepcopy(self.seen), set(self.names), self.calls),
            *(self.generator.get_state().tolist(), self.numpy.bit_generator.state),
            *(self.counts.tolist(), self.plain.tolist()),
        )


@pytest.mark.parametrize("candidates", [[], ["backend:eager"]])
def test_what_modules_and_steps_hold_is_as_before(candidates):
    model, outside = Collecting(), {"losses": []}

    def step(call, batch):
        loss = call(batch).square().mean()
        outside["losses"].append(loss)
        return loss

    before = model.held()
    batches = [torch.randn(16, 8)]
    options = {"candidates": candidates, "cache": False, "step": step, "budget_s": 20}
    select(model, batches, **options)
    assert model.held() == before
    assert outside == {"losses": []}
