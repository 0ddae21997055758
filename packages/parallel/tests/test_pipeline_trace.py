"""Finding the blocks of a model by what flows through them."""

import pipeline_models as pm
import pytest
import torch
from torch import nn

from drivetrain_core import Code, PlanError
from drivetrain_parallel.pipeline import trace_blocks
from drivetrain_parallel.pipeline.tree import (
    describe_tree,
    fill_tree,
    tensor_at,
    walk_tensors,
)


def trace(model, loss_of=pm.token_loss, batch=None, **options):
    batch = pm.token_batch() if batch is None else batch
    return trace_blocks(model, lambda m: loss_of(m, batch), **options)


def test_a_decoder_has_a_prologue_and_an_epilogue():
    found = trace(pm.build(pm.Decoder))
    assert (found.container, found.num_blocks, found.cuts) == ("layers", 4, (1, 2, 3))
    assert found.prologue == ("tokens", "positions", "embedding_norm")
    assert found.epilogue == ("norm", "head")
    assert not found.between
    assert not found.direct
    assert not found.idle
    assert found.links[0].targets == ((0, 0),)
    assert found.links[0].shapes == ((2, pm.LENGTH, pm.WIDTH),)


def test_the_item_of_a_tuple_that_flows_is_found():
    found = trace(pm.build(pm.Decoder, block=pm.TupleBlock))
    assert found.links[0].sources == (0,)
    assert found.outputs[0] == {"tuple": [{"tensor": 0}, {"tensor": 1}]}


def test_loose_parameters_and_shared_conditioning_are_found():
    found = trace(pm.build(pm.Conditioned), pm.noise_loss, pm.noise_batch())
    assert found.direct == ("positions",)
    assert found.prologue == ("patches", "times")
    assert [r.shape for r in found.results] == [(2, 6, 32), (2, 32)]


def test_a_module_that_does_not_run_is_idle():
    model = pm.build(pm.Decoder)
    model.spare = nn.Linear(2, 2)
    assert trace(model).idle == ("spare",)


def test_hooks_are_taken_off_again_even_after_an_error():
    model = pm.build(pm.Decoder)
    with pytest.raises(ZeroDivisionError):
        trace_blocks(model, lambda m: 1 / 0)
    assert all(not m._forward_hooks for m in model.modules())
    trace(model)
    assert all(not m._forward_pre_hooks for m in model.modules())


class Between(pm.Decoder):
    """Changes the hidden state between two blocks, by a copy or in place."""

    how = "copy"

    def forward(self, ids):
        hidden = self.tokens(ids)
        for index, layer in enumerate(self.layers):
            if index == 2:
                hidden = self.change(hidden)
            hidden = layer(hidden)
        return self.head(hidden)

    def change(self, hidden):
        return hidden * 2 if self.how == "copy" else hidden.mul_(2)


@pytest.mark.parametrize("how", ["copy", "in place"])
def test_no_cut_where_the_model_changes_the_state_between_blocks(how):
    model = pm.build(Between)
    model.how = how
    found = trace(model)
    assert found.cuts == (1, 3)
    assert "block 2" in found.refusals[2]


class Ragged(nn.Module):
    """Blocks that are called in a way that is no pipeline."""

    def __init__(self, order):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        self.order = order

    def forward(self, x):
        for index in self.order:
            x = self.layers[index](x)
        return x


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ((0, 1, 1), "block 1 is called 2 times"),
        ((0, 2, 1), "before block 1 has ended"),
        ((0, 1), "block 2 is called 0 times"),
    ],
)
def test_blocks_called_otherwise_than_once_in_order_are_refused(order, reason):
    with pytest.raises(PlanError, match=reason) as caught:
        trace_blocks(Ragged(order), lambda m: m(torch.ones(1, 3)).sum())
    assert caught.value.code is Code.NOT_APPLICABLE
    assert "ModuleList" in caught.value.fix


def test_a_model_without_a_list_is_refused():
    with pytest.raises(PlanError, match="no list has 2 blocks"):
        trace_blocks(nn.Linear(2, 2), lambda m: m(torch.ones(1, 2)).sum())


def test_blocks_side_by_side_are_refused():
    class Parallel(Ragged):
        def forward(self, x):
            return sum(layer(x) for layer in self.layers)

    with pytest.raises(PlanError, match="takes nothing that block 0 returned"):
        trace_blocks(Parallel(()), lambda m: m(torch.ones(1, 3)).sum())


def test_the_list_with_most_parameters_wins():
    model = pm.build(pm.Decoder)
    model.encoder = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
    assert trace(model).container == "layers"


def test_a_plain_sequential_is_its_own_list():
    model = nn.Sequential(
        nn.Embedding(9, 4), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 9)
    )
    found = trace_blocks(model, lambda m: m(torch.zeros(1, 2).long()).sum())
    assert (found.container, found.cuts, found.prologue) == ("", (1, 2, 3), ())


def test_trees_are_rebuilt_from_their_description():
    a, b = torch.zeros(1), torch.ones(2)
    tree = (a, None, {"x": [b, 3]}, "text")
    assert [path for path, _ in walk_tensors(tree)] == [(0,), (2, "x", 0)]
    assert tensor_at(tree, (2, "x", 0)) is b
    assert tensor_at(tree, (2, "y")) is None
    assert tensor_at(tree, (9,)) is None
    rebuilt = fill_tree(describe_tree(tree), [a, b])
    assert rebuilt[0] is a
    assert rebuilt[2]["x"] == [b, 3]
    assert rebuilt[1] is None


def test_what_cannot_be_rebuilt_is_a_clear_error():
    with pytest.raises(TypeError, match="a set cannot be rebuilt"):
        describe_tree((torch.ones(1), {1, 2}))
