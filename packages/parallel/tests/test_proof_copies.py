"""Meshes are proven on values that hide nothing, and on copies that are the model's."""

from functools import partial

import mesh_programs as programs
import pytest
import torch
from torch import nn
from torch.nn import functional as f

from drivetrain_core._choice import Choice
from drivetrain_core._errors import Code, PlanError
from drivetrain_core._program import Program
from drivetrain_parallel.planning import plan_parallel
from drivetrain_parallel.proof.copies import proof_copy, with_values
from drivetrain_parallel.tensor import Style
from drivetrain_testing import run_ranks

WIDTH = programs.WIDTH


def planned(model, *, data=None, **axes):
    """Returns the plan of a model on a mesh of two ranks."""
    program = Program(
        model=lambda: model,
        optimizer=programs.sgd,
        data=programs.batches(),
        loss=programs.loss,
    )
    batch = programs.batches()[0] if data is None else data
    return plan_parallel(model, batch, program.loss_of, [Choice("mesh", axes)], 2)


class Gated(programs.Block):
    """Adds something that two factors of zero keep out of loss and gradients."""

    def __init__(self, memory):
        super().__init__(mixes=False)
        self.one, self.two = (nn.Parameter(torch.zeros(WIDTH)) for _ in "ab")
        self.memory = memory
        self.index = len(memory)
        memory.append(torch.zeros(()))

    def forward(self, x):
        y = super().forward(x)
        return y + self.one * self.two * self.more(x)


class MeanOfPositions(Gated):
    def more(self, x):
        return x.mean(1, keepdim=True)


class NormOfFeatures(Gated):
    def __init__(self, memory):
        super().__init__(memory)
        self.rise, self.fall = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def more(self, x):
        return self.fall(f.rms_norm(self.rise(x), (self.rise(x).shape[-1],)))


class FirstInLast(Gated):
    def more(self, x):
        self.memory[self.index] = x.detach().mean()
        return self.memory[0]


class MeanOfTokens(programs.Experts):
    def __init__(self):
        super().__init__()
        self.one, self.two = (nn.Parameter(torch.zeros(WIDTH)) for _ in "ab")

    def forward(self, tokens, index, weights):
        out = super().forward(tokens, index, weights)
        return out + self.one * self.two * tokens.mean(0)


def gated(kind):
    torch.manual_seed(0)
    model, memory = programs.Model(), []
    model.blocks = nn.ModuleList(kind(memory) for _ in range(4))
    return model


@pytest.mark.parametrize(
    ("kind", "axis"),
    [(MeanOfPositions, "context"), (FirstInLast, "pipeline")],
)
def test_a_mesh_is_not_proven_on_gates_that_start_at_zero(kind, axis):
    model = gated(kind)
    with pytest.raises(PlanError, match="does not compute") as caught:
        planned(model, **{axis: 2})
    assert caught.value.code is Code.NUMERICS
    assert not any(block.one.any() or block.two.any() for block in model.blocks)


def test_a_pipeline_is_not_proven_on_what_blocks_keep_of_an_earlier_run():
    model = gated(FirstInLast)
    for name, parameter in model.named_parameters():
        if not parameter.any() or name.endswith(("norm", "bias")):
            nn.init.normal_(parameter)
    with pytest.raises(PlanError, match="does not compute"):
        planned(model, pipeline=2)


def test_matrices_behind_gates_of_zero_are_not_divided_wrongly():
    styles = planned(gated(NormOfFeatures), tensor=2).tensor.modules
    assert styles["blocks.0.up"].style is Style.COLWISE
    rise = styles.get("blocks.0.rise")
    assert rise is None or rise.style is Style.COLWISE_GATHERED


def test_experts_behind_gates_of_zero_are_not_shared_wrongly():
    model = programs.Model(mixes=True)
    for block in model.blocks:
        block.mlp.experts = MeanOfTokens()
    with pytest.raises(PlanError, match="does not compute"):
        planned(model, expert=2)


def test_experts_that_start_alike_are_told_apart():
    model = programs.Experts()
    with torch.no_grad():
        model.up.copy_(model.up[:1].clone().expand_as(model.up))
    given = torch.randn(3, WIDTH), torch.tensor([[0], [1], [2]]), torch.ones(3, 1)
    copied, _ = proof_copy(model, given, lambda m, b: m(*b).sum())
    assert not torch.equal(copied.up[0], copied.up[1])
    assert torch.equal(model.up[0], model.up[1])


def small(**values):
    model = nn.Module()
    for name, value in values.items():
        setattr(model, name, nn.Parameter(value))
    return model


def total(model, batch):
    return sum(p.sum() for p in model.parameters()) + batch.sum()


def test_a_proof_copy_draws_what_is_constant_and_shares_the_rest():
    torch.manual_seed(0)
    model = small(
        scale=torch.ones(3),
        shift=torch.zeros(1),
        temperature=torch.ones(1),
        table=torch.cat([torch.zeros(1, 4), torch.randn(2, 4)]),
        drawn=torch.randn(2, 2),
        low=torch.zeros(2, dtype=torch.bfloat16),
    )
    model.scale.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    copied, batch = proof_copy(model, torch.ones(2, 3), total)
    again, same = proof_copy(model, torch.ones(2, 3), total)
    assert len(copied.scale.unique()) == 3
    assert not copied.scale.requires_grad
    assert bool(copied.shift.all() & copied.low.all() & copied.table[0].all())
    assert torch.equal(copied.table[1:], model.table[1:])
    assert copied.temperature.data_ptr() == model.temperature.data_ptr()
    assert copied.drawn.data_ptr() == model.drawn.data_ptr()
    assert len(batch.unique()) == 6
    assert torch.equal(batch, same)
    for name, value in again.state_dict().items():
        assert torch.equal(value, copied.state_dict()[name])
        assert torch.equal(model.state_dict()[name], before[name])


def infinite(model, batch):
    return total(model, batch) + (model.shift != 0).sum() * torch.inf


def refuses(model, batch):
    if model.shift.any():
        raise ValueError
    return total(model, batch)


@pytest.mark.parametrize("loss_of", [infinite, refuses])
def test_a_model_that_needs_its_constants_is_proven_with_them(loss_of):
    model, batch = small(shift=torch.zeros(2)), torch.ones(2)
    copied, same = proof_copy(model, batch, loss_of)
    assert not copied.shift.any()
    assert torch.equal(same, batch)


def test_whole_numbers_of_a_batch_stay():
    model, batch = small(shift=torch.zeros(2)), torch.ones(2, dtype=torch.long)
    assert proof_copy(model, batch, total)[1] is batch


class Bound(programs.Block):
    """Runs a layer by way of a function that is bound to it, and to no copy of it."""

    def __init__(self, bind):
        super().__init__(mixes=False)
        self.run = bind(self.up)

    def forward(self, x):
        return super().forward(x) + self.down(self.run(x))


def in_closure(layer):
    return lambda x: layer(x)


def in_default(layer):
    def run(x, layer=layer):
        return layer(x)

    return run


def bound(bind):
    torch.manual_seed(0)
    model = programs.Model()
    model.blocks = nn.ModuleList(Bound(bind) for _ in range(4))
    return model


@pytest.mark.parametrize("axis", ["tensor", "pipeline", "context"])
@pytest.mark.parametrize("bind", [in_closure, in_default])
def test_functions_that_are_bound_to_modules_are_refused(axis, bind):
    model = bound(bind)
    with pytest.raises(PlanError, match=r"model's own 'blocks.*up") as caught:
        planned(model, **{axis: 2})
    assert caught.value.code is Code.NOT_APPLICABLE
    assert "self" in caught.value.fix
    assert all(parameter.grad is None for parameter in model.parameters())


def test_experts_in_functions_that_are_bound_to_them_are_refused():
    model = programs.Model(mixes=True)
    head = model.head
    model.head.forward = lambda x: f.linear(x, head.weight)
    with pytest.raises(PlanError, match="model's own"):
        planned(model, expert=2)


def of_layer(layer):
    return layer.forward


@pytest.mark.parametrize("bind", [of_layer, lambda layer: partial(of_layer(layer))])
def test_methods_that_are_bound_to_modules_are_copied_with_them(bind):
    assert planned(bound(bind), pipeline=2).pipeline.is_verified


def test_a_mesh_of_data_axes_takes_functions_that_are_bound_to_modules():
    assert planned(bound(in_closure), shard=2).pipeline is None


def test_planning_leaves_no_gradients():
    model = programs.Model(mixes=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for axis in ("pipeline", "context", "expert"):
        planned(model, **{axis: 2})
    assert all(bool((p.grad == 1).all()) for p in model.parameters())


class KeepsLoss(programs.Block):
    """Keeps a tensor of its forward, for which the model, or nobody, asks."""

    def __init__(self):
        super().__init__(mixes=False)
        self.kept = {}

    def forward(self, x):
        x = super().forward(x)
        self.kept["balance"] = [x.square().mean()]
        self.balance = self.kept["balance"][0]
        return x


class AddsLosses(programs.Model):
    def forward(self, ids):
        return super().forward(ids) * (1 + sum(b.balance for b in self.blocks))


def keeping(kind):
    torch.manual_seed(0)
    model = kind()
    model.blocks = nn.ModuleList(KeepsLoss() for _ in range(4))
    model(programs.batches()[0][0])
    return model


@pytest.mark.parametrize("axis", ["tensor", "pipeline", "context"])
def test_a_model_that_keeps_tensors_of_its_forward_is_divided(axis):
    model = keeping(programs.Model)
    before = model.blocks[0].balance
    assert getattr(planned(model, **{axis: 2}), axis) is not None
    assert model.blocks[0].balance is before


def test_a_model_that_adds_up_losses_of_its_blocks_is_divided_along_tensor():
    assert planned(keeping(AddsLosses), tensor=2).tensor.is_verified


@pytest.mark.parametrize("axis", ["pipeline", "context"])
def test_losses_of_blocks_that_would_be_other_ones_are_refused(axis):
    with pytest.raises(PlanError, match="does not compute"):
        planned(keeping(AddsLosses), **{axis: 2})


def test_experts_that_keep_a_tensor_are_shared():
    model = programs.Model(mixes=True)
    model.blocks[0].mlp.register_forward_hook(
        lambda module, _args, output: setattr(module, "last", output.sum())
    )
    model(programs.batches()[0][0])
    assert planned(model, expert=2).expert.layers


def test_copies_have_nothing_of_what_a_forward_computed():
    model = small(scale=torch.ones(2))
    model.kept = (model.scale * 2, model.scale.detach())
    copied = with_values(model)
    assert copied.kept[0].isnan().all()
    assert copied.kept[0].is_leaf
    assert torch.equal(copied.kept[1], torch.ones(2))


def test_a_loss_that_writes_to_its_batch_has_a_fresh_one_each_time():
    def loss(output, batch):
        return programs.loss(output, (batch[0], batch[1].add_(1).remainder_(9)))

    program = Program(
        model=programs.Model,
        optimizer=programs.sgd,
        data=programs.batches(),
        loss=loss,
    )
    batch = programs.batches()[0]
    before = batch[1].clone()
    choices = [Choice("mesh", {"tensor": 2})]
    plan = plan_parallel(programs.Model(), batch, program.loss_of, choices, 2)
    assert plan.tensor is not None  # it was proven
    assert torch.equal(batch[1], before)


def train_named_twice(strategy):
    def build():
        torch.manual_seed(0)
        model = programs.Model()
        for block in model.blocks:
            block.again = block.up
        return model

    return programs.train_model(build, strategy)[0]


def test_layers_that_a_block_names_twice_are_tied_on_the_rank_that_has_them():
    strategy = [("mesh", {"pipeline": 2}), ("micro_batch", 2)]
    expected = train_named_twice([])
    for losses in run_ranks(train_named_twice, 2, strategy, timeout_s=120):
        assert losses == pytest.approx(expected, rel=1e-4)
