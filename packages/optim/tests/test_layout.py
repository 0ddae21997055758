"""What an optimizer remembers between steps, and who may change it meanwhile."""

import copy
import gc
import weakref

import pytest
import torch

from drivetrain_optim import AGD, LAMB

PATHS = [
    pytest.param({"foreach": False}, id="loop"),
    pytest.param({"foreach": True}, id="foreach"),
    pytest.param({"fused": True}, id="native"),
    pytest.param({"capturable": True}, id="capturable"),
]
KINDS = pytest.mark.parametrize("kind", [AGD, LAMB])
SIZES = [(3, 5), (7,), (1,)]


def parameters(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(s, generator=generator)) for s in SIZES]


def set_gradients(params, seed):
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)


def twins(kind, path):
    """Two optimizers in the same state; one of them is a stranger to its tensors."""
    params = parameters()
    optimizer = kind(params, lr=0.01, **path)
    for step in range(3):
        set_gradients(params, step)
        optimizer.step()
    return params, optimizer


def check_next_steps(kind, path, params, optimizer, num_steps=3):
    """The optimizer steps as a new one that loads the same state."""
    others = [torch.nn.Parameter(p.detach().clone()) for p in params]
    other = kind(others, lr=0.01, **path)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for step in range(10, 10 + num_steps):
        set_gradients(params, step)
        set_gradients(others, step)
        optimizer.step()
        other.step()
        for p, q in zip(params, others, strict=True):
            assert torch.equal(p, q)


def replace_moments(params, optimizer):
    """As code does that moves the state to the host between steps."""
    for state in optimizer.state.values():
        for name, value in state.items():
            state[name] = value.clone()


def replace_one_moment(params, optimizer):
    optimizer.state[params[1]]["exp_avg"] = torch.ones_like(params[1])


def fill_moments(params, optimizer):
    optimizer.state[params[0]]["exp_avg_sq"].fill_(0.5)


def change_a_step_count(params, optimizer):
    optimizer.state[params[0]]["step"].fill_(1.0)


def replace_a_step_count(params, optimizer):
    optimizer.state[params[0]]["step"] = torch.tensor(7.0)


def empty_one_state(params, optimizer):
    optimizer.state[params[1]] = {}


def clear_one_state(params, optimizer):
    optimizer.state[params[1]].clear()


def pop_one_state(params, optimizer):
    optimizer.state.pop(params[2])


def clear_all(params, optimizer):
    optimizer.state.clear()


def move_weights(params, optimizer):
    for p in params:
        p.data = p.data.clone()


def exchange_a_parameter(params, optimizer):
    """As code does that grows a parameter while it trains."""
    old = params[0]
    new = torch.nn.Parameter(torch.cat([old.detach(), torch.ones(1, 5)]))
    state = optimizer.state.pop(old)
    for name in ("exp_avg", "exp_avg_sq"):
        state[name] = torch.cat([state[name], torch.zeros(1, 5)])
    optimizer.state[new] = state
    optimizer.param_groups[0]["params"][0] = params[0] = new


def transpose_a_weight(params, optimizer):
    params[0].data = params[0].data.T.contiguous().T


def turn_to_float64(params, optimizer):
    params[1].data = params[1].data.double()
    state = optimizer.state[params[1]]
    for name in ("exp_avg", "exp_avg_sq"):
        state[name] = state[name].double()


def change_options(params, optimizer):
    optimizer.param_groups[0].update(lr=0.1, betas=(0.5, 0.9), weight_decay=0.3)


def copy_itself(params, optimizer):
    copy.deepcopy(optimizer)


CHANGES = [
    replace_moments,
    replace_one_moment,
    fill_moments,
    change_a_step_count,
    replace_a_step_count,
    empty_one_state,
    clear_one_state,
    pop_one_state,
    clear_all,
    move_weights,
    exchange_a_parameter,
    transpose_a_weight,
    turn_to_float64,
    change_options,
    copy_itself,
]


@KINDS
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("change", CHANGES)
def test_steps_see_what_others_change(kind, path, change):
    params, optimizer = twins(kind, path)
    set_gradients(params, 5)
    change(params, optimizer)
    check_next_steps(kind, path, params, optimizer)


@KINDS
@pytest.mark.parametrize("path", PATHS)
def test_gradients_that_come_and_go_change_nothing_else(kind, path):
    params, optimizer = twins(kind, path)
    alone = [torch.nn.Parameter(p.detach().clone()) for p in params]
    others = [kind([p], lr=0.01, **path) for p in alone]
    for p, q, other in zip(params, alone, others, strict=True):
        other.state[q] = copy.deepcopy(optimizer.state[p])
    for step in range(6):
        set_gradients(params, step)
        set_gradients(alone, step)
        for index in range(len(params)):
            if (step + index) % 3 == 0:
                params[index].grad = alone[index].grad = None
        optimizer.step()
        for other in others:
            other.step()
    for p, q in zip(params, alone, strict=True):
        assert torch.equal(p, q)


@KINDS
def test_gradients_may_be_laid_out_otherwise_than_weights(kind):
    for weight in (torch.randn(4, 6), torch.randn(6, 4).T, torch.randn(4, 12)[:, ::2]):
        plain = torch.nn.Parameter(weight.contiguous())
        odd = torch.nn.Parameter(weight)
        optimizers = kind([plain], foreach=False), kind([odd])
        for step in range(4):
            gradient = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
            plain.grad = gradient
            odd.grad = gradient if step % 2 else gradient.T.contiguous().T
            for optimizer in optimizers:
                optimizer.step()
        torch.testing.assert_close(plain, odd, rtol=1e-6, atol=1e-7)


@KINDS
def test_no_tensor_of_the_state_is_held_besides_the_state(kind):
    params, optimizer = twins(kind, {"fused": True})
    moments = [s["exp_avg"] for s in optimizer.state.values()]
    grads = [p.grad for p in params]
    refs = [weakref.ref(tensor) for tensor in (*moments, *grads)]
    for state in optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].clone()
    optimizer.zero_grad()
    del moments, grads, state
    gc.collect()
    assert [ref() for ref in refs] == [None] * len(refs)


@KINDS
def test_steps_that_follow_each_other_make_no_new_layout(kind, monkeypatch):
    params, optimizer = twins(kind, {"fused": True})
    made = []
    monkeypatch.setattr(
        "drivetrain_optim.batched._batched.make_layout", lambda *a, **k: made.append(a)
    )
    for step in range(3):
        optimizer.zero_grad()
        set_gradients(params, step)
        optimizer.step()
    assert made == []


@KINDS
@pytest.mark.parametrize("path", PATHS)
def test_parameter_group_that_is_added_later_is_stepped(kind, path):
    params, optimizer = twins(kind, path)
    late = torch.nn.Parameter(torch.ones(4))
    optimizer.add_param_group({"params": [late], "lr": 0.5})
    late.grad = torch.ones(4)
    optimizer.step()
    assert (late != 1).all()
    assert optimizer.state[late]["step"] == 1
    assert optimizer.state[params[0]]["step"] == 4


@KINDS
@pytest.mark.parametrize("path", PATHS)
def test_check_finite_names_the_tensor_and_changes_nothing(kind, path):
    if path.get("capturable"):
        pytest.skip("check_finite waits, which capturable forbids")
    params = parameters()
    named = [(f"layer.{n}", p) for n, p in enumerate(params)]
    optimizer = kind(named, check_finite=True, **path)
    set_gradients(params, 0)
    optimizer.step()
    before = copy.deepcopy((params, optimizer.state_dict()))
    set_gradients(params, 1)
    params[1].grad[3] = float("nan")
    params[1].grad[4] = float("inf")
    with pytest.raises(ArithmeticError, match=r"but 2 of 7 elements .* layer\.1 are"):
        optimizer.step()
    for p, q in zip(params, before[0], strict=True):
        assert torch.equal(p, q)
    for key, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            assert torch.equal(value, before[1]["state"][key][name])


@KINDS
def test_capturable_takes_a_rate_in_a_tensor_and_counts_on_the_device(kind):
    params, alone = parameters(), parameters()
    rate = torch.tensor(0.01)
    optimizer = kind(params, lr=rate, capturable=True)
    plain = kind(alone, lr=0.01, foreach=False)
    for step in range(4):
        rate.fill_(0.01 * (step + 1))
        plain.param_groups[0]["lr"] = 0.01 * (step + 1)
        set_gradients(params, step)
        set_gradients(alone, step)
        optimizer.step()
        plain.step()
    for p, q in zip(params, alone, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
