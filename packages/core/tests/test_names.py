"""Canonical names, through every wrapper and in spite of unlucky attribute names."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)

from drivetrain_core._errors import NamesError
from drivetrain_core._model.names import (
    canonical_name,
    canonical_names,
    named_modules,
    named_tensors,
    unwrap,
)
from drivetrain_core.services import (
    TorchProcessGroupFactory,
    destroy_process_group,
    init_process_group,
)


class Unlucky(nn.Module):
    """A model whose attributes are called like the wrappers' own."""

    def __init__(self):
        super().__init__()
        self.module = nn.Linear(2, 2, bias=False)
        self._orig_mod = nn.Linear(2, 2, bias=False)
        self.register_buffer("scratch", torch.zeros(1), persistent=False)
        self.register_buffer("kept", torch.zeros(1))

    def forward(self, x):
        return self._orig_mod(self.module(x))


NAMES = ["kept", "module.weight", "_orig_mod.weight"]


# FSDP1 warns that it is old, and about a world of one.
old_fsdp = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture
def process_group():
    yield init_process_group(TorchProcessGroupFactory("gloo"))
    destroy_process_group()


def compiled(model):
    return torch.compile(model, backend="eager")


def test_plain_model_keeps_its_own_names():
    assert list(named_tensors(Unlucky())) == NAMES


@pytest.mark.parametrize(
    "wrap",
    [
        nn.DataParallel,
        compiled,
        checkpoint_wrapper,
        lambda m: nn.DataParallel(compiled(m)),
        lambda m: compiled(nn.DataParallel(checkpoint_wrapper(m))),
    ],
    ids=["parallel", "compiled", "checkpoint", "two", "three"],
)
def test_wrappers_leave_no_trace(wrap):
    model = Unlucky()
    wrapped = wrap(model)
    assert list(named_tensors(wrapped)) == NAMES
    for name, tensor in named_tensors(wrapped).items():
        assert tensor is named_tensors(model)[name]
    for raw in wrapped.state_dict():
        assert canonical_name(raw, wrapped) in NAMES


def test_wrappers_inside_the_model_leave_no_trace():
    model = nn.Sequential(checkpoint_wrapper(Unlucky()), compiled(nn.Linear(2, 1)))
    assert list(named_tensors(model)) == [
        *(f"0.{name}" for name in NAMES),
        "1.weight",
        "1.bias",
    ]


@old_fsdp
def test_ddp_and_fsdp_leave_no_trace(process_group):
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    wrapped = DistributedDataParallel(compiled(Unlucky()))
    assert list(named_tensors(wrapped)) == NAMES
    sharded = Unlucky()
    fully_shard(sharded.module)
    fully_shard(sharded)
    assert list(named_tensors(sharded)) == NAMES
    flat = FullyShardedDataParallel(
        Unlucky(), use_orig_params=True, device_id=torch.device("cpu")
    )
    assert list(named_tensors(flat)) == NAMES


@old_fsdp
def test_fsdp1_with_flat_parameters_is_refused(process_group):
    from torch.distributed.fsdp import FullyShardedDataParallel

    flat = FullyShardedDataParallel(Unlucky(), device_id=torch.device("cpu"))
    with pytest.raises(NamesError, match="use_orig_params=True"):
        named_tensors(flat)


def test_canonical_name_tells_a_prefix_from_an_attribute():
    wrapped = nn.DataParallel(Unlucky())
    assert canonical_name("module.module.weight", wrapped) == "module.weight"
    assert canonical_name("module.weight", wrapped) == "module.weight"
    assert canonical_name("module.weight", Unlucky()) == "module.weight"
    assert canonical_name("_orig_mod.weight", compiled(Unlucky())) == "_orig_mod.weight"


def test_canonical_names_has_every_raw_name():
    wrapped = nn.DataParallel(Unlucky())
    names = canonical_names(wrapped)
    assert names.keys() >= wrapped.state_dict().keys()
    assert names["module.scratch"] == "scratch"


def test_unknown_name_says_what_is_near():
    with pytest.raises(NamesError, match=r"nearest: .*module.weight"):
        canonical_name("modul.weight", Unlucky())
    with pytest.raises(LookupError):
        canonical_name("", Unlucky())


def test_buffers_are_chosen():
    model = Unlucky()
    assert list(named_tensors(model, buffers=False)) == NAMES[1:]
    assert "scratch" in named_tensors(model, non_persistent=True)
    assert "scratch" not in named_tensors(model, buffers=False, non_persistent=True)


def test_tied_tensors_stand_once():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    model[1] = model[0]
    model[2].weight = model[0].weight
    assert list(named_tensors(model)) == ["0.weight", "0.bias", "2.bias"]


def test_collision_of_wrapper_and_model_is_an_error():
    wrapped = nn.DataParallel(nn.Linear(2, 2))
    wrapped.weight = nn.Parameter(torch.zeros(1))
    with pytest.raises(NamesError, match=r"'weight' and 'module\.weight' share"):
        named_tensors(wrapped)


def test_cycles_end():
    model = nn.Linear(2, 2)
    model.register_module("self", model)
    assert list(named_tensors(model)) == ["weight", "bias"]


def test_missing_children_and_parameters_are_passed_over():
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    model.register_module("nothing", None)
    assert list(named_tensors(model)) == ["0.weight"]
    assert named_tensors(nn.Identity()) == {}


def test_unwrap_returns_the_users_model():
    model = Unlucky()
    assert unwrap(model) is model
    assert unwrap(nn.DataParallel(compiled(model))) is model


def test_named_modules_leaves_wrappers_out():
    model = Unlucky()
    modules = named_modules(nn.DataParallel(compiled(model)))
    assert modules == {"": model, "module": model.module, "_orig_mod": model._orig_mod}
