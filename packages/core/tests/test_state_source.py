"""The state of a model and its optimizer by canonical names."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from drivetrain_core._errors import NamesError
from drivetrain_core.services import (
    ModelState,
    TensorSpec,
    TorchProcessGroupFactory,
    destroy_process_group,
    init_process_group,
)
from drivetrain_testing import check_state_source


def trained(optimizer_type, **options):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = optimizer_type(model.parameters(), lr=0.1, **options)
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def specs_of(state):
    return [
        TensorSpec(name=p.name, global_shape=p.global_shape, dtype=p.dtype)
        for p in state.parts()
    ]


def test_model_state_keeps_the_contract():
    check_state_source(ModelState)


def test_model_alone_has_no_scalars():
    state = ModelState(nn.Linear(1, 1))
    assert state.scalars() == {}
    state.load_scalars({})
    with pytest.raises(NamesError, match="no place for 'optimizer"):
        state.load_scalars({"optimizer.param_groups.0.lr": 1.0})
    with pytest.raises(NamesError, match="no place for 'optimizer"):
        state.prepare(specs_of(ModelState(*trained(torch.optim.Adam)))[2:])


@pytest.mark.parametrize(
    ("optimizer_type", "options"),
    [
        (torch.optim.SGD, {}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.Adam, {"capturable": False}),
        (torch.optim.Adam, {"fused": True}),
        (torch.optim.Adagrad, {}),
        (torch.optim.RMSprop, {"centered": True}),
        (torch.optim.Adafactor, {}),
    ],
    ids=range(7),
)
def test_state_moves_into_a_new_optimizer(optimizer_type, options):
    model, optimizer = trained(optimizer_type, **options)
    state = ModelState(model, optimizer)
    other = nn.Linear(3, 2)
    new = optimizer_type(other.parameters(), lr=9.0, **options)
    receiver = ModelState(other, new)
    receiver.prepare(specs_of(state))
    for target, part in zip(
        sorted(receiver.parts(), key=lambda p: p.name),
        sorted(state.parts(), key=lambda p: p.name),
        strict=True,
    ):
        assert target.name == part.name
        assert target.local.device == part.local.device
        target.local.copy_(part.local)
    receiver.load_scalars(state.scalars())
    for program in ((model, optimizer), (other, new)):
        program[1].zero_grad()
        program[0](torch.ones(1, 3)).sum().backward()
        program[1].step()
    assert torch.equal(model.weight, other.weight)


def test_learning_rate_that_is_a_tensor_is_a_tensor_of_the_state():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.5))
    state = ModelState(model, optimizer)
    assert state.tensors()["optimizer.param_groups.0.lr"] == 0.5
    new = torch.optim.Adam(model.parameters(), lr=0.1)
    receiver = ModelState(model, new)
    receiver.prepare(specs_of(state))
    assert isinstance(new.param_groups[0]["lr"], torch.Tensor)


def test_reading_the_state_makes_none():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    assert len(ModelState(model, optimizer).parts()) == 2
    assert len(optimizer.state) == 0


def test_parameters_of_no_model_are_part_of_the_state():
    model = nn.Linear(2, 2, bias=False)
    extra = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([model.weight, extra], lr=0.1)
    names = [part.name for part in ModelState(model, optimizer).parts()]
    assert names == ["weight", "optimizer.parameter.param_groups.0.1"]


class Masters(torch.optim.SGD):
    """An optimizer that steps fp32 copies of the model's weights."""

    def __init__(self, weights):
        copies = [nn.Parameter(w.detach().float()) for w in weights]
        super().__init__(copies, lr=0.1, momentum=0.9)
        self.master_weights = list(zip(weights, copies, strict=True))

    def state_dict(self):
        return {"another": "format"}


def test_master_weights_are_named_after_the_weights():
    model = nn.Linear(2, 2, bias=False).bfloat16()
    optimizer = Masters(list(model.parameters()))
    optimizer.master_weights[0][1].grad = torch.ones(2, 2)
    optimizer.step()
    parts = {p.name: p.dtype for p in ModelState(model, optimizer).parts()}
    assert parts == {
        "weight": torch.bfloat16,
        "optimizer.parameter.weight": torch.float32,
        "optimizer.momentum_buffer.weight": torch.float32,
    }


class Opaque(torch.optim.SGD):
    def state_dict(self):
        return {"hidden": 1}


def test_optimizer_with_state_of_another_shape_is_refused():
    model = nn.Linear(2, 2)
    with pytest.raises(NamesError, match="Opaque keeps state"):
        ModelState(model, Opaque(model.parameters(), lr=0.1))
    lbfgs = torch.optim.LBFGS(model.parameters())

    def closure():
        lbfgs.zero_grad()
        loss = model(torch.ones(1, 2)).sum()
        loss.backward()
        return loss

    lbfgs.step(closure)
    with pytest.raises(NamesError, match="LBFGS keeps state"):
        ModelState(model, lbfgs)


def test_model_with_an_attribute_like_the_optimizers_names_is_refused():
    model = nn.Module()
    model.weight = nn.Parameter(torch.ones(1))
    model.optimizer = nn.Module()
    model.optimizer.step = nn.Module()
    model.optimizer.step.weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.Adam([model.weight])
    model.weight.grad = torch.ones(1)
    optimizer.step()
    with pytest.raises(
        NamesError, match=r"both have a tensor 'optimizer\.step\.weight'"
    ):
        ModelState(model, optimizer).parts()


def test_dot_in_a_state_key_is_refused():
    model, optimizer = trained(torch.optim.SGD)
    optimizer.state[model.weight]["a.b"] = torch.ones(1)
    with pytest.raises(NamesError, match=r"'a\.b'"):
        ModelState(model, optimizer).parts()


@pytest.fixture
def process_group():
    yield init_process_group(TorchProcessGroupFactory("gloo"))
    destroy_process_group()


def test_placement_that_cannot_be_known_is_an_error(process_group):
    model = nn.Linear(2, 4)
    fully_shard(model)
    state = ModelState(model, torch.optim.SGD(model.parameters(), lr=0.1))
    spec = TensorSpec(
        name="optimizer.row.weight", global_shape=(4,), dtype=torch.float32
    )
    with pytest.raises(NamesError, match="not known before the optimizer has stepped"):
        state.prepare([spec])


def test_parts_of_a_sharded_model_are_its_local_tensors(process_group):
    model = nn.Linear(2, 4)
    fully_shard(model)
    part = ModelState(model).parts()[0]
    assert part.offset == (0, 0)
    assert part.local.data_ptr() == model.weight.to_local().data_ptr()
