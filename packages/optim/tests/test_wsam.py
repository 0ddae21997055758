"""WSAM against an independent recurrence, however it is driven."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wsam_reference import (
    ADAMW,
    BASES,
    DRIVERS,
    MODES,
    SGD,
    START,
    Recurrence,
    drive,
    fail_after_backward,
    flat,
    loss_of,
    numpy_gradient,
    parameters,
    run,
    torch_base,
)

from drivetrain_optim.wsam._wsam import WSAM


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_wsam_float64_equals_the_paper(mode, base):
    reference = Recurrence(START, base, **mode)
    for step in range(20):
        reference.step(numpy_gradient(step))
    params = run(20, base, **mode)
    np.testing.assert_allclose(flat(params), reference.w, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_wsam_drivers_give_the_same_bits(mode, dtype):
    block, *others = [run(5, driver=d, dtype=dtype, **mode) for d in DRIVERS]
    assert not np.array_equal(flat(block), flat(parameters(dtype)))
    for other in others:
        for one, two in zip(block, other, strict=True):
            assert torch.equal(one, two)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("mode", [{}, {"decouple": False}, {"max_grad_norm": 1e9}])
def test_wsam_without_weight_is_the_base_to_the_bit(mode, base, driver):
    alone = parameters()
    optimizer = torch_base(alone, **base)
    for step in range(5):
        optimizer.zero_grad()
        loss_of(alone, step).backward()
        optimizer.step()
    params = run(5, base, driver, gamma=0.0, **mode)
    for one, two in zip(params, alone, strict=True):
        assert torch.equal(one, two)


def test_wsam_without_weight_may_still_make_a_second_pass():
    alone, params = parameters(), parameters()
    optimizer = torch_base(alone, **SGD)
    wsam = WSAM(torch_base(params, **SGD), gamma=0.0)
    assert not wsam.needs_second_pass
    for step in range(3):
        optimizer.zero_grad()
        loss_of(alone, step).backward()
        optimizer.step()
        wsam.zero_grad()
        loss_of(params, step).backward()
        with wsam.perturb():
            loss_of(params, step).backward()
        wsam.step()
    for one, two in zip(params, alone, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("base", BASES)
def test_wsam_at_one_half_is_sam_to_the_bit(base):
    params, sam = run(4, base, gamma=0.5, decouple=False), parameters()
    optimizer = torch_base(sam, **base)
    for step in range(4):
        optimizer.zero_grad()
        loss_of(sam, step).backward()
        norm = torch.stack([p.grad.square().sum() for p in sam]).sum().sqrt()
        saved = [p.detach().clone() for p in sam]
        with torch.no_grad():
            for p in sam:
                p.add_(p.grad * (0.05 * (1 / (norm + 1e-12))))
        optimizer.zero_grad()
        loss_of(sam, step).backward()
        with torch.no_grad():
            for p, w in zip(sam, saved, strict=True):
                p.copy_(w)
        optimizer.step()
    np.testing.assert_allclose(flat(params), flat(sam), rtol=1e-14)


def test_wsam_groups_keep_their_own_rho_gamma_and_rate():
    params = parameters()
    groups = [
        {"params": params[:1], "rho": 0.3, "gamma": 0.0, "lr": 0.2},
        {"params": params[1:], "gamma": 0.5},
    ]
    wsam = WSAM(torch.optim.SGD(groups, lr=0.1), rho=0.1, gamma=0.9)
    drive(wsam, lambda: loss_of(params, 0))
    g = numpy_gradient(0)(START)
    rho, lr = np.r_[[0.3] * 3, [0.1] * 5], np.r_[[0.2] * 3, [0.1] * 5]
    a = np.r_[[0.0] * 3, [1.0] * 5]
    gs = numpy_gradient(0)(START + rho * g / np.linalg.norm(g))
    np.testing.assert_allclose(
        flat(params), START - lr * g - lr * a * (gs - g), rtol=1e-13
    )


def test_wsam_base_with_an_option_called_rho_keeps_it():
    params = parameters()
    wsam = WSAM(torch.optim.Adadelta(params, rho=0.8), rho=0.3)
    group = wsam.param_groups[0]
    assert (group["rho"], group["wsam_rho"], group["gamma"]) == (0.8, 0.3, 0.9)
    loss_of(params, 0).backward()
    with wsam.perturb():
        moved = np.linalg.norm(flat(params) - START)
    np.testing.assert_allclose(moved, 0.3, rtol=1e-12)


@pytest.mark.parametrize("decouple", [True, False])
def test_wsam_maximizing_equals_minimizing_the_negative(decouple):
    down, up = parameters(), parameters()
    minimize = WSAM(torch.optim.SGD(down, lr=0.1), rho=0.3, decouple=decouple)
    maximize = WSAM(
        torch.optim.SGD(up, lr=0.1, maximize=True), rho=0.3, decouple=decouple
    )
    for step in range(4):
        drive(minimize, lambda step=step: loss_of(down, step))
        drive(maximize, lambda step=step: -loss_of(up, step))
    for one, two in zip(down, up, strict=True):
        assert torch.equal(one, two)


def test_wsam_tensor_rate_equals_the_number():
    number = run(4, {**ADAMW, "lr": 0.125})
    tensor = run(4, {**ADAMW, "lr": torch.tensor(0.125), "foreach": False})
    np.testing.assert_allclose(flat(number), flat(tensor), rtol=1e-6)


def test_wsam_follows_schedules_of_rate_and_radius():
    params = parameters()
    wsam = WSAM(torch_base(params, **SGD))
    schedule = torch.optim.lr_scheduler.LambdaLR(wsam, lambda t: 1 / (1 + t))
    reference = Recurrence(START, SGD)
    for step in range(6):
        reference.base.lr = SGD["lr"] / (1 + step)
        reference.rho = wsam.param_groups[0]["rho"] = 0.1 * (step + 1)
        reference.step(numpy_gradient(step))
        drive(wsam, lambda step=step: loss_of(params, step), DRIVERS[step % 3])
        schedule.step()
    np.testing.assert_allclose(flat(params), reference.w, rtol=1e-11)


def test_wsam_works_with_one_cycle_schedules():
    params = parameters()
    wsam = WSAM(torch_base(params, **SGD))
    schedule = torch.optim.lr_scheduler.OneCycleLR(wsam, 0.1, total_steps=5)
    for step in range(4):
        drive(wsam, lambda step=step: loss_of(params, step))
        schedule.step()
    assert wsam.param_groups[0]["momentum"] != SGD["momentum"]


def test_wsam_micro_batches_replayed_equal_one_batch():
    rows = torch.randn(8, 3, dtype=torch.float64, generator=torch.manual_seed(0))
    results = []
    for batches in ([rows], list(rows.split(2))):
        torch.manual_seed(1)
        model = torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)
        ).double()
        wsam = WSAM(torch_base(model.parameters(), **ADAMW), rho=0.5)
        for _ in range(3):
            wsam.zero_grad()
            for x in batches:
                (model(x).square().sum() / 8).backward()
            with wsam.perturb():
                for x in batches:
                    (model(x).square().sum() / 8).backward()
            wsam.step()
        results.append(flat(model.parameters()))
    np.testing.assert_allclose(*results, rtol=1e-9)


events = st.sampled_from(
    ["step", "fail", "fail late", "drop", "empty block", "save", "copy", "half"]
)


@settings(max_examples=25, deadline=None)
@given(
    sequence=st.lists(events, min_size=1, max_size=10),
    mode=st.sampled_from(MODES),
    base=st.sampled_from([SGD, ADAMW]),
    driver=st.sampled_from(DRIVERS),
)
def test_wsam_any_sequence_keeps_the_weights_of_the_paper(sequence, mode, base, driver):
    params = parameters()
    wsam = WSAM(torch_base(params, **base), **mode)
    reference = Recurrence(START, base, **mode)
    step = 0
    for event in sequence:
        before = flat(params)
        if event == "step":
            wsam.zero_grad()
            drive(wsam, lambda step=step: loss_of(params, step), driver)
            reference.step(numpy_gradient(step))
            step += 1
            continue
        wsam.zero_grad()
        loss_of(params, step).backward()
        if event == "fail":
            with pytest.raises(KeyError), wsam.perturb():
                raise KeyError
        elif event == "fail late":
            with pytest.raises(KeyError), wsam.perturb():
                fail_after_backward(params, step)
        elif event == "drop":
            wsam.first_step()
            wsam.restore()
        elif event == "half":
            with wsam.perturb():
                loss_of(params, step).backward()
            wsam.zero_grad()
        elif event == "save":
            saved = wsam.state_dict()
            wsam = WSAM(torch_base(params, **base))
            wsam.load_state_dict(saved)
        elif event == "copy":
            with wsam.perturb():
                wsam.state_dict()
            wsam.restore()
        assert np.array_equal(flat(params), before)
    np.testing.assert_allclose(flat(params), reference.w, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("every_k", [1, 2])
def test_wsam_keeps_its_gradient_from_a_base_that_writes_into_it(every_k):
    ends = []
    for foreach in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 3)
        options = {"momentum": 0.9, "nesterov": True, "foreach": foreach}
        base = torch.optim.SGD(model.parameters(), lr=0.05, **options)
        wsam = WSAM(base, rho=0.1, every_k=every_k)
        data = torch.randn(8, 5)

        def closure(model=model, data=data):
            model(data).square().mean().backward()

        for _ in range(6):
            wsam.step(closure)
        ends.append([p.detach() for p in model.parameters()])
    for plain, at_once in zip(*ends, strict=True):
        torch.testing.assert_close(at_once, plain)
