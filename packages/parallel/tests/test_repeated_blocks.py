"""Blocks of one class that are not alike: each kind of them is proven."""

import functools
import threading
from types import SimpleNamespace

import pytest
from tensor_models import HEAD, Plain, attend, loss_of, make, make_batch
from torch import nn
from torch.nn import functional as f

from drivetrain_core import PlanError
from drivetrain_parallel.meta.flow_mode import FlowMode
from drivetrain_parallel.meta.meta_model import build_meta_model
from drivetrain_parallel.tensor import Style, plan_tensor_parallel
from drivetrain_parallel.tensor import trial as trials
from drivetrain_parallel.tensor.repeated import (
    find_block_lists,
    num_needed,
    settings_of,
)


def scaled(x):
    return x * 2


def halved(x):
    return x / 2


def scaled_by(factor):
    return lambda x: x * factor


def block():
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


def set_attribute(name, value):
    return lambda one: setattr(one[1], name, value)


CHANGES = {
    "flag": set_attribute("flag", True),
    "function": set_attribute("act", halved),
    "partial": set_attribute("act", functools.partial(scaled, factor=2)),
    "closure": set_attribute("act", scaled_by(3)),
    "object": set_attribute("config", SimpleNamespace(window=8)),
    "nested": set_attribute("windows", {"left": [4, None]}),
    "number": set_attribute("num_layers", 3),
    "mode": lambda one: one[1].eval(),
    "dtype": lambda one: one.double(),
    "frozen": lambda one: one[0].requires_grad_(False),
    "hook": lambda one: one[0].register_forward_hook(scaled),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_blocks_that_differ_in_a_setting_are_told_apart(change):
    one, other = block(), block()
    for each in (one, other):
        set_attribute("act", scaled_by(2))(each)
        set_attribute("config", SimpleNamespace(window=4))(each)
    assert settings_of(one, 0) == settings_of(other, 1)
    change(other)
    assert settings_of(one, 0) != settings_of(other, 1)


def test_blocks_that_know_their_number_are_alike():
    blocks = nn.Sequential(*(block() for _ in range(5)))
    for number, each in enumerate(blocks):
        each[1].layer_idx = number + 1
        each.register_forward_hook(scaled)
    lists = find_block_lists(blocks)
    assert num_needed(blocks, lists) == {"": 2}
    blocks[3][1].flag = True
    assert num_needed(blocks, lists) == {"": 4}


def test_a_block_with_what_cannot_be_looked_at_is_one_of_its_own():
    one, other = block(), block()
    one.lock, other.lock = threading.Lock(), threading.Lock()
    assert settings_of(one, 0) != settings_of(other, 1)


class Flagged(Plain):
    """May take one norm over all heads, of which a rank has a part."""

    is_normed = False
    layer_idx = 0

    def norms(self):
        return self.is_normed

    def forward(self, x, **kwargs):
        q, k, v = (m(x).unflatten(-1, (-1, HEAD)) for m in (self.q, self.k, self.v))
        y = attend(q, k, v).flatten(2)
        return self.out(f.rms_norm(y, y.shape[-1:]) if self.norms() else y)


class Numbered(Flagged):
    def norms(self):
        return self.layer_idx >= 3


def several(attention=Flagged):
    model = make(attention, ffn=0, blocks=4)
    for number, each in enumerate(model.blocks):
        each.attention.layer_idx = number
    if attention is Flagged:
        model.blocks[3].attention.is_normed = True
    return model


def planned(model):
    return plan_tensor_parallel(model, make_batch(), loss_of, 2, vocab=False)


def test_a_later_block_that_differs_is_proven_in_a_model_too_large_to_be_whole(
    monkeypatch,
):
    monkeypatch.setattr(trials, "_MAX_WHOLE", 0)
    query = planned(several()).modules["blocks.3.attention.q"]
    assert query.style is Style.COLWISE_GATHERED


def test_a_later_block_that_differs_is_proven_in_a_model_without_weights():
    model = build_meta_model(several)
    with FlowMode():
        plan = planned(model)
    assert plan.is_verified
    assert plan.modules["blocks.3.attention.q"].style is Style.COLWISE_GATHERED
    assert model.blocks[3].attention.q.weight.is_meta


def test_blocks_that_look_at_their_number_are_proven_without_weights():
    model = build_meta_model(lambda: several(Numbered))
    with FlowMode(), pytest.raises(PlanError, match="not exact"):
        planned(model)
