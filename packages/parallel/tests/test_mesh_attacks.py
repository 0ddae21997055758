"""Programs over a mesh that once trained other numbers, or failed without a reason."""

from contextlib import nullcontext

import mesh_programs as programs
import pytest
import torch
from torch import nn
from torch.nn import functional as f

from drivetrain_core import accelerate
from drivetrain_core._choice import Choice
from drivetrain_core._errors import Code, PlanError
from drivetrain_core._program import Program
from drivetrain_core.numerics.without_dropout import WithoutDropout
from drivetrain_parallel.planning import plan_parallel
from drivetrain_parallel.proof.rng_guard import undisturbed
from drivetrain_testing import run_ranks

PIPELINE = ("mesh", {"pipeline": 2})
BY_FOUR = ("micro_batch", 4)


def train(strategy, model=programs.Model, optimizer=programs.sgd, data=None):
    """Returns the losses, clipped steps, and the sum of each parameter on this rank."""
    torch.set_num_threads(1)
    accelerated = accelerate(
        model,
        optimizer,
        programs.batches() if data is None else data,
        programs.loss,
        strategy=strategy,
        max_grad_norm=0.5,
        progress=False,
    )
    losses = []
    for batch in accelerated.loader:
        value = accelerated.train_step(batch).clone()
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(value)
            value /= torch.distributed.get_world_size()
        losses.append(float(value))
    sums = {
        name: float(parameter.detach().double().sum())
        for one in accelerated.models()
        for name, parameter in one.named_parameters()
        if not hasattr(parameter, "placements")
        or parameter.placements[0].is_replicate()
    }
    accelerated.close()
    return losses, sums


def several(cases):
    return [train(*case) for case in cases]


V_SHAPED = [
    [PIPELINE, ("schedule", "zbv_zero_bubble"), BY_FOUR],
    [PIPELINE, ("schedule", "dual_pipe_v"), "fsdp", BY_FOUR],
    [PIPELINE, ("schedule", "zbv_zero_bubble"), "activation_checkpoint", BY_FOUR],
]


@pytest.mark.faults
def test_a_tied_parameter_on_both_stages_of_one_rank_counts_once_in_the_norm():
    expected, _ = train([])
    cases = [(strategy,) for strategy in V_SHAPED]
    for rank in run_ranks(several, 2, cases, timeout_s=120):
        for (losses, _), strategy in zip(rank, V_SHAPED, strict=True):
            assert losses == pytest.approx(expected, rel=2e-5), strategy


def with_a_frozen_tie():
    model = programs.Model()
    model.embed.weight.requires_grad_(False)
    return model


def decaying(parameters):
    return torch.optim.SGD(parameters, lr=0.3, weight_decay=0.1)


@pytest.mark.faults
def test_a_frozen_tied_parameter_does_not_decay_in_a_pipeline():
    expected, sums = train([], with_a_frozen_tie, decaying)
    for losses, found in run_ranks(
        train, 2, [PIPELINE], with_a_frozen_tie, decaying, timeout_s=60
    ):
        assert losses == pytest.approx(expected, rel=2e-5)
        weight = found.get("embed.weight", found.get("head.weight"))
        assert weight == pytest.approx(sums["embed.weight"])


class Dropped(programs.Block):
    """Drops out by functions, where no module tells of it."""

    def forward(self, x):
        y = f.gelu(self.up(self.norm_two(super().forward(x))))
        return x + f.dropout(self.down(f.dropout(y, 0.3, self.training)), 0.3)


def dropped():
    model = programs.Model()
    model.blocks = nn.ModuleList(Dropped(mixes=False) for _ in range(4))
    return model


def with_own_seed(*case):
    torch.manual_seed(100 + torch.distributed.get_rank())
    return train(*case)


@pytest.mark.slow
def test_copies_on_tensor_ranks_do_not_drift_apart_by_dropout():
    strategy = [("mesh", {"tensor": 2})]
    (_, one), (_, other) = run_ranks(with_own_seed, 2, strategy, dropped, timeout_s=90)
    assert "norm.weight" in one
    assert one == other


AXES = ("tensor", "context")


@pytest.mark.slow
def test_master_weights_of_shards_are_stepped():
    cases = [[("mesh", {axis: 2}), ("precision", "bf16_params")] for axis in AXES]
    expected, _ = train([("precision", "bf16_params")])
    for rank in run_ranks(several, 2, [(case,) for case in cases], timeout_s=90):
        for losses, _ in rank:
            assert losses == pytest.approx(expected, rel=1e-2)


class Counting(programs.Model):
    """Keeps a running mean, as BatchNorm does."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, ids):
        self.mean.add_(0.1)
        return super().forward(ids)


class Named(programs.Block):
    def forward(self, *, hidden):
        return {"hidden": super().forward(hidden)}


class ByName(programs.Model):
    """Its blocks hand on dictionaries."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Named(mixes=False) for _ in range(4))

    def forward(self, ids):
        state = {"hidden": self.embed(ids) + self.place(torch.arange(ids.shape[1]))}
        for block in self.blocks:
            state = block(**state)
        return self.head(self.norm(state["hidden"]))


class TwoPass(torch.optim.SGD):
    needs_second_pass = True

    def perturb(self):
        return nullcontext()


def two_pass(parameters):
    return TwoPass(parameters, lr=0.1)


def with_a_small_end():
    return [*programs.batches(2), *programs.batches(1, size=5)]


SELECTIVE = ("activation_checkpoint", "selective")
REFUSED = [
    ([PIPELINE, ("schedule", "zbv_zero_bubble"), SELECTIVE], {}, Code.CONFLICT, "once"),
    (
        [("mesh", {"context": 2}), "sequence_parallel"],
        {},
        Code.CONFLICT,
        "context axis",
    ),
    ([PIPELINE], {"model": Counting}, Code.NOT_APPLICABLE, "buffer 'mean'"),
    ([("mesh", {"tensor": 2})], {"model": Counting}, Code.NOT_APPLICABLE, "'mean'"),
    ([("mesh", {"context": 2})], {"model": ByName}, Code.NUMERICS, "AttributeError"),
    ([PIPELINE], {"optimizer": two_pass}, Code.CONFLICT, "TwoPass"),
    ([PIPELINE], {"data": with_a_small_end()}, Code.CONFIG, "drop_last"),
]


def refusals():
    found = []
    for strategy, options, _, _ in REFUSED:
        with pytest.raises(PlanError) as caught:
            train(strategy, **options)
        found.append((caught.value.code, str(caught.value)))
    return found


@pytest.mark.slow
def test_what_would_be_wrong_is_refused_on_every_rank():
    for rank in run_ranks(refusals, 2, timeout_s=120):
        for (code, text), (_, _, expected, part) in zip(rank, REFUSED, strict=True):
            assert code is expected, text
            assert part in text


@pytest.mark.slow
def test_planning_leaves_model_and_random_state_as_they_are():
    program = Program(
        model=dropped,
        optimizer=programs.sgd,
        data=programs.batches(),
        loss=programs.loss,
    )
    model, before = dropped(), torch.get_rng_state()
    choices = [Choice("mesh", {"pipeline": 2, "tensor": 2})]
    plan_parallel(model, programs.batches()[0], program.loss_of, choices, 4)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training


def test_undisturbed_puts_back_buffers_that_were_replaced():
    model = nn.Module()
    model.register_buffer("count", torch.zeros(2))
    with undisturbed(model):
        model.count.add_(1)
        model.count = model.count + 1
    assert model.count.tolist() == [0.0, 0.0]


def attention(p):
    query = torch.ones(1, 2, 3, 4)
    return f.scaled_dot_product_attention(query, query, query, None, p)


DROPS = {
    "dropout": lambda: f.dropout(torch.ones(1, 2, 3), 0.9),
    "dropout1d": lambda: f.dropout1d(torch.ones(1, 2, 3), p=0.9),
    "torch": lambda: torch.dropout(torch.ones(1, 2, 3), 0.9, train=True),
    "module": lambda: nn.Dropout(0.9)(torch.ones(1, 2, 3)),
    "alpha": lambda: f.alpha_dropout(torch.ones(1, 2, 3), 0.9, training=True),
    "attention": lambda: attention(0.9),
}


@pytest.mark.parametrize("kind", DROPS)
def test_without_dropout_everything_goes_through(kind):
    torch.manual_seed(0)
    drop = DROPS[kind]
    assert not bool((drop() == 1).all())
    with WithoutDropout():
        torch.testing.assert_close(drop(), torch.ones_like(drop()))


def by_identity():
    """Returns why a factory is refused that knows parameters by what they are."""
    torch.manual_seed(0)
    model = programs.Model()
    slow = {id(parameter) for parameter in model.blocks[3].parameters()}

    def factory(parameters):
        rates = [(p, 0.1 if id(p) in slow else 0.3) for p in parameters]
        return torch.optim.SGD([{"params": [p], "lr": rate} for p, rate in rates])

    with pytest.raises(PlanError) as caught:
        train([PIPELINE, BY_FOUR], model, factory)
    return caught.value.because


@pytest.mark.faults
def test_what_differs_on_one_stage_alone_is_refused_on_all():
    first, second = run_ranks(by_identity, 2, timeout_s=60)
    assert first == second
    assert "learning rate" in first
