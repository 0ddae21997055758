"""What fits is restored, what does not is told: all of it, and nothing else."""

from __future__ import annotations

import copy
import pickle
import re

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from drivetrain_core._errors import CheckpointError
from drivetrain_core._optimizer.master_weights import MasterWeightOptimizer
from drivetrain_core.services import TensorSpec, pack_state, plan_restoration
from drivetrain_testing import run_ranks


class Saved:
    """A checkpoint in memory."""

    def __init__(self, state):
        packed = pack_state(state)
        self.entries = copy.deepcopy(packed.entries)
        self.tensors = {name: t.clone() for name, t in packed.tensors.items()}
        self.specs = {
            name: TensorSpec(name=name, global_shape=tuple(t.shape), dtype=t.dtype)
            for name, t in packed.tensors.items()
        }

    def restore(self, into, *, strict=True):
        plan = plan_restoration(into, self.entries, self.specs, strict=strict)
        for prepare in plan.prepare:
            prepare()
        for targets in plan.targets:
            for name, tensor in targets().items():
                tensor.copy_(self.tensors[name])
        for finish in plan.finish:
            finish()
        return plan.mismatches


def refused(saved, into):
    """Returns all reasons of a refusal, which changes nothing."""
    before = snapshot(into)
    with pytest.raises(CheckpointError) as caught:
        saved.restore(into)
    assert same(snapshot(into), before)
    return list(caught.value.mismatches)


def snapshot(state):
    def plain(value):
        value = value.state_dict() if hasattr(value, "state_dict") else value
        return copy.deepcopy(value)

    return {key: plain(value) for key, value in state.items()}


def same(one, other):
    return pickle.dumps(one) == pickle.dumps(other) or repr(one) == repr(other)


def trained(model, *, groups=None, steps=1, **options):
    groups = groups or [{"params": list(model.parameters())}]
    optimizer = torch.optim.AdamW(groups, lr=0.1, **options)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    return optimizer


def two_layers(width=2):
    return nn.ModuleDict({"a": nn.Linear(2, width), "b": nn.Linear(2, 2)})


# Models


def test_all_mismatches_are_told_at_once():
    saved = Saved({"model": two_layers(), "a": torch.ones(2), "b": 3, "data": {}})
    other = two_layers(3)
    other["c"] = nn.Linear(1, 1, bias=False)
    other["b"].bias = None
    into = {
        "model": other,
        "a": torch.ones(2, dtype=torch.float64),
        "b": torch.ones(1),
        "daat": {},
    }
    single = "torch.float32"
    assert refused(saved, into) == [
        "'model.c.weight' is here, but not in the checkpoint",
        "'model.b.bias' is in the checkpoint, but not here",
        f"'model.a.weight' is [3, 2] {single} here, but [2, 2] {single} in the checkpoint",
        f"'model.a.bias' is [3] {single} here, but [2] {single} in the checkpoint",
        "'a' is [2] torch.float64 here, but [2] torch.float32 in the checkpoint",
        "'b' is a tensor here, but not in the checkpoint",
        "the checkpoint has no entry 'daat'; nearest: data",
    ]


def test_long_list_is_cut_in_the_message_alone():
    saved = Saved({"first": 1})
    into = {f"entry{i}": 0 for i in range(70)}
    with pytest.raises(CheckpointError) as caught:
        saved.restore(into)
    assert len(caught.value.mismatches) == 70
    lines = str(caught.value).splitlines()
    assert len(lines) == 52
    assert lines[0] == "70 things do not fit the checkpoint:"
    assert lines[-1] == "  and 20 more"
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.mismatches == caught.value.mismatches


def test_each_tensor_of_a_model_is_restored_by_itself():
    source, other = two_layers(), two_layers(3)
    before = other["a"].weight.clone()
    mismatches = Saved({"model": source}).restore({"model": other}, strict=False)
    assert torch.equal(other["a"].weight, before)
    assert torch.equal(other["b"].weight, source["b"].weight)
    assert [m.split()[0] for m in mismatches] == ["'model.a.weight'", "'model.a.bias'"]


class Extra(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def get_extra_state(self):
        return self.value

    def set_extra_state(self, state):
        self.value = state


def test_extra_state_is_missed_both_ways():
    saved = Saved({"m": nn.ModuleDict({"a": Extra(1), "b": Extra(torch.ones(1))})})
    other = nn.ModuleDict({"a": Extra(2), "c": Extra(3)})
    reasons = [
        "'m': the extra state of 'c' is here, but not in the checkpoint",
        "'m': the extra state of 'b' is in the checkpoint, but not here",
    ]
    assert refused(saved, {"m": other}) == reasons
    assert saved.restore({"m": other}, strict=False) == reasons
    assert (other["a"].value, other["c"].value) == (1, 3)


def kinds():
    optimizer = torch.optim.SGD([torch.ones(1)])
    return [nn.Linear(1, 1), torch.ones(1), [1], optimizer, None]


@pytest.mark.parametrize("value", kinds(), ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("target", kinds(), ids=lambda value: type(value).__name__)
def test_other_kind_is_told_and_left_or_replaced(value, target):
    saved, into = Saved({"x": value}), {"x": target}
    before = snapshot(into)
    mismatches = saved.restore(into, strict=False)
    if mismatches:
        assert len(mismatches) == 1
        assert same(snapshot(into), before)
        assert refused(saved, into) == mismatches
    else:
        assert same(snapshot(into), snapshot({"x": value}))


def test_entries_that_are_not_asked_for_are_left_out():
    saved = Saved({"model": two_layers(), "step": 3})
    into = {"step": 0}
    assert saved.restore(into) == []
    assert into == {"step": 3}


def test_checkpoint_without_a_tensor_of_its_own_is_damaged_either_way():
    saved = Saved({"model": two_layers()})
    del saved.specs["model.a.bias"]
    for strict in (True, False):
        with pytest.raises(CheckpointError, match=r"index .* has no tensor 'model\.a"):
            saved.restore({"model": two_layers()}, strict=strict)


# Optimizers


def test_state_of_parameters_follows_their_names_into_other_groups():
    source = two_layers()
    saved = Saved({"model": source, "optimizer": trained(source, steps=2)})
    other = two_layers()
    groups = [
        {"params": list(layer.parameters()), "lr": 7.0} for layer in other.values()
    ]
    optimizer = trained(other, groups=groups, steps=0)
    mismatches = saved.restore({"model": other, "optimizer": optimizer}, strict=False)
    assert [m[:22] for m in mismatches] == [
        "'optimizer': group 0 o",
        "'optimizer': group 1 o",
    ]
    for parameter in other.parameters():
        assert optimizer.state[parameter]["step"] == 2
    assert [group["lr"] for group in optimizer.param_groups] == [7.0, 7.0]


def test_options_are_restored_where_the_group_is_the_same():
    def make(*last):
        model = two_layers()
        model.register_parameter("extra", nn.Parameter(torch.ones(1)))
        first = list(model["a"].parameters())
        rest = [*model["b"].parameters(), *(getattr(model, name) for name in last)]
        groups = [{"params": first, "lr": 1.0}, {"params": rest, "lr": 1.0}]
        return {"model": model, "optimizer": trained(model, groups=groups)}

    source, other = make(), make("extra")
    for group in source["optimizer"].param_groups:
        group["lr"] = 0.5
    saved = Saved(source)
    reasons = refused(saved, other)
    assert saved.restore(other, strict=False) == reasons
    assert reasons[0] == (
        "'optimizer': the parameter 'model.extra' is here, but not in the checkpoint"
    )
    assert [group["lr"] for group in other["optimizer"].param_groups] == [0.5, 1.0]


def test_state_of_a_parameter_is_restored_whole_or_not_at_all():
    source, other = two_layers(), two_layers()
    optimizer = trained(other, steps=1)
    other_bias = optimizer.state[other["a"].bias]
    other_bias["exp_avg_sq"] = torch.full((3,), 5.0)
    saved = Saved({"model": source, "optimizer": trained(source, steps=4)})
    into = {"model": other, "optimizer": optimizer}
    (reason,) = refused(saved, into)
    assert reason.startswith(
        "'optimizer': the state of 'model.a.bias' does not fit: 'exp_"
    )
    assert saved.restore(into, strict=False) == [reason]
    steps = [int(optimizer.state[p]["step"]) for p in other.parameters()]
    assert steps == [4, 1, 4, 4]
    assert other_bias["exp_avg_sq"].tolist() == [5, 5, 5]


def test_new_optimizer_takes_no_state_for_a_parameter_of_another_shape():
    source, other = two_layers(), two_layers(3)
    optimizer = trained(other, steps=0)
    saved = Saved({"model": source, "optimizer": trained(source)})
    mismatches = saved.restore({"model": other, "optimizer": optimizer}, strict=False)
    assert len(mismatches) == 4
    assert set(optimizer.state) == set(other["b"].parameters())
    for parameter in other.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def test_parameters_without_names_need_their_group():
    source, other = two_layers(), two_layers()
    saved = Saved({"optimizer": trained(source, steps=3)})
    groups = [{"params": list(layer.parameters())} for layer in other.values()]
    optimizer = trained(other, groups=groups)
    mismatches = saved.restore({"optimizer": optimizer}, strict=False)
    assert [int(s["step"]) for s in optimizer.state.values()] == [1, 1, 1, 1]
    for name in ("param_groups.0.0", "param_groups.0.2", "param_groups.1.1"):
        assert any(name in mismatch for mismatch in mismatches)


def test_master_that_was_not_saved_is_told():
    plain, other = (nn.Linear(2, 2).to(torch.bfloat16) for _ in range(2))
    saved = Saved({"model": plain, "optimizer": torch.optim.SGD(plain.parameters())})
    optimizer = MasterWeightOptimizer(
        dict(other.named_parameters()), lambda named: torch.optim.SGD(named.values())
    )
    reasons = refused(saved, {"model": other, "optimizer": optimizer})
    assert any("'parameter.model.weight' is here, but not in" in r for r in reasons)


def test_tensors_inside_of_options_come_back():
    source, other = two_layers(), two_layers()
    optimizer = trained(source)
    optimizer.param_groups[0]["betas"] = (torch.tensor(0.25), 0.5)
    new = trained(other)
    saved = Saved({"model": source, "optimizer": optimizer})
    assert saved.restore({"model": other, "optimizer": new}) == []
    assert repr(new.param_groups[0]["betas"]) == "(tensor(0.2500), 0.5000)".replace(
        "0.5000", "0.5"
    )


def test_state_that_is_called_like_the_plain_half_comes_back():
    source, other = two_layers(), two_layers()
    optimizer, new = trained(source), trained(other)
    optimizer.state[source["a"].weight]["scalars"] = torch.full((2, 2), 7.0)
    saved = Saved({"model": source, "optimizer": optimizer})
    assert saved.restore({"model": other, "optimizer": new}) == []
    assert new.state[other["a"].weight]["scalars"].tolist() == [[7, 7], [7, 7]]


def test_tensor_option_of_another_kind_keeps_the_options_of_its_group():
    source, other = two_layers(), two_layers()
    optimizer, new = trained(source), trained(other)
    optimizer.param_groups[0]["lr"] = torch.tensor(0.25)
    new.param_groups[0]["lr"] = torch.tensor(0.5, dtype=torch.float64)
    new.param_groups[0]["weight_decay"] = 9.0
    saved = Saved({"model": source, "optimizer": optimizer})
    into = {"model": other, "optimizer": new}
    (reason,) = refused(saved, into)
    assert "'param_groups.0.lr' is [] torch.float64 here" in reason
    assert saved.restore(into, strict=False) == [reason]
    assert new.param_groups[0]["lr"] == 0.5
    assert new.param_groups[0]["weight_decay"] == 9.0


SHAPES = st.sampled_from([None, (2,), (3,), (2, 2)])
NAMES = ("a", "b", "c")


def make_state(shapes, *, split, steps):
    model = nn.Module()
    for name, shape in zip(NAMES, shapes, strict=True):
        if shape is not None:
            model.register_parameter(name, nn.Parameter(torch.randn(shape)))
    parameters = list(model.parameters())
    groups = [g for g in (parameters[:split], parameters[split:]) if g] or [[]]
    optimizer = trained(model, groups=[{"params": g} for g in groups], steps=steps)
    return {"model": model, "optimizer": optimizer}


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    st.tuples(SHAPES, SHAPES, SHAPES),
    st.tuples(SHAPES, SHAPES, SHAPES),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 1),
)
def test_what_fits_is_restored_and_all_else_told(there, here, split, other, steps):
    source = make_state(there, split=split, steps=3)
    into = make_state(here, split=other, steps=steps)
    saved = Saved(source)
    before = snapshot(into)
    optimizer = into["optimizer"]
    steps_before = {
        name: int(optimizer.state[p]["step"]) if p in optimizer.state else 0
        for name, p in into["model"].named_parameters()
    }
    mismatches = saved.restore(into, strict=False)
    for name, shape, wanted in zip(NAMES, there, here, strict=True):
        told = [m for m in mismatches if f"'model.{name}'" in m]
        assert bool(told) == (shape != wanted)
        if wanted is None:
            continue
        parameter = getattr(into["model"], name)
        if shape == wanted:
            assert torch.equal(parameter, getattr(source["model"], name))
            assert optimizer.state[parameter]["step"] == 3
        else:
            assert torch.equal(parameter, before["model"][name])
            state = optimizer.state.get(parameter, {})
            assert int(state.get("step", 0)) == steps_before[name]
    again = make_state(here, split=other, steps=steps)
    if mismatches:
        assert refused(saved, again) == mismatches
    else:
        assert saved.restore(again) == []


def check_sharded():
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    source, other = two_layers(), two_layers(3)
    for model in (source, other):
        for layer in model.values():
            fully_shard(layer, mesh=mesh)
    saved = Saved({"model": source, "optimizer": trained(source)})
    optimizer = trained(other, steps=0)
    mismatches = saved.restore({"model": other, "optimizer": optimizer}, strict=False)
    assert len(mismatches) == 4, mismatches
    for name in ("weight", "bias"):
        one, two = getattr(source["b"], name), getattr(other["b"], name)
        assert torch.equal(one.to_local(), two.to_local())
        assert optimizer.state[two]["step"] == 1


def test_sharded_state_is_restored_where_it_fits():
    run_ranks(check_sharded, 2, timeout_s=120)


def unwritable_tensors():
    with torch.inference_mode():
        inference = torch.zeros(3)
    return {
        "expanded": torch.zeros(1).expand(3),
        "windows": torch.zeros(4).unfold(0, 2, 1),
        "inference": inference,
        "meta": torch.zeros(3, device="meta"),
        "sparse": torch.zeros(3).to_sparse(),
        "nested": torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
        "ragged": torch.nested.nested_tensor(
            [torch.ones(1), torch.ones(2)], layout=torch.jagged
        ),
    }


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype")
def test_tensors_that_cannot_be_written_are_all_told_before_any_is():
    into = unwritable_tensors() | {"fine": torch.zeros(3)}
    saved = Saved(
        {name: torch.ones(3) for name in into} | {"windows": torch.ones(3, 2)}
    )
    with pytest.raises(CheckpointError) as caught:
        saved.restore(into)
    told = caught.value.mismatches
    assert len(told) == len(into) - 1
    for name, words in {
        "expanded": r"share memory: give a clone\(\)",
        "windows": r"share memory: give a clone\(\)",
        "inference": r"an inference tensor.* restore in that mode",
        "meta": r"without memory: make it with to_empty\(\)",
        "sparse": "torch.sparse_coo: give a dense one",
        "nested": "a nested tensor",
        "ragged": "a nested tensor",
    }.items():
        assert any(re.match(f"'{name}' is .*{words}", one) for one in told), name
    assert into["fine"].tolist() == [0, 0, 0]
    assert len(saved.restore(into, strict=False)) == len(into) - 1
    assert into["fine"].tolist() == [1, 1, 1]
    with torch.inference_mode():
        saved.restore({"inference": into["inference"]})
    assert into["inference"].tolist() == [1, 1, 1]


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype")
def test_plain_data_takes_new_tensors_for_those_that_cannot_be_written():
    into = {"data": unwritable_tensors()}
    Saved({"data": {name: torch.ones(3) for name in into["data"]}}).restore(into)
    assert all(tensor.tolist() == [1, 1, 1] for tensor in into["data"].values())


def test_model_without_memory_is_refused():
    model = nn.Linear(2, 2, device="meta")
    told = refused(Saved({"m": nn.Linear(2, 2)}), {"m": model})
    assert [one.split(" is ")[0] for one in told] == ["'m.weight'", "'m.bias'"]


def test_state_of_another_kind_of_optimizer_is_refused():
    def stepped(kind, **options):
        model = nn.Linear(2, 2)
        optimizer = kind(model.parameters(), lr=0.1, **options)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        return {"model": model, "optimizer": optimizer}

    adam = stepped(torch.optim.AdamW)
    torch.optim.lr_scheduler.StepLR(adam["optimizer"], 1)  # adds initial_lr
    saved = Saved(adam)
    into = stepped(torch.optim.SGD, momentum=0.9)
    before = copy.deepcopy(into["optimizer"].state_dict())
    with pytest.raises(CheckpointError, match=r"another kind .* betas.* not dampening"):
        saved.restore(into)
    assert saved.restore(into, strict=False)
    assert str(into["optimizer"].state_dict()) == str(before)
    # What differs in its defaults alone is the same kind, and so is one without schedule.
    assert not saved.restore(stepped(torch.optim.Adam))
