from __future__ import annotations

import copy
import json
from functools import cache

import pytest
import torch
from tensor_models import (
    FFN,
    HEAD,
    HEADS,
    WIDTH,
    Biased,
    Counting,
    FixedWidth,
    Grouped,
    Interleaved,
    Normed,
    OneKeyHead,
    Plain,
    Relative,
    Reweighted,
    Scaled,
    Thirds,
    loss_of,
    make,
    make_batch,
)
from torch import nn

from drivetrain_core import PlanError
from drivetrain_core._errors import PlanFormatError
from drivetrain_parallel.tensor import (
    ModuleStyle,
    Style,
    TensorPlan,
    explain_tensor_plan,
    plan_tensor_parallel,
    verify_tensor_plan,
)


def planned(model, degree=2, *, vocab=False, **options):
    options["vocab"] = vocab
    return plan_tensor_parallel(model, make_batch(), loss_of, degree, **options)


@cache
def plan_of(attention):
    """Returns the plan of blocks that are attention only."""
    return planned(make(attention, ffn=0))


def styles_of(plan, block="blocks.0."):
    return {
        name.removeprefix(block): style.style.value
        for name, style in plan.modules.items()
        if name.startswith(block)
    }


ATTENTION = {
    "attention.q": "colwise",
    "attention.k": "colwise",
    "attention.v": "colwise",
    "attention.out": "rowwise",
}
MLP = {"up": "colwise", "down": "rowwise"}


@pytest.mark.slow
@pytest.mark.parametrize("degree", [2, pytest.param(4, marks=pytest.mark.faults)])
def test_plan_pairs_of_matrices_are_found_by_what_flows_between_them(degree):
    model = make()
    plan = planned(model, degree, vocab=True)
    assert styles_of(plan) == styles_of(plan, "blocks.1.") == ATTENTION | MLP
    assert plan.entries["blocks.1.attention"] == (0,)
    assert plan.modules["embedding"].style is Style.VOCAB
    assert plan.modules["head"].style is Style.COLWISE_GATHERED
    assert set(plan.coverage) == {"blocks.0", "blocks.1"}
    assert min(plan.coverage.values()) > 0.95
    assert plan.is_verified
    assert verify_tensor_plan(model, make_batch(), loss_of, plan).is_exact


def test_plan_leaves_the_model_as_it_is():
    model = make(Thirds, tied=True, ffn=0)
    before = copy.deepcopy(model.state_dict())
    classes = [type(module) for module in model.modules()]
    planned(model)
    assert [type(module) for module in model.modules()] == classes
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "name", "parts"),
    [
        (Thirds, "attention.qkv", (WIDTH,) * 3),
        (Grouped, "attention.qkv", (WIDTH, WIDTH // 2, WIDTH // 2)),
        (Interleaved, "attention.qkv", ()),
    ],
)
def test_plan_finds_the_parts_of_a_packed_matrix(attention, name, parts):
    plan = plan_of(attention)
    assert plan.modules[f"blocks.0.{name}"] == ModuleStyle(
        style=Style.COLWISE, parts=parts
    )


def test_verify_rejects_a_packed_matrix_that_is_split_as_one_part():
    model = make(Thirds)
    plan = TensorPlan(
        degree=2,
        modules={
            "blocks.0.attention.qkv": ModuleStyle(style=Style.COLWISE),
            "blocks.0.attention.out": ModuleStyle(style=Style.ROWWISE),
        },
    )
    verdict = verify_tensor_plan(model, make_batch(), loss_of, plan)
    assert verdict.has_run
    assert not verdict.is_exact
    assert "the loss is " in verdict.because


def test_plan_sums_the_gradient_of_a_norm_that_heads_share():
    plan = plan_of(Normed)
    assert plan.modules["blocks.0.attention.q_norm"].style is Style.PARTIAL


def test_verify_rejects_a_shared_norm_whose_gradient_is_not_summed():
    model = make(Normed, ffn=0)
    plan = plan_of(Normed)
    modules = {k: s for k, s in plan.modules.items() if s.style is not Style.PARTIAL}
    wrong = TensorPlan(degree=2, modules=modules, entries=plan.entries)
    verdict = verify_tensor_plan(model, make_batch(), loss_of, wrong)
    assert verdict.loss_error < 1e-6
    assert not verdict.is_exact
    assert "q_norm" in verdict.because
    assert verdict.gradient_error > 0.1


def test_plan_splits_a_parameter_with_a_number_for_each_head():
    plan = plan_of(Scaled)
    assert plan.modules["blocks.1.attention.temperature"].style is Style.SPLIT


def test_plan_divides_the_number_of_heads_where_code_counts_them():
    model = make(Counting, ffn=0)
    plan = planned(model)
    assert plan.attributes["blocks.0.attention"] == {"num_heads": HEADS // 2}
    # Without it the code runs, and is wrong.
    wrong = TensorPlan(degree=2, modules=plan.modules, entries=plan.entries)
    verdict = verify_tensor_plan(model, make_batch(), loss_of, wrong)
    assert verdict.has_run
    assert not verdict.is_exact
    assert model.blocks[0].attention.num_heads == HEADS


@pytest.mark.slow
def test_plan_gives_a_rank_the_heads_of_a_bias_that_it_has():
    plan = plan_of(Biased)
    (one,) = plan.head_inputs["blocks.0.attention"]
    assert (one.argument, one.dim, one.heads) == ("bias", 0, HEADS)
    assert plan.attributes["blocks.0.attention"] == {"num_heads": HEADS // 2}


def test_plan_splits_a_table_of_biases_by_heads():
    plan = plan_of(Relative)
    assert plan.modules["blocks.0.attention.table"].style is Style.COLWISE


def test_plan_leaves_one_key_head_whole_on_every_rank():
    plan = plan_of(OneKeyHead)
    assert styles_of(plan)["attention.k"] == "partial"
    assert styles_of(plan)["attention.q"] == "colwise"


def test_plan_joins_outputs_where_code_needs_the_whole_width():
    plan = planned(make(FixedWidth, ffn=8))
    assert "colwise_gathered" in styles_of(plan).values()
    tried = [d for d in plan.dropped if "blocks.*.attention.out" in d.names]
    assert tried
    assert "invalid for input" in tried[0].because
    (line,) = (one for one in explain_tensor_plan(plan) if one.startswith("not"))
    assert line.startswith("not divided: blocks.*.attention (")
    assert "whole on every rank (split" in line
    assert "invalid for input" in line


@pytest.mark.faults
def test_plan_of_blocks_that_run_twice_is_exact():
    model = make(passes=2)
    plan = planned(model)
    assert styles_of(plan) == ATTENTION | MLP
    assert verify_tensor_plan(model, make_batch(), loss_of, plan).is_exact


@pytest.mark.slow
def test_plan_keeps_tied_matrices_alike():
    plan = planned(make(tied=True), vocab=True)
    assert plan.modules["embedding"].style is Style.VOCAB
    assert plan.modules["head"].style is Style.COLWISE_GATHERED
    apart = planned(make(tied=True))
    assert "embedding" not in apart.modules
    assert "head" not in apart.modules


def test_plan_of_dropout_is_compared_without_it():
    model = make()
    for block in model.blocks:
        block.attention = nn.Sequential(nn.Dropout(0.5))
    model.blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(WIDTH, FFN), nn.Dropout(0.5), nn.Linear(FFN, WIDTH))
        for _ in range(2)
    )

    def loss(model, ids):
        x = model.embedding(ids)
        for block in model.blocks:
            x = x + block(x)
        return model.head(x).square().mean()

    plan = plan_tensor_parallel(model, make_batch(), loss, 2)
    assert plan.modules["blocks.0.0"].style is Style.COLWISE
    assert plan.modules["blocks.0.2"].style is Style.ROWWISE


def test_plan_of_sizes_that_do_not_divide_is_refused_with_the_sizes():
    with pytest.raises(PlanError) as info:
        planned(make(ffn=FFN + 1), 3)
    assert info.value.code == "NOT_DIVISIBLE"
    assert "blocks.*.attention.q maps 32 to 32" in info.value.because
    assert "3" in info.value.fix


def test_plan_of_weights_made_in_forward_is_refused():
    with pytest.raises(PlanError) as info:
        planned(make(linear=Reweighted, ffn=256))
    assert info.value.code == "NOT_APPLICABLE"
    assert "blocks.0" in info.value.because


def test_plan_of_a_model_without_blocks_is_refused():
    model = nn.ModuleDict({"one": nn.Linear(8, 8), "two": nn.Linear(8, 8)})
    with pytest.raises(PlanError, match="no list of repeated blocks") as info:
        plan_tensor_parallel(
            model,
            torch.ones(3, 8),
            lambda model, x: model["two"](model["one"](x).relu()).square().mean(),
            2,
        )
    assert info.value.code == "NOT_APPLICABLE"


@pytest.mark.parametrize("degree", [0, 1])
def test_plan_for_fewer_than_two_ranks_is_refused(degree):
    with pytest.raises(PlanError, match=f"two ranks or more, got {degree}"):
        planned(make(), degree)


def test_plan_on_meta_is_derived_and_says_that_it_is_not_verified():
    with torch.device("meta"):
        model = make(Thirds, blocks=6, ffn=0)
        batch = torch.empty(3, 6, dtype=torch.long)
        plan = plan_tensor_parallel(model, batch, loss_of, 2, verify=False)
    assert not plan.is_verified
    assert plan.modules["blocks.5.attention.out"].style is Style.ROWWISE


def test_plan_is_the_same_after_json():
    plan = plan_of(Biased)
    written = json.loads(json.dumps(plan.to_dict()))
    assert TensorPlan.from_dict(written) == plan


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.pop("degree"),
        lambda v: v["modules"].update(head=["sideways", False]),
        lambda v: v.update(modules=3),
        lambda v: v["modules"].update(head=[]),
    ],
    ids=["no degree", "no such style", "no mapping", "empty style"],
)
def test_plan_from_other_values_is_refused(change):
    values = TensorPlan(degree=2).to_dict()
    change(values)
    with pytest.raises(PlanFormatError, match="not a plan of tensor parallelism"):
        TensorPlan.from_dict(values)


def test_verify_tells_what_code_raised():
    plan = TensorPlan(
        degree=2, modules={"blocks.0.up": ModuleStyle(style=Style.COLWISE)}
    )
    verdict = verify_tensor_plan(make(Plain), make_batch(), loss_of, plan)
    assert not verdict.has_run
    assert not verdict.is_exact
    assert "RuntimeError" in verdict.because


def test_verify_leaves_no_process_group_behind():
    import torch.distributed as dist

    verify_tensor_plan(make(), make_batch(), loss_of, TensorPlan(degree=2))
    assert not dist.is_initialized()
    assert HEAD * HEADS == WIDTH


@pytest.mark.slow
def test_plan_is_confirmed_for_blocks_that_only_look_alike():
    class Late(Counting):
        """Weighs features by one another, all of them, if it is the fourth."""

        def forward(self, x, **kwargs):
            if self.layer_idx < 3:
                return super().forward(x, **kwargs)
            return self.out(self.v(x) * self.q(x).softmax(-1) + self.k(x))

    model = make(Late, blocks=4, ffn=0)
    for number, block in enumerate(model.blocks):
        block.attention.layer_idx = number
    with pytest.raises(PlanError, match="it is not exact for this model") as info:
        planned(model)
    assert info.value.code == "NUMERICS"


def test_plan_of_a_model_that_holds_a_function_of_itself_is_refused():
    model = make(ffn=0)
    whole = model.blocks[0].attention
    whole.forward = lambda x, **kwargs: whole.out(whole.v(x))
    with pytest.raises(PlanError, match="no parameter of the copy") as info:
        planned(model)
    assert info.value.code == "NOT_APPLICABLE"
