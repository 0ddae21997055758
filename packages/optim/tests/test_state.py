"""What AGD keeps: layout, dtypes, and continuation from a checkpoint."""

import copy
import io
import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from drivetrain_optim import AGD

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def small_model(dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    layers = torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)
    return torch.nn.Sequential(*layers).to(dtype)


def train(model, optimizer, steps):
    for step in steps:
        torch.manual_seed(step)
        dtype = next(model.parameters()).dtype
        optimizer.zero_grad()
        model(torch.randn(4, 3, dtype=dtype)).square().sum().backward()
        optimizer.step()


def through_file(state_dict):
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def assert_equal_bits(model, other):
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("amsgrad", [False, True])
def test_state_has_the_layout_of_torch(dtype, amsgrad):
    model = small_model(dtype)
    optimizer = AGD(model.parameters(), amsgrad=amsgrad)
    train(model, optimizer, range(2))
    peer = torch.optim.AdamW(small_model().parameters(), amsgrad=amsgrad)
    for p in peer.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    peer.step()
    ours, theirs = optimizer.state_dict()["state"], peer.state_dict()["state"]
    assert ours.keys() == theirs.keys()
    for key, state in ours.items():
        assert state.keys() == theirs[key].keys()
        assert state["step"].dtype == theirs[key]["step"].dtype
        assert state["step"].device == torch.device("cpu")
        assert state["step"].item() == 2
        for name in state.keys() - {"step"}:
            assert state[name].shape == theirs[key][name].shape


@pytest.mark.parametrize(
    ("dtype", "state_dtype", "expected"),
    [
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float16, torch.float32, torch.float32),
        (torch.float32, torch.float32, torch.float32),
        (torch.float64, torch.float32, torch.float64),
        (torch.float32, torch.float64, torch.float64),
        (torch.bfloat16, None, torch.bfloat16),
        (torch.float64, None, torch.float64),
    ],
)
def test_state_dtype_is_the_narrowest_of_the_moments(dtype, state_dtype, expected):
    model = small_model(dtype)
    optimizer = AGD(model.parameters(), state_dtype=state_dtype)
    train(model, optimizer, range(3))
    for p in model.parameters():
        assert p.dtype is dtype
        assert optimizer.state[p]["exp_avg"].dtype is expected
        assert optimizer.state[p]["exp_avg_sq"].dtype is expected


def test_state_in_bfloat16_follows_the_float32_state():
    runs = []
    for state_dtype in (None, torch.float32):
        model = small_model(torch.bfloat16)
        optimizer = AGD(model.parameters(), lr=0.01, state_dtype=state_dtype)
        train(model, optimizer, range(20))
        runs.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert not torch.equal(*runs)
    torch.testing.assert_close(*runs, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("copied", [copy.deepcopy, through_file])
def test_state_dict_continues_with_the_same_bits(dtype, foreach, copied):
    options = {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1, "foreach": foreach}
    whole = small_model(dtype)
    optimizer = AGD(whole.parameters(), **options)
    train(whole, optimizer, range(5))
    resumed = copy.deepcopy(whole)
    saved = copied(optimizer.state_dict())
    again = AGD(resumed.parameters(), lr=1.0)
    again.load_state_dict(saved)
    train(whole, optimizer, range(5, 10))
    train(resumed, again, range(5, 10))
    assert_equal_bits(whole, resumed)
    for group, other in zip(optimizer.param_groups, again.param_groups, strict=True):
        assert {**group, "params": 0} == {**other, "params": 0}


def test_state_dict_hooks_of_the_user_see_the_final_state():
    model = small_model(torch.bfloat16)
    optimizer = AGD(model.parameters())
    train(model, optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    seen = []
    optimizer.register_load_state_dict_pre_hook(lambda _, s: {**s, "extra": 1})
    optimizer.register_load_state_dict_post_hook(
        lambda o: seen.extend(s["exp_avg"].dtype for s in o.state.values())
    )
    optimizer.load_state_dict(saved)
    optimizer.load_state_dict(saved)
    assert seen == [torch.float32] * 8


def test_state_dict_with_steps_as_numbers_is_read():
    model = small_model()
    optimizer = AGD(model.parameters())
    train(model, optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    for state in saved["state"].values():
        state["step"] = int(state["step"])
    optimizer.load_state_dict(saved)
    assert all(s["step"].dtype is torch.float32 for s in optimizer.state.values())
    train(model, optimizer, range(1))


def test_state_dict_before_the_first_step_is_read():
    model = small_model()
    saved = AGD(model.parameters(), delta="cnn").state_dict()
    optimizer = AGD(model.parameters())
    optimizer.load_state_dict(through_file(saved))
    assert optimizer.param_groups[0]["delta"] == 1e-8
    train(model, optimizer, range(1))


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))]
)
def test_optimizer_can_be_copied_whole(copied):
    model = small_model()
    optimizer = AGD(model.parameters(), lr=0.01)
    train(model, optimizer, range(3))
    other_model, other = copied((model, optimizer))
    train(model, optimizer, range(3, 6))
    train(other_model, other, range(3, 6))
    assert_equal_bits(model, other_model)


# Checkpoint tools create the state by a step at a learning rate of 0.
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.parametrize("decay", ["decoupled", "fixed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_distributed_checkpoint_continues_with_the_same_bits(tmp_path, decay, dtype):
    options = {"lr": 0.01, "weight_decay": 0.1, "decay": decay}
    whole = small_model(dtype)
    optimizer = AGD(whole.parameters(), **options)
    train(whole, optimizer, range(4))
    state = {"optim": get_optimizer_state_dict(whole, optimizer)}
    dcp.save(state, checkpoint_id=tmp_path, no_dist=True)
    resumed = copy.deepcopy(whole)
    again = AGD(resumed.parameters(), **options)
    state = {"optim": get_optimizer_state_dict(resumed, again)}
    assert_equal_bits(whole, resumed)
    dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
    set_optimizer_state_dict(resumed, again, optim_state_dict=state["optim"])
    train(whole, optimizer, range(4, 8))
    train(resumed, again, range(4, 8))
    assert_equal_bits(whole, resumed)


@settings(max_examples=25, deadline=None)
@given(
    stops=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    foreach=st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_any_sequence_of_restarts_changes_nothing(stops, foreach):
    straight = small_model()
    whole = AGD(straight.parameters(), lr=0.01, foreach=True)
    train(straight, whole, range(sum(stops)))
    model, saved, done = small_model(), None, 0
    for num_steps, path in zip(stops, foreach, strict=False):
        optimizer = AGD(model.parameters(), lr=0.01)
        if saved is not None:
            optimizer.load_state_dict(saved)
        optimizer.param_groups[0]["foreach"] = path
        train(model, optimizer, range(done, done + num_steps))
        saved, done = copy.deepcopy(optimizer.state_dict()), done + num_steps
    assert_equal_bits(straight, model)
