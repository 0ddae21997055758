"""What `select` leaves as it was, of all that a step may change."""

import copy
import dataclasses

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


class Cache:
    """Grows with each call, as those of language models do."""

    def __init__(self):
        self.keys = None

    def grown(self, x):
        keys = x.detach() if self.keys is None else torch.cat([self.keys, x.detach()])
        self.keys = keys
        return x + keys.mean()


class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)

    def forward(self, x, cache):
        return cache.grown(self.body(x))


def popping(call, batch):
    return (call(batch["x"]) - batch.pop("y")).square().mean()


def counting(call, batch):
    batch["count"].add_(1)
    return call(batch["x"]).square().mean()


@pytest.mark.parametrize(
    ("model", "batch", "step"),
    [
        (Cached(), (torch.ones(2, 8), Cache()), None),
        (nn.Linear(8, 8), {"x": torch.ones(2, 8), "y": torch.ones(2, 8)}, popping),
        (nn.Linear(8, 8), {"x": torch.ones(2, 8), "count": torch.arange(2)}, counting),
    ],
    ids=["cache", "pop", "whole numbers"],
)
def test_batch_that_a_step_changes_anyhow_is_refused_and_as_before(model, batch, step):
    before = copy.deepcopy(batch)
    with pytest.raises(SelectionError, match="must not change its batch"):
        select(model, [batch], candidates=[], cache=False, step=step)
    assert str(batch if step else vars(batch[1])) == str(
        before if step else vars(before[1])
    )


def test_what_no_snapshot_can_put_back_is_refused_before_a_step():
    model = nn.Linear(8, 8)
    source = nn.Linear(8, 8)
    options = {"candidates": [], "cache": False}
    with pytest.raises(SelectionError, match="comes of a graph"):
        select(model, [source(torch.ones(2, 8))], **options)
    assert source.weight.grad is None
    with pytest.raises(SelectionError, match="has no shape yet; run the model once"):
        select(nn.LazyLinear(8), [torch.ones(2, 8)], **options)
    optimizer = torch.optim.Adam(model.parameters())
    model.weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    with pytest.raises(SelectionError, match="hooks that run in backward"):
        select(model, [torch.ones(2, 8)], **options)
    assert not optimizer.state


def test_loader_is_not_read_as_a_list_of_batches():
    batches = iter([torch.ones(2, 8)] * 3)
    for data in (batches, torch.utils.data.DataLoader([torch.ones(8)] * 3)):
        with pytest.raises(SelectionError, match=r"of a loader \[next\(iter\(loader"):
            select(nn.Linear(8, 8), data, candidates=[], cache=False)
    assert len(list(batches)) == 3


@dataclasses.dataclass
class Output:
    logits: torch.Tensor


class Looking(nn.Module):
    """Sparse and complex parameters, and an output of a class of its own."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 8, sparse=True)
        self.turn = nn.Parameter(torch.eye(8, dtype=torch.complex64))

    def forward(self, x):
        return Output((self.table(x).to(torch.complex64) @ self.turn).abs())


class Deaf(Looking):
    """Turns the other way once compiled."""

    def forward(self, x):
        turn = self.turn
        if torch.compiler.is_compiling():
            turn = turn.real.detach() + 1j * turn.imag
        return Output((self.table(x).to(torch.complex64) @ turn).abs())


@pytest.mark.parametrize(("make", "status"), [(Looking, "ok"), (Deaf, "differs")])
def test_sparse_and_complex_gradients_are_compared(make, status):
    options = {"candidates": ["backend:eager"], "cache": False, "budget_s": 30.0}
    selected = select(make(), [torch.arange(4)], **options)
    selected.undo()
    assert selected.trials[1].status == status
