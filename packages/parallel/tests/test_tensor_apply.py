from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from tensor_models import Biased, Counting, Normed, Thirds, loss_of, make, make_batch
from torch import nn

from drivetrain_core import PlanError
from drivetrain_parallel.tensor import (
    ModuleStyle,
    Style,
    TensorPlan,
    apply_tensor_plan,
    canonical_slices,
    full_gradients,
    full_parameters,
    has_split_loss,
    local_loss,
    loss_context,
    plan_tensor_parallel,
    verify_tensor_plan,
)
from drivetrain_parallel.torch_internals import simulated_ranks
from drivetrain_testing import run_ranks

NUM_STEPS = 3


def planned(model, **options):
    return plan_tensor_parallel(model, make_batch(), loss_of, 2, **options)


@cache
def plan_of(attention, **options):
    return planned(make(attention, ffn=0, **options))


def train(model, options, batches):
    # A large eps: some gradients are zero but for rounding, and Adam goes by their sign.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-2, **options)
    seen = []
    for batch in batches:
        loss = loss_of(model, batch)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
        whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        seen.append((loss.item(), whole.item()))
    return seen


def batches_of(size, part=0, parts=1):
    whole = [make_batch(size, seed=step) for step in range(NUM_STEPS)]
    return [batch.chunk(parts)[part] for batch in whole]


def train_on_a_rank(attention, options, plan):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor

    model = make(attention, tied=True, ffn=0)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
    apply_tensor_plan(model, mesh, TensorPlan.from_dict(plan))
    assert all(isinstance(p, DTensor) for p in model.parameters())
    head, embedding = model.head._parameters, model.embedding._parameters
    assert head["weight"] is embedding["weight"]
    seen = train(model, options, batches_of(4))
    return seen, {n: p.clone() for n, p in full_parameters(model).items()}


def train_each_on_a_rank(cases):
    return [train_on_a_rank(*case) for case in cases]


@pytest.mark.slow
def test_apply_trains_as_one_process_does():
    kinds = [(Thirds, {"foreach": True}), (Normed, {"fused": True})]
    cases = [(*kind, plan_of(kind[0], tied=True).to_dict()) for kind in kinds]
    for results in run_ranks(train_each_on_a_rank, 2, cases):
        for (attention, _), (seen, parameters) in zip(kinds, results, strict=True):
            model = make(attention, tied=True, ffn=0)
            expected = train(model, {}, batches_of(4))
            assert torch.tensor(seen).allclose(torch.tensor(expected), rtol=1e-5)
            for name, parameter in model.named_parameters():
                assert torch.allclose(parameters[name], parameter, atol=1e-4)


def split_loss_on_a_rank(plan):
    from torch.distributed.device_mesh import init_device_mesh

    model, plan = make(tied=True, ffn=0), TensorPlan.from_dict(plan)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
    apply_tensor_plan(model, mesh, plan)
    with loss_context(plan):
        loss = local_loss(loss_of(model, make_batch()))
        loss.backward()
    return loss.item(), full_gradients(model)


@pytest.mark.slow
def test_apply_splits_the_loss_over_the_vocabulary():
    plan = planned(make(tied=True, ffn=0), loss_parallel=True)
    assert has_split_loss(plan)
    assert not has_split_loss(plan_of(Thirds))
    model = make(tied=True, ffn=0)
    expected = loss_of(model, make_batch())
    expected.backward()
    for loss, gradients in run_ranks(split_loss_on_a_rank, 2, plan.to_dict()):
        assert loss == pytest.approx(expected.item(), rel=1e-6)
        for name, parameter in model.named_parameters():
            assert torch.allclose(gradients[name], parameter.grad, atol=1e-6)


@pytest.mark.slow
def test_plan_of_a_split_loss_needs_a_head_that_divides():
    model = make()
    model.head = nn.Linear(32, 65)
    with pytest.raises(PlanError) as info:
        planned(model, loss_parallel=True)
    assert info.value.code == "NOT_APPLICABLE"
    assert info.value.optimization == "loss_parallel"


def train_sharded_on_a_rank(plan):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = make(Thirds, ffn=0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tensor"))
    apply_tensor_plan(model, mesh["tensor"], TensorPlan.from_dict(plan))
    for block in model.blocks:
        fully_shard(block, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    part = mesh["shard"].get_local_rank()
    seen = train(model, {"foreach": True}, batches_of(4, part, 2))
    losses = torch.tensor([loss for loss, _ in seen])
    dist.all_reduce(losses)
    return (losses / 4).tolist(), [norm for _, norm in seen]


@pytest.mark.faults
def test_apply_composes_with_sharded_data_parallel():
    model = make(Thirds, ffn=0)
    plan = plan_of(Thirds).to_dict()
    losses, norms = run_ranks(train_sharded_on_a_rank, 4, plan)[0]
    expected = train(model, {}, batches_of(4))
    assert losses == pytest.approx([loss for loss, _ in expected], rel=1e-5)
    assert norms == pytest.approx([norm for _, norm in expected], rel=1e-4)


def test_apply_names_each_part_by_the_slice_that_it_is():
    model = make(Thirds, ffn=0)
    plan = plan_of(Thirds)
    with simulated_ranks(2) as mesh:
        apply_tensor_plan(model, mesh, plan)
        slices = canonical_slices(model)
    part = slices["blocks.0.attention.qkv.weight_part1"]
    assert part.name == "blocks.0.attention.qkv.weight"
    assert part.global_shape == (96, 32)
    assert part.offset == (32, 0)
    assert slices["norm.weight"].name == "norm.weight"
    names = {where.name for where in slices.values()}
    assert names == {name for name, _ in make(Thirds, ffn=0).named_parameters()}


@pytest.mark.slow
def test_apply_gives_back_the_values_that_it_split():
    model = make(Thirds, tied=True, ffn=0)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    plan = plan_of(Thirds, tied=True)
    with simulated_ranks(2) as mesh:
        apply_tensor_plan(model, mesh, plan)
        after = full_parameters(model)
        for name, value in before.items():
            assert torch.equal(after[name].reconcile(), value)
    assert set(after) == set(before)


@pytest.mark.slow
def test_apply_leaves_out_the_blocks_of_other_stages():
    model = make(Counting, blocks=3, ffn=0)
    plan = planned(model)
    del model.blocks[1].attention
    model.blocks[2] = nn.Identity()
    with simulated_ranks(2) as mesh:
        with pytest.raises(PlanError, match=r"no module 'blocks\.1\.attention\.q'"):
            apply_tensor_plan(copy.deepcopy(model), mesh, plan)
        apply_tensor_plan(model, mesh, plan, missing_ok=True)
    assert model.blocks[0].attention.num_heads == 2


def test_apply_refuses_a_mesh_of_another_size():
    with (
        simulated_ranks(4) as mesh,
        pytest.raises(PlanError, match="for 2 ranks, the mesh has 4"),
    ):
        apply_tensor_plan(make(), mesh, TensorPlan(degree=2))


def test_apply_refuses_tied_parameters_that_are_split_in_two_ways():
    styles = {
        "embedding": ModuleStyle(style=Style.COLWISE),
        "head": ModuleStyle(style=Style.COLWISE),
    }
    with simulated_ranks(2) as mesh, pytest.raises(PlanError) as info:
        apply_tensor_plan(
            make(tied=True, ffn=0), mesh, TensorPlan(degree=2, modules=styles)
        )
    assert info.value.code == "TIED_PARAMS"


@pytest.mark.slow
def test_plan_splits_the_sequence_between_matrices():
    model = make(Normed, ffn=0)
    plan = planned(model, sequence=True)
    assert plan.sequence == {"blocks": 0}
    assert plan.is_verified
    assert TensorPlan.from_dict(plan.to_dict()) == plan


@pytest.mark.slow
def test_plan_of_a_sequence_that_blocks_need_whole_is_refused():
    # Its bias is as long as the whole sequence, and its attention is the module's.
    model = make(Biased, ffn=0)

    class Mixed(nn.Module):
        """Mixes tokens outside of the matrices."""

        def __init__(self, block):
            super().__init__()
            self.block = block

        def forward(self, x, bias):
            return self.block(x + x.mean(1, keepdim=True), bias)

    model.blocks = nn.ModuleList(Mixed(block) for block in model.blocks)
    with pytest.raises(PlanError) as info:
        planned(model, sequence=True)
    assert info.value.code == "NUMERICS"
    assert info.value.optimization == "sequence_parallel"


def simulate_inside_a_job():
    import torch.distributed as dist

    verdict = verify_tensor_plan(make(), make_batch(), loss_of, TensorPlan(degree=2))
    number = torch.ones(1)
    dist.all_reduce(number)
    return verdict.is_exact, dist.get_rank(), number.item()


@pytest.mark.slow
def test_plan_is_made_inside_a_job_without_touching_its_groups():
    assert run_ranks(simulate_inside_a_job, 2) == [(True, 0, 2.0), (True, 1, 2.0)]
