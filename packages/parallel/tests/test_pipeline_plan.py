"""Plans of pipelines: what each stage holds, proven in one process."""

import dataclasses
import json

import pipeline_models as pm
import pytest
import torch
from torch import nn

from drivetrain_core import Code, PlanError, PlanFormatError
from drivetrain_parallel.pipeline import (
    PipelineCosts,
    PipelinePlan,
    plan_pipeline,
)
from drivetrain_parallel.pipeline.costs import measure_costs
from drivetrain_parallel.pipeline.needs import keep_all
from drivetrain_parallel.pipeline.replicas import shadow
from drivetrain_parallel.pipeline.sequential import (
    find_shared,
    prove,
    stages_in_process,
)
from drivetrain_parallel.pipeline.trace import trace_blocks

TOKENS, NOISE = (pm.token_loss, pm.token_batch()), (pm.noise_loss, pm.noise_batch())


def with_shared(whole, plan, how):
    shared, _ = find_shared(whole, stages_in_process(whole, plan, how[0]))
    return dataclasses.replace(plan, shared=shared)


def planned(kind, how=TOKENS, num_stages=2, **options):
    return pm.make(kind, how[0], how[1], num_stages, **options)[1]


def test_what_runs_before_the_blocks_is_zero_on_later_stages():
    plan = planned(pm.Decoder, num_stages=4)
    assert plan.is_verified
    for stage in plan.stages[1:]:
        assert stage.zeroed == ("tokens", "positions", "embedding_norm")
    assert plan.stages[0].dropped == ("norm", "head")
    assert plan.boundaries[0].shapes == ((2, pm.LENGTH, pm.WIDTH),)
    assert plan.boundaries[0].dtypes == ("float32",)


def test_a_tied_embedding_is_shared_by_the_first_and_the_last_stage():
    plan = planned(pm.Decoder, num_stages=4)
    (shared,) = plan.shared
    assert shared.names == {0: "tokens.weight", 3: "head.weight"}
    assert plan.canonical_name(3, "head.weight") == "tokens.weight"
    assert plan.owns(0, "tokens.weight")
    assert not plan.owns(3, "head.weight")
    assert plan.owns(3, "norm.weight")
    assert not planned(pm.Decoder, tied=False).shared


def test_an_embedding_whose_weight_the_head_reads_stays_on_the_last_stage():
    plan = planned(pm.DirectHead, num_stages=4)
    assert plan.shared[0].names == {0: "tokens.weight", 3: "tokens.weight"}
    assert plan.stages[1].zeroed == ("tokens",)
    assert plan.stages[3].zeroed == ()


def test_conditioning_goes_along_and_loose_parameters_stay_on_one_stage():
    plan = planned(pm.Conditioned, NOISE, 4)
    assert [stage.received for stage in plan.stages] == [(), *[("times",)] * 3]
    assert [m.module for m in plan.boundaries[2].modules] == ["times"]
    assert plan.stages[1].zeroed_parameters == ("positions",)
    assert not plan.shared


def test_what_an_encoder_returns_goes_along():
    plan = planned(pm.EncoderDecoder)
    assert plan.stages[1].received == ("encoder",)
    assert plan.stages[1].zeroed == ("tokens",)
    assert not plan.shared


def test_five_blocks_divide_into_three_and_two():
    plan = planned(pm.Decoder, blocks=5)
    assert [(s.begin, s.end) for s in plan.stages] == [(0, 3), (3, 5)]
    assert plan.costs == (3.0, 2.0)
    assert [plan.stage_of_block(block) for block in range(5)] == [0, 0, 0, 1, 1]
    with pytest.raises(IndexError, match="from 0 to 4, got 5"):
        plan.stage_of_block(5)


def test_a_tuple_whose_second_item_is_not_read_is_rebuilt():
    assert planned(pm.Decoder, block=pm.TupleBlock).is_verified


def test_the_model_is_left_as_it_was():
    model = pm.build(pm.Decoder)
    before = {name: id(p) for name, p in model.named_parameters()}
    plan_pipeline(model, TOKENS[1], TOKENS[0], 2)
    assert {name: id(p) for name, p in model.named_parameters()} == before
    assert all(p.grad is None for p in model.parameters())
    assert all(not m._forward_hooks for m in model.modules())


def test_a_state_that_is_used_again_later_is_refused_with_the_numbers():
    with pytest.raises(PlanError) as caught:
        planned(pm.Skipping)
    assert caught.value.code is Code.NUMERICS
    assert "the loss is" in caught.value.because
    assert "attempt 2" in caught.value.evidence


def test_a_block_that_two_stages_run_is_seen_by_the_proof():
    whole = shadow(pm.build(pm.Decoder))
    plan = planned(pm.Decoder)
    twice = (plan.stages[0], dataclasses.replace(plan.stages[1], begin=1))
    assert prove(whole, plan, TOKENS[1], TOKENS[0]) == ""
    wrong = dataclasses.replace(plan, stages=twice)
    assert "not summed" in prove(whole, wrong, TOKENS[1], TOKENS[0])
    wrong = with_shared(whole, wrong, TOKENS)
    assert "the loss is" in prove(whole, wrong, TOKENS[1], TOKENS[0])


def test_to_run_all_that_comes_before_the_blocks_everywhere_is_exact():
    whole = shadow(pm.build(pm.Conditioned))
    trace = trace_blocks(whole, lambda m: pm.noise_loss(m, NOISE[1]))
    plan = with_shared(whole, keep_all(trace, ((0, 2), (2, 4))), NOISE)
    assert prove(whole, plan, NOISE[1], NOISE[0]) == ""


def test_a_tie_whose_gradients_nobody_sums_is_seen_by_the_proof():
    whole = shadow(pm.build(pm.Decoder))
    plan = planned(pm.Decoder)
    assert plan.shared
    wrong = dataclasses.replace(plan, shared=())
    assert "not summed" in prove(whole, wrong, TOKENS[1], TOKENS[0])


def test_zeros_for_a_module_that_is_needed_are_seen_by_the_proof():
    whole = shadow(pm.build(pm.Conditioned))
    plan = planned(pm.Conditioned, NOISE)
    wrong = dataclasses.replace(
        plan,
        stages=(
            plan.stages[0],
            dataclasses.replace(
                plan.stages[1], received=(), zeroed=("patches", "times")
            ),
        ),
    )
    assert "the loss is" in prove(whole, wrong, NOISE[1], NOISE[0])


def test_more_stages_than_blocks_is_refused():
    with pytest.raises(PlanError, match="use at most 4 stages") as caught:
        plan_pipeline(pm.build(pm.Decoder), TOKENS[1], TOKENS[0], 5)
    assert caught.value.code is Code.NOT_DIVISIBLE


def test_one_stage_is_no_pipeline():
    with pytest.raises(PlanError, match="2 stages or more, got 1"):
        plan_pipeline(pm.build(pm.Decoder), TOKENS[1], TOKENS[0], 1)


def test_batch_norm_is_refused_unless_it_is_frozen():
    model = pm.build(pm.Decoder)
    model.norm = nn.BatchNorm1d(pm.LENGTH)
    with pytest.raises(PlanError, match="norm is a BatchNorm1d") as caught:
        plan_pipeline(model, TOKENS[1], TOKENS[0], 2)
    assert caught.value.code is Code.NOT_APPLICABLE
    model.norm.eval()
    assert plan_pipeline(model, TOKENS[1], TOKENS[0], 2).is_verified


def test_costs_of_another_number_of_blocks_are_refused():
    costs = PipelineCosts(prologue=0.0, blocks=(1.0,) * 3, epilogue=0.0)
    with pytest.raises(PlanError, match="costs for 3 blocks, and layers has 4"):
        plan_pipeline(pm.build(pm.Decoder), *TOKENS[::-1], 2, costs=costs)


def test_a_model_with_dropout_is_proven_without_it():
    model = pm.build(pm.Decoder)
    model.norm = nn.Sequential(model.norm, nn.Dropout(0.5))
    plan = plan_pipeline(model, TOKENS[1], TOKENS[0], 2)
    assert plan.is_verified
    assert "evaluation mode" in plan.notes[0]
    assert model.training


def test_frozen_parameters_lie_where_they_are_needed():
    model = pm.build(pm.Decoder)
    model.requires_grad_(False)
    model.layers.requires_grad_(True)
    plan = plan_pipeline(model, TOKENS[1], TOKENS[0], 2)
    assert plan.shared[0].names == {0: "tokens.weight", 1: "head.weight"}


def test_a_model_on_meta_is_planned_by_counts_without_proof():
    with torch.device("meta"):
        model = pm.Decoder(blocks=8)
        batch = {"ids": torch.zeros(2, pm.LENGTH, dtype=torch.long)}
    plan = plan_pipeline(model, batch, pm.token_loss, 4)
    assert not plan.is_verified
    assert plan.stages[1].zeroed == ("tokens", "positions", "embedding_norm")


def test_the_cost_of_a_slow_block_is_measured():
    class Slow(pm.Block):
        def forward(self, hidden, mask=None):
            for _ in range(30):
                hidden = super().forward(hidden, mask) * 0.5
            return hidden

    model = pm.build(pm.Decoder)
    model.layers[1] = Slow()
    whole = shadow(model)
    trace = trace_blocks(whole, lambda m: pm.token_loss(m, TOKENS[1]), min_blocks=4)
    costs = measure_costs(whole, trace, TOKENS[1], TOKENS[0])
    assert costs.blocks[1] > costs.blocks[0] == costs.blocks[2] == costs.blocks[3] > 0
    assert costs.prologue > 0
    assert costs.epilogue > 0


def test_a_plan_survives_json():
    plan = planned(pm.Conditioned, NOISE, 4)
    again = PipelinePlan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again == plan
    assert again.digest == plan.digest
    assert planned(pm.Decoder).digest != plan.digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pipeline_plan": 9}, "version 1, got 9"),
        ({"stages": [{"first": 0}]}, "damaged"),
        ({"container": None, "boundaries": 3}, "damaged"),
        ({"more": 1}, "damaged"),
    ],
)
def test_a_damaged_plan_is_a_clear_error(change, message):
    values = planned(pm.Decoder).to_dict() | change
    with pytest.raises(PlanFormatError, match=message):
        PipelinePlan.from_dict(values)
