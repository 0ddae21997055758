"""WSAM against an independent recurrence, however it is driven."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_optim._wsam import WSAM

SHAPES = [(3,), (2, 2), (), (0,)]
SIZES = [int(np.prod(s)) for s in SHAPES]
RNG = np.random.default_rng(7)
HALF = RNG.standard_normal((8, 8))
BOWL = HALF @ HALF.T / 8
START = RNG.standard_normal(8)

SGD = {"kind": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
ADAMW = {"kind": "adamw", "lr": 0.02, "betas": (0.8, 0.9), "weight_decay": 0.1}
BASES = [pytest.param(SGD, id="sgd"), pytest.param(ADAMW, id="adamw")]
DRIVERS = ["block", "two steps", "closure"]
MODES = [
    {},
    {"decouple": False},
    {"adaptive": True},
    {"adaptive": True, "decouple": False, "rho": 0.1},
    {"gamma": 0.5, "rho": 0.2},
    {"max_grad_norm": 0.5},
    {"max_grad_norm": 0.5, "decouple": False},
    {"every_k": 2},
    {"every_k": 3, "decouple": False},
    {"every_k": 3, "max_grad_norm": 0.5},
    {"every_k": 2, "max_grad_norm": 0.5, "decouple": False, "adaptive": True},
]


class Base:
    """SGD with momentum or AdamW in numpy, as their papers write them."""

    def __init__(self, kind, lr, weight_decay, momentum=0.9, betas=(0.9, 0.999)):
        self.kind, self.lr, self.wd = kind, lr, weight_decay
        self.momentum, self.betas = momentum, betas
        self.m = self.v = None
        self.t = 0

    def step(self, w, g):
        self.t += 1
        if self.kind == "sgd":
            g = g + self.wd * w
            self.m = g if self.m is None else self.momentum * self.m + g
            return w - self.lr * self.m
        b1, b2 = self.betas
        self.m = (0 if self.m is None else self.m) * b1 + (1 - b1) * g
        self.v = (0 if self.v is None else self.v) * b2 + (1 - b2) * g**2
        mhat, vhat = self.m / (1 - b1**self.t), self.v / (1 - b2**self.t)
        return w * (1 - self.lr * self.wd) - self.lr * mhat / (np.sqrt(vhat) + 1e-8)


class Recurrence:
    """WSAM in numpy float64, all weights in one vector; no line of torch."""

    def __init__(
        self,
        w,
        base,
        rho=0.05,
        gamma=0.9,
        adaptive=False,
        decouple=True,
        eps=1e-12,
        max_grad_norm=None,
        every_k=1,
    ):
        self.w, self.base = np.array(w, dtype=np.float64), Base(**base)
        self.rho, self.a = rho, gamma / (1 - gamma)
        self.adaptive, self.decouple, self.eps = adaptive, decouple, eps
        self.bound, self.k = max_grad_norm, every_k
        self.v = self.norm_at_v = None
        self.t = 0

    def clipped(self, g):
        if self.bound is None:
            return g
        return g * min(1, self.bound / (np.linalg.norm(g) + 1e-6))

    def step(self, gradient):
        g = gradient(self.w)
        if self.t % self.k == 0:
            scaled = np.abs(self.w) * g if self.adaptive else g
            e = self.rho * g / (np.linalg.norm(scaled) + self.eps)
            gs = self.clipped(
                gradient(self.w + (self.w**2 * e if self.adaptive else e))
            )
            g = self.clipped(g)
            difference = gs - g
            self.norm_at_v = np.linalg.norm(g)
            self.v = gs - (gs @ g) / (g @ g) * g
        else:
            g = self.clipped(g)
            difference = np.linalg.norm(g) / self.norm_at_v * self.v
        if self.decouple:
            lr = self.base.lr
            self.w = self.base.step(self.w, g) - lr * self.a * difference
        else:
            self.w = self.base.step(self.w, g + self.a * difference)
        self.t += 1


def noise(step):
    return 0.3 * np.random.default_rng(step).standard_normal(8)


def numpy_gradient(step):
    return lambda w: BOWL @ w - np.sin(2 * w) + noise(step)


def parameters(dtype=torch.float64, shapes=SHAPES, start=START):
    pieces = np.split(np.asarray(start), np.cumsum(SIZES)[:-1])
    return [
        torch.nn.Parameter(torch.as_tensor(p.copy()).reshape(s).to(dtype))
        for p, s in zip(pieces, shapes, strict=True)
    ]


def flat(params):
    return torch.cat([p.detach().reshape(-1) for p in params]).double().numpy()


def loss_of(params, step):
    w = torch.cat([p.reshape(-1) for p in params])
    bowl = torch.as_tensor(BOWL).to(w.dtype)
    wave = 0.5 * torch.cos(2 * w).sum() + torch.as_tensor(noise(step)).to(w.dtype) @ w
    return 0.5 * w @ (bowl @ w) + wave


def fail_after_backward(params, step):
    loss_of(params, step).backward()
    raise KeyError


def torch_base(params, kind, **options):
    make = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[kind]
    return make(params, **options)


def drive(wsam, loss, driver="block"):
    """One step; `loss` computes the loss at the weights as they are."""
    if driver == "closure":

        def closure():
            wsam.zero_grad()
            value = loss()
            value.backward()
            return value

        return wsam.step(closure)
    wsam.zero_grad()
    loss().backward()
    if not wsam.needs_second_pass:
        wsam.step()
    elif driver == "block":
        with wsam.perturb():
            loss().backward()
        wsam.step()
    else:
        wsam.first_step()
        loss().backward()
        wsam.second_step()
    return None


def run(num_steps, base=SGD, driver="block", dtype=torch.float64, **options):
    params = parameters(dtype)
    wsam = WSAM(torch_base(params, **base), **options)
    for step in range(num_steps):
        drive(wsam, lambda step=step: loss_of(params, step), driver)
    return params


def step_by_hand(wsam, params, first, second):
    """One step with gradients that are given; None for none."""
    wsam.zero_grad()
    for p, g in zip(params, first, strict=True):
        p.grad = None if g is None else torch.full_like(p, g)
    with wsam.perturb():
        for p, g in zip(params, second, strict=True):
            p.grad = None if g is None else torch.full_like(p, g)
    wsam.step()


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
        p.grad = torch.full_like(p, 1e6)  # left over, must not be counted
    with torch.no_grad():
        result = wsam.step(closure)
    assert len(losses) == 2
    assert result is losses[0]
    assert losses[1].item() > losses[0].item()
    expected = run(1, rho=0.1)
    for one, two in zip(params, expected, strict=True):
        assert torch.equal(one, two)


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
    monkeypatch.setattr("drivetrain_optim._wsam_perturb._PART_NUMEL", {"cpu": 2})
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
