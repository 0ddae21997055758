"""A packer returns what `pack_state` would, whatever was changed since the last time."""

from __future__ import annotations

import io
from collections import OrderedDict

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from drivetrain_checkpoint._save.state_packer import StatePacker
from drivetrain_core._errors import NamesError
from drivetrain_core._optimizer.master_weights import MasterWeightOptimizer
from drivetrain_core.services import pack_state
from drivetrain_core.services._plain_tree import equal_plain
from drivetrain_testing import run_ranks


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def changed(packed, earlier):
    """Returns the names of the tensors that are other objects than before."""
    return {n for n, x in packed.tensors.items() if x is not earlier.tensors[n]}


def assert_same(one, other):
    """Both hold the same memory in the same shapes under the same names."""
    assert list(one.tensors) == list(other.tensors)
    for name, a in one.tensors.items():
        b = other.tensors[name]
        assert type(a) is type(b), name
        assert (a.shape, a.dtype, a.requires_grad) == (b.shape, b.dtype, False), name
        if a.layout is torch.strided:
            assert local(a).dtype is local(b).dtype
            same = (torch.Tensor.data_ptr, torch.Tensor.stride, torch.Tensor.is_conj)
            assert all(f(local(a)) == f(local(b)) for f in same), name
    assert list(one.entries) == list(other.entries)
    assert equal_plain(one.entries, other.entries)


class Counting(nn.Module):
    """A module with state of its own."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.seen = 0
        self.last = torch.zeros(1)

    def get_extra_state(self):
        return {"seen": self.seen, "last": self.last}

    def set_extra_state(self, state):
        self.seen = state["seen"]


class Sampler:
    """An object that gives its state."""

    def __init__(self):
        self.order = torch.arange(3)
        self.position = 0

    def state_dict(self):
        return {"order": self.order.view(-1), "position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


class World:
    """A state, and the ways in which a program may change it."""

    def __init__(self):
        self.count = 0
        self.model = nn.Sequential(
            nn.Linear(2, 2), nn.BatchNorm1d(2), Counting(), nn.Linear(2, 2)
        )
        self.state = {
            "model": self.model,
            "sampler": Sampler(),
            "rng": torch.zeros(2),
            "flat": torch.zeros(2, 2),
            "data": {"a": [1, {"b": torch.ones(2)}], "c": (1.5, None)},
            "step": 0,
        }
        self.renew_optimizer()

    def linear(self):
        return self.model[0]

    def renew_optimizer(self):
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.state["optimizer"] = self.optimizer

    def step(self):
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
        self.optimizer.step()

    def some_slot(self):
        for slots in self.optimizer.state.values():
            return slots
        return {}

    # Each of these is a mutation: name, and what it does.

    def do_nothing(self):
        pass

    def do_step(self):
        self.step()

    def do_set_lr(self):
        self.optimizer.param_groups[0]["lr"] *= 0.5

    def do_lr_of_another_type(self):
        self.optimizer.param_groups[0]["lr"] = 1
        self.state["step"] = True

    def do_tensor_lr(self):
        self.optimizer.param_groups[0]["lr"] = torch.tensor(0.5)

    def do_tensor_betas(self):
        self.optimizer.param_groups[0]["betas"] = (torch.tensor(0.5), 0.9)

    def do_new_option(self):
        self.optimizer.param_groups[0][f"option{self.count}"] = [self.count]

    def do_add_group(self):
        self.count += 1
        self.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})

    def do_reorder_group(self):
        self.optimizer.param_groups[0]["params"].reverse()

    def do_renew_optimizer(self):
        self.renew_optimizer()

    def do_load_optimizer(self):
        self.optimizer.load_state_dict(self.optimizer.state_dict())

    def do_drop_slots(self):
        self.optimizer.state.clear()

    def do_scalar_slot(self):
        self.some_slot()["note"] = self.count
        self.count += 1

    def do_nested_slot(self):
        self.some_slot()["nested"] = [torch.ones(1)]

    def do_unnest_slot(self):
        self.some_slot().pop("nested", None)

    def do_swap_slot(self):
        if slots := self.some_slot():
            slots["exp_avg"] = slots["exp_avg"].clone()

    def do_slot_data(self):
        if slots := self.some_slot():
            slots["exp_avg"].data = slots["exp_avg"].double()

    def do_replace_parameter(self):
        self.linear().weight = nn.Parameter(torch.ones(2, 2))

    def do_equal_parameter(self):
        self.linear().bias = nn.Parameter(self.linear().bias.detach().clone())

    def do_tie(self):
        self.model[3].weight = self.linear().weight

    def do_untie(self):
        self.model[3].weight = nn.Parameter(self.linear().weight.detach().clone())

    def do_none_bias(self):
        self.linear().bias = None

    def do_move_between_modules(self):
        one, other = self.linear()._parameters, self.model[3]._parameters
        if "bias" in one:
            other["moved"] = one.pop("bias")
        elif "moved" in other:
            one["bias"] = other.pop("moved")

    def do_rename(self):
        parameters = self.linear()._parameters
        if "weight" in parameters:
            parameters["kernel"] = parameters.pop("weight")
        else:
            parameters["weight"] = parameters.pop("kernel")

    def do_add_module(self):
        self.count += 1
        self.linear().add_module(f"child{self.count}", nn.Linear(1, 1))

    def do_remove_module(self):
        for key in list(self.linear()._modules):
            del self.linear()._modules[key]

    def do_swap_modules(self):
        modules = self.model._modules
        modules["0"], modules["3"] = modules["3"], modules["0"]

    def do_share_module(self):
        self.model[3].shared = self.linear()

    def do_new_members(self):
        self.linear()._parameters = dict(reversed(self.linear()._parameters.items()))

    def do_wrap(self):
        self.state["model"] = nn.DataParallel(self.model)

    def do_wrap_inside(self):
        self.model._modules["3"] = nn.DataParallel(self.model[3])

    def do_class(self):
        kinds = {nn.Linear: Odd, Odd: nn.Linear}
        module = self.linear()
        module.__class__ = kinds.get(type(module), type(module))

    def do_buffer(self):
        self.model[1].running_mean = torch.zeros(2)

    def do_buffer_in_place(self):
        self.model[1].running_mean += 1

    def do_hide_buffer(self):
        self.model[1]._non_persistent_buffers_set ^= {"running_var"}

    def do_extra_state(self):
        self.model[2].seen += 1

    def do_extra_tensor(self):
        self.model[2].last = torch.zeros(1)

    def do_data(self):
        weight = self.linear()._parameters.get("weight")
        if weight is not None:
            weight.data = torch.ones(3)

    def do_data_same_memory(self):
        buffer = self.model[1].running_mean
        buffer.data = buffer.data.view(
            torch.int32 if buffer.dtype is torch.float32 else torch.float32
        )

    def do_transpose(self):
        self.state["flat"].t_()

    def do_resize(self):
        self.count += 1
        self.state["flat"].resize_(2, self.count + 2)

    def do_storage(self):
        self.state["flat"].set_(torch.ones(2, 2))

    def do_swap_tensors(self):
        torch.utils.swap_tensors(self.state["flat"], torch.ones(4))

    def do_subclass(self):
        self.state["flat"] = self.state["flat"].as_subclass(Marked)

    def do_sparse(self):
        self.state["flat"] = torch.eye(2).to_sparse()

    def do_dense(self):
        self.state["flat"] = torch.eye(2)

    def do_conj(self):
        self.state["flat"] = torch.ones(2, 2, dtype=torch.complex64).conj()

    def do_requires_grad(self):
        self.linear().requires_grad_(not next(self.model.parameters()).requires_grad)

    def do_cast(self):
        self.linear().to(
            torch.float64
            if self.model[3].weight.dtype is torch.float32
            else torch.float
        )

    def do_rng(self):
        self.state["rng"] = torch.zeros(2)

    def do_view(self):
        self.state["rng"] = self.state["rng"].view(2)

    def do_scalar(self):
        self.state["step"] += 1

    def do_zero(self):
        self.state["data"]["c"] = (-0.0, 0.0, float("nan"), 1 + 0j, b"1")

    def do_deep_scalar(self):
        self.state["data"]["a"][0] = 1.0

    def do_deep_true(self):
        self.state["data"]["a"][0] = True

    def do_deep_tensor(self):
        self.state["data"]["a"][1]["b"] = torch.zeros(5)

    def do_alias(self):
        self.state["data"]["again"] = self.state["data"]["a"]

    def do_other_dict(self):
        self.state["data"] = OrderedDict(self.state["data"])

    def do_own_dict(self):
        self.state["data"] = OwnDict(self.state["data"])

    def do_key_order(self):
        self.state["data"] = dict(reversed(self.state["data"].items()))

    def do_sampler(self):
        self.state["sampler"].position += 1

    def do_sampler_order(self):
        self.state["sampler"].order = torch.arange(4)

    def do_entry(self):
        self.count += 1
        self.state[f"entry{self.count}"] = torch.ones(1)

    def do_entry_order(self):
        first = next(iter(self.state))
        self.state[first] = self.state.pop(first)

    def do_entry_kind(self):
        self.state["step"] = 3

    def do_tensor_for_data(self):
        self.state["flat"] = [torch.ones(1)]

    def do_clash(self):
        self.state["data.c"] = torch.ones(1)
        self.state["data"]["c"] = torch.ones(1)

    def do_clear_clash(self):
        self.state.pop("data.c", None)

    def do_unfit(self):
        self.state["data"]["bad"] = object()

    def do_clear_unfit(self):
        self.state["data"].pop("bad", None)

    def do_bad_slot(self):
        self.some_slot()["a.b"] = 1

    def do_clear_bad_slot(self):
        self.some_slot().pop("a.b", None)


class Odd(nn.Linear):
    def get_extra_state(self):
        return 3


class Marked(torch.Tensor):
    pass


class OwnDict(dict):
    def items(self):
        return [(f"own_{key}", value) for key, value in super().items()]


MUTATIONS = sorted(name for name in vars(World) if name.startswith("do_"))
ERRORS = (TypeError, ValueError, NamesError)


def outcome(pack, state):
    try:
        return pack(state), None
    except ERRORS as error:
        return None, error


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.sampled_from(MUTATIONS), max_size=3), max_size=8))
def test_packer_equals_pack_state_after_any_changes(rounds):
    world, packer = World(), StatePacker()
    world.step()
    previous = packer.pack(world.state)
    for mutations in rounds:
        for mutation in mutations:
            # Some changes do not fit what others have done; then there is none.
            try:
                getattr(world, mutation)()
            except (RuntimeError, AttributeError, TypeError, KeyError):
                continue
        expected, error = outcome(pack_state, world.state)
        packed, other = outcome(packer.pack, world.state)
        assert (type(error), str(error)) == (type(other), str(other))
        if packed is None:
            continue
        assert_same(packed, expected)
        if list(packed.tensors) == list(previous.tensors):
            unchanged = not changed(packed, previous)
            assert (packed.tensors is previous.tensors) == unchanged
        previous = packed


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_each_change_alone_is_seen(mutation):
    world, packer = World(), StatePacker()
    world.step()
    packer.pack(world.state)
    for _ in range(2):
        getattr(world, mutation)()
        expected, error = outcome(pack_state, world.state)
        packed, other = outcome(packer.pack, world.state)
        assert (type(error), str(error)) == (type(other), str(other))
        if packed is not None:
            assert_same(packed, expected)


def trained():
    world = World()
    world.model._modules.pop("2")
    world.renew_optimizer()
    world.step()
    return world


def test_unchanged_state_is_the_same_object():
    world, packer = trained(), StatePacker()
    first = packer.pack(world.state)
    world.step()
    assert packer.pack(world.state) is first


def test_changed_option_leaves_all_but_the_plain_half_of_the_optimizer():
    world, packer = trained(), StatePacker()
    first = packer.pack(world.state)
    world.do_set_lr()
    second = packer.pack(world.state)
    assert second.tensors is first.tensors
    for key, entry in second.entries.items():
        assert (entry is first.entries[key]) == (key != "optimizer")
    one, other = first.entries["optimizer"], second.entries["optimizer"]
    assert other["groups"] is one["groups"]
    assert other["tensors"] is one["tensors"]
    assert other["plain"] != one["plain"]


def test_new_tensor_leaves_all_others_the_same():
    world, packer = trained(), StatePacker()
    first = packer.pack(world.state)
    world.do_rng()
    second = packer.pack(world.state)
    assert changed(second, first) == {"rng"}
    assert second.entries is first.entries
    assert second.tensors is not first.tensors
    world.do_entry()
    assert list(packer.pack(world.state).tensors) != list(second.tensors)


def test_new_tensor_object_on_the_same_memory_is_no_change():
    world, packer = trained(), StatePacker()
    first = packer.pack(world.state)
    world.do_view()
    assert packer.pack(world.state) is first


def test_memory_that_was_given_up_and_taken_again_is_a_change():
    # FSDP frees storages in place; the address may then come back for another one.
    weight, packer = nn.Parameter(torch.ones(1024)), StatePacker()
    packer.pack({"weight": weight})
    weight.untyped_storage().resize_(0)
    weight.data = torch.full((1024,), 2.0)
    packed = packer.pack({"weight": weight})
    assert torch.equal(packed.tensors["weight"], weight)


def test_refused_state_leaves_the_packer_as_it_was():
    world, packer = trained(), StatePacker()
    first = packer.pack(world.state)
    world.do_unfit()
    with pytest.raises(TypeError, match=r"data\.bad is of type object"):
        packer.pack(world.state)
    world.do_clear_unfit()
    assert packer.pack(world.state) is first


def test_cycle_is_refused():
    data, packer = {"a": 1}, StatePacker()
    packer.pack({"data": data})
    data["self"] = data
    with pytest.raises(ValueError, match=r"data contains itself, as data\.self"):
        packer.pack({"data": data})


def test_script_module_is_packed_anew():
    # Of another kind from torch 2.14 on.
    with pytest.warns((DeprecationWarning, FutureWarning), match="deprecated"):
        model = torch.jit.script(nn.Linear(2, 2))
    packer = StatePacker()
    assert_same(packer.pack({"m": model}), pack_state({"m": model}))
    assert_same(packer.pack({"m": model}), pack_state({"m": model}))


def test_master_weights_are_packed_as_ever():
    model = nn.Linear(2, 2).to(torch.bfloat16)
    optimizer = MasterWeightOptimizer(
        dict(model.named_parameters()), lambda named: torch.optim.AdamW(named.values())
    )
    state, packer = {"model": model, "optimizer": optimizer}, StatePacker()
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        packed = packer.pack(state)
        assert_same(packed, pack_state(state))
        assert "optimizer.parameter.model.weight" in packed.tensors
    assert packer.pack(state) is packed


def check_sharded():
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    state, packer = {"model": model, "optimizer": optimizer}, StatePacker()
    packer.pack(state)
    seen = []
    for _ in range(3):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        packed = packer.pack(state)
        assert_same(packed, pack_state(state))
        seen.append(packed.tensors)
    assert seen[2] is seen[1]
    weight = model[0].weight
    other = nn.Parameter(weight.detach() * 2)
    torch.utils.swap_tensors(weight, other)
    after = packer.pack(state)
    assert_same(after, pack_state(state))
    assert changed(after, packed) == {"model.0.weight"}
    weight._local_tensor = weight._local_tensor.clone()
    assert_same(packer.pack(state), pack_state(state))


@pytest.mark.slow
def test_sharded_state_is_reused_too():
    run_ranks(check_sharded, 2, timeout_s=120)


def test_hook_or_method_that_comes_after_a_save_is_seen():
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    packer = StatePacker()
    state = {"model": model, "other": other}
    packer.pack(state)
    model.register_state_dict_post_hook(lambda _, state, prefix, __: state.update(n=3))
    other.state_dict = lambda: {"n": 4}
    entries = packer.pack(state).entries
    assert ["n", ["value", 3]] in entries["model"]["plain"][1]
    assert entries["other"]["plain"] == ["dict", [["n", ["value", 4]]]]


def test_hook_of_an_optimizer_that_comes_after_a_save_is_seen():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    packer = StatePacker()
    state = {"model": model, "optimizer": optimizer}
    assert packer.pack(state).entries["optimizer"]["kind"] == "optimizer"
    hook = optimizer.register_state_dict_post_hook(lambda _, state: {**state, "n": 3})
    entry = packer.pack(state).entries["optimizer"]
    assert ["n", ["value", 3]] in entry["plain"][1]
    hook.remove()
    assert packer.pack(state).entries["optimizer"]["kind"] == "optimizer"
    optimizer.state_dict = lambda: {"n": 4}
    entry = packer.pack(state).entries["optimizer"]
    assert entry["plain"] == ["dict", [["n", ["value", 4]]]]


def test_what_pickle_alone_holds_comes_back_and_changes_are_seen():
    packer = StatePacker()
    state = {"seen": {"ids": {1}, "log": io.BytesIO(b"ab")}}
    first = packer.pack(state).entries["seen"]
    assert packer.pack(state).entries["seen"] is first
    state["seen"]["ids"].add(2)
    second = packer.pack(state).entries["seen"]
    assert second is not first
    state["seen"]["log"].write(b"c")
    assert packer.pack(state).entries["seen"] is not second
