"""The two passes of a step: the weights between them, the gradients, and what is kept."""

import numpy as np
import pytest
import torch
from wsam_reference import (
    ADAMW,
    DRIVERS,
    MODES,
    SGD,
    SHAPES,
    START,
    drive,
    flat,
    loss_of,
    numpy_gradient,
    parameters,
    run,
    step_by_hand,
    torch_base,
)

from drivetrain_optim.wsam._wsam import WSAM


def test_wsam_passes_are_two_and_the_first_loss_is_returned():
    params = parameters()
    wsam = WSAM(torch_base(params, **SGD), rho=0.1)
    losses = []

    def closure():  # does not clear gradients itself
        assert torch.is_grad_enabled()
        losses.append(loss_of(params, 0))
        losses[-1].backward()
        return losses[-1]

    for p in params:
        p.grad = torch.full_like(p, 1e6)  # cannot be made again by the second pass
    with torch.no_grad(), pytest.warns(UserWarning, match="accumulated before"):
        result = wsam.step(closure)
    assert len(losses) == 2
    assert result is losses[0]
    assert losses[1].item() > losses[0].item()
    expected = run(1, rho=0.1)
    for one, two in zip(params, expected, strict=True):
        assert torch.equal(one, two)


def train_by_closures(make, every, steps=6, **options):
    """Trains with accumulation, as a framework that calls step() with a closure does."""
    params = parameters()
    optimizer = make(params, **options)
    for index in range(every * steps):

        def closure(index=index):
            loss = loss_of(params, index) / every
            loss.backward()
            return loss

        if (index + 1) % every:
            closure()
        else:
            optimizer.step(closure)
            optimizer.zero_grad()
    return params


@pytest.mark.parametrize("every", [1, 2, 4])
@pytest.mark.parametrize("base", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_wsam_without_sharpness_accumulates_as_its_base(every, base):
    def wrapped(params, **options):
        return WSAM(torch_base(params, **base), **options)

    expected = train_by_closures(lambda params: torch_base(params, **base), every)
    found = train_by_closures(wrapped, every, gamma=0.0)
    assert all(map(torch.equal, found, expected))


def test_wsam_says_what_two_passes_cannot_accumulate():
    def wrapped(params):
        return WSAM(torch_base(params, **SGD), rho=0.1)

    train_by_closures(wrapped, 1)
    with pytest.warns(UserWarning, match=r"drops the gradients.*perturb"):
        train_by_closures(wrapped, 2)


def test_wsam_counts_what_is_accumulated_before_a_step_of_one_pass():
    params = parameters()
    wsam = WSAM(torch_base(params, **SGD), rho=0.1, every_k=3)
    wsam.step(lambda: loss_of(params, 0).backward())
    wsam.zero_grad()
    assert not wsam.needs_second_pass
    loss_of(params, 1).backward()
    alone = [p.grad.clone() for p in params]
    wsam.step(lambda: loss_of(params, 1).backward())
    for param, grad in zip(params, alone, strict=True):
        assert torch.equal(param.grad, 2 * grad)
    # Used by the step, these are cleared before the next one.
    expected = torch.autograd.grad(loss_of(params, 2), params)
    wsam.step(lambda: loss_of(params, 2).backward())
    for param, grad in zip(params, expected, strict=True):
        assert torch.equal(param.grad, grad)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_wsam_weights_return_to_the_bit(mode, dtype):
    params = parameters(dtype, start=START * (1 if dtype is torch.bfloat16 else 1e3))
    before = [p.detach().clone() for p in params]
    wsam = WSAM(torch_base(params, **SGD), **mode)
    loss_of(params, 0).backward()
    with wsam.perturb():
        assert not all(map(torch.equal, params, before))
        assert all(p.grad is None for p in params)
    assert all(map(torch.equal, params, before))


def test_wsam_perturbation_has_the_radius_and_direction():
    params = parameters()
    wsam = WSAM(torch_base(params, **SGD), rho=0.3)
    loss_of(params, 0).backward()
    g = numpy_gradient(0)(START)
    with wsam.perturb():
        np.testing.assert_allclose(
            flat(params) - START, 0.3 * g / np.linalg.norm(g), rtol=1e-12
        )


def test_wsam_adaptive_perturbation_is_that_of_asam():
    params = parameters()
    wsam = WSAM(torch_base(params, **SGD), rho=0.3, adaptive=True)
    loss_of(params, 0).backward()
    g = numpy_gradient(0)(START)
    with wsam.perturb():
        expected = 0.3 * START**2 * g / np.linalg.norm(START * g)
        np.testing.assert_allclose(flat(params) - START, expected, rtol=1e-12)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_wsam_step_leaves_the_second_gradient_as_backward_made_it(mode):
    params = parameters()
    wsam = WSAM(torch_base(params, **SGD), **mode)
    for step in range(3):
        wsam.zero_grad()
        loss_of(params, step).backward()
        if wsam.needs_second_pass:
            with wsam.perturb():
                loss_of(params, step).backward()
        grads = [p.grad for p in params]
        copies = [g.clone() for g in grads]
        wsam.step()
        assert all(p.grad is g for p, g in zip(params, grads, strict=True))
        assert all(map(torch.equal, grads, copies))


def test_wsam_gradient_buffers_of_the_user_may_be_reused_by_backward():
    params = parameters()
    buffers = [torch.zeros_like(p) for p in params]
    wsam = WSAM(torch_base(params, **SGD))
    for step in range(3):
        for p, b in zip(params, buffers, strict=True):
            p.grad = b.zero_()
        loss_of(params, step).backward()
        with wsam.perturb():
            for p, b in zip(params, buffers, strict=True):
                p.grad = b.zero_()
            loss_of(params, step).backward()
        wsam.step()
    for one, two in zip(params, run(3), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_wsam_zero_gradients_move_and_break_nothing(mode):
    params = parameters()
    wsam = WSAM(torch.optim.SGD(params, lr=0.1), **mode)
    for _ in range(3):
        step_by_hand(wsam, params, [0.0] * 4, [0.0] * 4)
    assert np.array_equal(flat(params), START)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_wsam_without_any_gradient_does_nothing(mode):
    params = parameters()
    wsam = WSAM(torch_base(params, **SGD), **mode)
    for _ in range(3):
        if wsam.needs_second_pass:
            with wsam.perturb():
                pass
        wsam.step()
    assert np.array_equal(flat(params), START)


@pytest.mark.parametrize("decouple", [True, False])
@pytest.mark.parametrize("every_k", [1, 2])
def test_wsam_parameters_with_one_gradient_of_two(decouple, every_k):
    params = [torch.nn.Parameter(torch.ones(1, dtype=torch.float64)) for _ in range(4)]
    wsam = WSAM(
        torch.optim.SGD(params, lr=0.1), gamma=0.5, decouple=decouple, every_k=every_k
    )
    step_by_hand(wsam, params, [1.0, 1.0, None, None], [3.0, None, 3.0, None])
    moved = [round(1 - p.item(), 12) for p in params]
    assert moved == [0.3, 0.1, 0.0, 0.0]
    if every_k == 2:
        wsam.zero_grad()
        params[1].grad = torch.ones(1, dtype=torch.float64)
        params[2].grad = torch.ones(1, dtype=torch.float64)
        wsam.step()  # neither has a direction
        moved = [round(1 - p.item(), 12) for p in params]
        assert moved == [0.3, 0.2, 0.1, 0.0]


def test_wsam_non_contiguous_parameters_are_stepped():
    weight = torch.arange(6.0, dtype=torch.bfloat16).reshape(2, 3)
    turned, plain = weight.t(), weight.t().contiguous()
    results = []
    for w in (turned, plain):
        param = torch.nn.Parameter(w)
        wsam = WSAM(torch.optim.SGD([param], lr=0.1), rho=0.5, every_k=2)
        for _ in range(4):
            drive(wsam, lambda p=param: (p.float() ** 3).sum().sqrt())
        results.append(param.detach())
    assert torch.equal(*results)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_wsam_step_reads_no_value_from_the_device(mode, kind):
    params = [torch.nn.Parameter(torch.empty(s, device="meta")) for s in SHAPES]
    wsam = WSAM(torch_base(params, kind, lr=0.1), **mode)
    for _ in range(3):
        for p in params:
            p.grad = torch.empty_like(p)
        if wsam.needs_second_pass:
            with wsam.perturb():
                for p in params:
                    p.grad = torch.empty_like(p)
        wsam.step()  # on a meta tensor, reading a value raises
    assert wsam.param_groups[0]["wsam_step"] == 3


def test_wsam_parts_bound_temporaries_and_change_nothing(monkeypatch):
    whole = run(3, every_k=2)
    monkeypatch.setattr("drivetrain_optim.batched._batch._BATCH_NUMEL", {"cpu": 2})
    parts = run(3, every_k=2)
    for one, two in zip(whole, parts, strict=True):
        assert torch.equal(one, two)


def test_wsam_hooks_run_once_a_step():
    params = parameters()
    wsam = WSAM(torch_base(params, **SGD))
    seen = []
    wsam.register_step_pre_hook(lambda *_: seen.append("before"))
    wsam.register_step_post_hook(lambda *_: seen.append("after"))
    wsam.base.register_step_post_hook(lambda *_: seen.append("base"))
    for driver in DRIVERS:
        drive(wsam, lambda: loss_of(params, 0), driver)
    assert seen == ["before", "base", "after"] * 3


def test_wsam_autocast_sees_the_perturbed_weights():
    layer = torch.nn.Linear(4, 4, bias=False)
    wsam = WSAM(torch.optim.SGD(layer.parameters(), lr=0.1), rho=5.0)
    x = torch.ones(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        first = layer(x)
        first.float().square().sum().backward()
        with wsam.perturb():
            second = layer(x)
            second.float().square().sum().backward()
        wsam.step()
        third = layer(x)
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)


def test_wsam_memory_is_two_buffers_between_the_passes_and_none_after():
    params = [torch.nn.Parameter(torch.ones(100))]
    wsam = WSAM(torch.optim.SGD(params, lr=0.1))
    params[0].sum().backward()
    with wsam.perturb():
        pending = wsam._pending
        held = [*pending.firsts.values(), *pending.saved]
        assert [t.numel() for t in held] == [100, 100]
        params[0].sum().backward()
    assert wsam._pending.saved is None
    wsam.step()
    assert wsam._pending is None


def test_wsam_direction_lends_its_memory_to_the_first_gradient():
    params = parameters(shapes=SHAPES)
    wsam = WSAM(torch_base(params, **SGD), every_k=2)
    for step in range(2):
        drive(wsam, lambda step=step: loss_of(params, step))
    before = wsam.state[params[0]]["wsam_direction"]
    assert wsam.needs_second_pass
    loss_of(params, 2).backward()
    with wsam.perturb():
        assert wsam._pending.firsts[params[0]] is before
    wsam.restore()
    assert wsam.needs_second_pass


def test_wsam_pass_that_is_not_due_starts_a_new_cycle():
    params = parameters()
    wsam = WSAM(torch_base(params, **SGD), every_k=3)
    drive(wsam, lambda: loss_of(params, 0))
    due = []
    wsam.zero_grad()
    loss_of(params, 1).backward()
    direction = wsam.state[params[0]]["wsam_direction"].clone()
    with pytest.raises(KeyError), wsam.perturb():
        raise KeyError
    assert torch.equal(wsam.state[params[0]]["wsam_direction"], direction)
    loss_of(params, 1).backward()
    with wsam.perturb():
        loss_of(params, 1).backward()
    wsam.step()
    for step in range(2, 5):
        due.append(wsam.needs_second_pass)
        drive(wsam, lambda step=step: loss_of(params, step))
    assert due == [False, False, True]
    assert not torch.equal(wsam.state[params[0]]["wsam_direction"], direction)
