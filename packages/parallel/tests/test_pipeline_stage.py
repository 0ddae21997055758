"""Carving stages out of a model."""

import pipeline_models as pm
import pytest
import torch
from torch import nn

from drivetrain_core import Code, PlanError
from drivetrain_parallel.pipeline import build_stages
from drivetrain_parallel.pipeline.sequential import run_in_turn, stages_in_process

BATCH = pm.token_batch()


def made(num_stages=2, kind=pm.Decoder, **options):
    return pm.make(kind, pm.token_loss, BATCH, num_stages, **options)


def names(model):
    return {name for name, _ in model.named_parameters()}


def test_a_stage_keeps_its_parameters_under_their_names_and_no_others():
    model, plan = made()
    whole = names(model)
    (stage,) = build_stages(model, plan, (1,), pm.token_loss)
    assert stage.model is model
    assert names(model) < whole | {"head.weight"}
    assert {n for n in names(model) if n.startswith("layers.")} == {
        n for n in whole if n.startswith(("layers.2", "layers.3"))
    }
    assert not any(n.startswith(("tokens", "positions")) for n in names(model))
    assert [type(block) for block in stage.blocks] == [pm.Block] * 2


def test_the_stages_of_one_rank_share_no_block_and_keep_parameters_identical():
    model, plan = made(4)
    before = dict(model.named_parameters())
    first, last = build_stages(model, plan, (0, 3), pm.token_loss)
    assert first.model is model
    assert last.model is not model
    assert not names(first.model) & names(last.model)
    assert last.model.head.weight is before["tokens.weight"]
    assert last.model.layers[3].up.weight is before["layers.3.up.weight"]


def test_all_parameters_lie_on_some_stage():
    model, plan = made(4)
    whole = names(model)
    stages = stages_in_process(model, plan, pm.token_loss)
    held = set().union(*(names(stage.model) for stage in stages))
    assert held - {"head.weight"} == whole


def test_shapes_follow_the_batch():
    model, plan = made()
    first, last = stages_in_process(model, plan, pm.token_loss)
    short = pm.token_batch(size=3, length=4)
    assert first.output_shapes(short) == (((3, 4, pm.WIDTH), torch.float32),)
    assert last.input_shapes(short) == first.output_shapes(short)
    assert first.input_shapes(short) == () == last.output_shapes(short)
    loss = run_in_turn([first, last], short)[-1].outputs[0]
    torch.testing.assert_close(loss, pm.token_loss(model, short))


class Routed(pm.Block):
    """What it computes has shapes that depend on data, as a mixture's experts do."""

    def forward(self, hidden, mask=None):
        chosen = (hidden.sum(-1) > 0).nonzero()
        return super().forward(hidden, mask) + 0 * chosen.shape[0]


def test_blocks_whose_inner_shapes_depend_on_data_are_split():
    model, plan = made(block=Routed)
    first, _ = stages_in_process(model, plan, pm.token_loss)
    assert first.output_shapes(pm.token_batch(size=5))[0][0] == (5, 6, pm.WIDTH)


def test_a_placeholder_answers_for_plain_attributes():
    model, plan = made()
    for block in model.layers:
        block.attention_type = "full"
    build_stages(model, plan, (0,), pm.token_loss)
    assert model.layers[3].attention_type == "full"
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = model.layers[3].nothing_like_it


@pytest.mark.parametrize("indices", [(2,), (-1,), (), (0, 0)])
def test_wrong_indices_are_refused_before_anything_changes(indices):
    model, plan = made()
    before = names(model)
    with pytest.raises(PlanError, match="from 0 to 1"):
        build_stages(model, plan, indices, pm.token_loss)
    assert names(model) == before


def test_a_plan_for_another_model_is_refused():
    _, plan = made()
    for other in (pm.build(pm.Decoder, blocks=3), nn.Linear(2, 2)):
        with pytest.raises(PlanError, match="4 blocks in 'layers'") as caught:
            build_stages(other, plan, (0,), pm.token_loss)
        assert caught.value.code is Code.FINGERPRINT


def test_a_model_is_carved_once_only():
    model, plan = made()
    build_stages(model, plan, (0,), pm.token_loss)
    with pytest.raises(PlanError, match="carved already"):
        build_stages(model, plan, (1,), pm.token_loss)


class Optional(pm.Decoder):
    """Calls an adapter before the blocks for some batches only."""

    def __init__(self):
        super().__init__()
        self.adapter = nn.Linear(pm.WIDTH, pm.WIDTH)

    def forward(self, ids, adapt=False):
        hidden = self.tokens(ids)
        hidden = self.adapter(hidden) if adapt else hidden
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


def optional_loss(model, batch):
    return model(batch["ids"], batch.get("adapt", False)).square().mean()


def test_a_batch_that_takes_another_way_is_a_clear_error():
    model, plan = pm.make(Optional, optional_loss, BATCH, 2)
    stages = stages_in_process(model, plan, optional_loss)
    run_in_turn(stages, BATCH)
    with pytest.raises(PlanError, match="adapter is called on a stage") as caught:
        run_in_turn(stages, {**BATCH, "adapt": True})
    assert caught.value.code is Code.GRAPH_BREAK


def test_a_forward_that_ends_early_is_a_clear_error():
    model, plan = made()
    stages = stages_in_process(model, plan, pm.token_loss)
    stages[0]._loss_of = lambda model, batch: torch.ones(())
    with pytest.raises(PlanError, match="without calling block 2"):
        run_in_turn(stages, BATCH)


def test_an_activation_of_another_shape_is_a_clear_error():
    model, plan = made()
    stages = stages_in_process(model, plan, pm.token_loss)
    wider = nn.Linear(pm.WIDTH, pm.WIDTH + 1)
    stages[0].model.layers[1].register_forward_hook(lambda m, a, out: wider(out))
    with pytest.raises(PlanError, match=r"\(2, 6, 33\) for the next stage"):
        run_in_turn(stages, BATCH)
