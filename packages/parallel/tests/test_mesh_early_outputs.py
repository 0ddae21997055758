"""What runs before the blocks and is read inside of them, on several axes at once."""

import mesh_programs as programs
import pytest
import torch
from torch import nn
from torch.nn import functional as f

from drivetrain_core import Code, PlanError, accelerate
from drivetrain_parallel.pipeline import plan_pipeline
from drivetrain_parallel.pipeline.sequential import stages_in_process
from drivetrain_parallel.tensor import Style, plan_tensor_parallel
from drivetrain_testing import run_ranks

WIDTH, HEADS, LENGTH = programs.WIDTH, programs.HEADS, programs.LENGTH


class Angles(nn.Module):
    """Makes positions itself, on the CPU, and is called with a number alone."""

    def __init__(self):
        super().__init__()
        self.rates = nn.Parameter(torch.rand(WIDTH))

    def forward(self, length):
        return (torch.arange(length).float()[:, None] * self.rates).cos()


class Block(nn.Module):
    """Adds to its stream what the embedding found, and more to its values."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x, first, more, angles):
        x = x + 0.5 * first + angles
        y = self.norm(x)
        q, k, v = (
            part.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for part in (self.query(y), self.key(y), self.value(y) + more)
        )
        y = f.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(f.gelu(self.up(x)))


class Early(nn.Module):
    """Each block reads two embeddings and the angles."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(programs.VOCAB, WIDTH)
        self.more = nn.Embedding(programs.VOCAB, WIDTH)
        self.angles = Angles()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, programs.VOCAB)

    def forward(self, ids):
        x = first = self.embed(ids)
        more, angles = self.more(ids), self.angles(ids.shape[1])
        for block in self.blocks:
            x = block(x, first, more, angles)
        return self.head(x)


def loss_of(model, batch):
    return programs.loss(model(batch[0]), batch)


@pytest.fixture
def batch():
    (found,) = programs.batches(1, size=2)
    return found


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Early()


def test_an_embedding_that_heads_read_is_divided_with_them(model, batch):
    plan = plan_tensor_parallel(model, batch, loss_of, 2)
    assert plan.modules["more"].style is Style.COLWISE
    assert plan.modules["blocks.0.value"].style is Style.COLWISE
    assert plan.modules["blocks.1.out"].style is Style.ROWWISE


def staged(model, batch):
    plan = plan_pipeline(model, batch, loss_of, 2)
    return stages_in_process(model, plan, loss_of)


def test_what_is_hooked_to_a_module_after_the_cut_is_sent_on(model, batch):
    sent = []
    for factor in (1, 3):
        first, _ = staged(model, batch)
        # As the tensor axis does, which sums what each rank has looked up.
        first.model.more.register_forward_hook(lambda _, __, y, by=factor: y * by)
        first.set_micro_batches([batch], [1.0])
        sent.append(first(index=torch.zeros(1, dtype=torch.long)))
        assert any(torch.equal(one, model.more(batch[0]) * factor) for one in sent[-1])
    assert len(sent[0]) == len(sent[1]) == 4


def test_a_stage_that_is_called_as_a_model_says_so(model, batch):
    for stage in staged(model, batch):
        with pytest.raises(PlanError, match="is on another rank") as caught:
            stage.model(batch[0])
        assert caught.value.code is Code.STEP_NOT_OWNED


def test_a_stage_that_is_called_as_a_model_runs_nothing_of_it(model, batch):
    first, _ = staged(model, batch)
    ran = []
    for module in first.model.modules():
        if module is not first.model:
            module.register_forward_pre_hook(lambda *_: ran.append(1))
    with pytest.raises(PlanError, match="block 1 is on another rank"):
        first.model(batch[0])
    assert ran == []


def train(strategy):
    torch.set_num_threads(1)
    accelerated = accelerate(
        Early, programs.sgd, programs.batches(2), programs.loss, strategy=strategy
    )
    losses = []
    for one in accelerated.loader:
        value = accelerated.train_step(one).clone()
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(value)
            value /= torch.distributed.get_world_size()
        losses.append(float(value))
    accelerated.close()
    return losses


@pytest.mark.faults
@pytest.mark.parametrize("axis", ["tensor", "context", "shard"])
def test_later_stages_get_the_whole_of_what_ran_before_the_blocks(axis):
    expected = train([])
    strategy = [("mesh", {"pipeline": 2, axis: 2})]
    for losses in run_ranks(train, 4, strategy, timeout_s=120):
        assert losses == pytest.approx(expected, rel=2e-5)


def twice():
    model = programs.Model(blocks=2)
    strategy = [("mesh", {"tensor": 2})]
    arguments = programs.sgd, programs.batches(1), programs.loss
    accelerate(model, *arguments, strategy=strategy).close()
    with pytest.raises(PlanError, match="distributed already") as caught:
        accelerate(model, *arguments, strategy=strategy)
    return caught.value.code


def test_a_model_that_is_laid_out_already_is_refused():
    assert run_ranks(twice, 2) == [Code.NOT_APPLICABLE] * 2
