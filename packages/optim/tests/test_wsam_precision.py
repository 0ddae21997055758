"""Weights narrower than float32: what is small must not be lost to rounding."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_optim import AGD
from drivetrain_optim.wsam._perturb import Rounding
from drivetrain_optim.wsam._wsam import WSAM

NARROW = [torch.bfloat16, torch.float16]


def weight(dtype, numel=20_000, scale=0.02):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(numel, generator=generator) * scale
    return torch.nn.Parameter(values.to(dtype))


def gradient(numel=20_000, seed=1):
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def make(param, rho=0.001, lr=0.1, **options):
    return WSAM(torch.optim.SGD([param], lr=lr), rho=rho, **options)


def shift(param, wsam, grad):
    """How far the perturbation goes, in float64."""
    param.grad = grad.to(param.dtype)
    before = param.detach().double()
    with wsam.perturb():
        moved = param.detach().double() - before
    wsam.restore()
    return moved


@pytest.mark.parametrize("dtype", NARROW)
def test_wsam_narrow_perturbation_has_the_radius_along_the_gradient(dtype):
    # rho / sqrt(n) is a twentieth of the distance between neighbours near 0.02.
    param, grad = weight(dtype), gradient().to(dtype)
    along = grad.double() / grad.double().norm()
    projections = []
    for step in range(20):
        wsam = make(param)
        wsam.param_groups[0]["wsam_step"] = step
        projections.append(float(shift(param, wsam, grad) @ along))
    nearest = (param.detach().double() + 0.001 * along).to(
        dtype
    ).double() - param.detach().double()
    assert abs(np.mean(projections) / 0.001 - 1) < 0.02
    assert float(nearest @ along) < 0.95 * 0.001, "to the nearest, much would be lost"


@pytest.mark.parametrize("dtype", NARROW)
def test_wsam_narrow_perturbation_is_one_of_the_neighbours(dtype):
    param, grad = weight(dtype, 500), gradient(500)
    wsam = make(param, rho=0.01)
    exact = (
        param.detach().float()
        + 0.01 * grad.to(dtype).float() / grad.to(dtype).float().norm()
    )
    param.grad = grad.to(dtype)
    with wsam.perturb():
        error = (param.detach().float() - exact).abs()
    near = exact.to(dtype)
    gap = (
        torch.from_numpy(np.spacing(near.float().numpy()))
        * 2 ** ({torch.bfloat16: 16, torch.float16: 13}[dtype])
    ).abs()
    assert bool((error <= gap * (1 + 1e-5)).all())


def test_wsam_random_bits_are_its_own_and_repeat():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    param, grad = weight(torch.bfloat16), gradient()
    wsam = make(param)
    one = shift(param, wsam, grad)
    again = shift(param, wsam, grad)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, again), "a pass that is repeated is the same pass"
    wsam.param_groups[0]["wsam_step"] = 1
    assert not torch.equal(one, shift(param, wsam, grad))


@pytest.mark.parametrize("dtype", NARROW)
def test_wsam_small_sharpness_term_is_not_lost(dtype):
    # The term is 1/40 of the distance between neighbours; 200 steps move by 5 of them.
    param = torch.nn.Parameter(torch.ones(4096, dtype=dtype))
    spacing = torch.finfo(dtype).eps
    wsam = make(param, lr=1.0, gamma=0.5)
    for _ in range(200):
        param.grad = torch.zeros_like(param)
        with wsam.perturb():
            param.grad = torch.full_like(param, -spacing / 40)
        wsam.step()
    moved = (param.detach().double() - 1).mean().item()
    assert abs(moved / (5 * spacing) - 1) < 0.02


class WithMaster(torch.optim.Optimizer):
    """SGD that keeps a float32 copy, under the name that WSAM looks for."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "master" not in state:
                    state["master"] = p.detach().float()
                state["master"].sub_(p.grad.float(), alpha=group["lr"])
                p.copy_(state["master"])


@pytest.mark.parametrize("every_k", [1, 2])
def test_wsam_term_goes_into_the_master_exactly(every_k):
    param = torch.nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
    wsam = WSAM(WithMaster([param], lr=1.0), gamma=0.5, every_k=every_k)
    master = torch.ones(64)
    tiny = torch.linspace(1, 2, 64).bfloat16() * 2**-14
    direction = None
    for step in range(30):
        wsam.zero_grad()
        first = gradient(64, seed=step).bfloat16() * 2**-12
        param.grad = first
        if wsam.needs_second_pass:
            with wsam.perturb():
                param.grad = first + tiny
            g, gs = first.double(), (first + tiny).double()
            direction = (gs - gs @ g / (g @ g) * g) / g.norm()
            difference = gs - g
        else:
            difference = first.double().norm() * direction
        wsam.step()
        master -= first.float()
        master -= difference.float()
        expected = wsam.state[param]["master"]
        # The direction itself is kept in bf16.
        atol = 1e-6 if every_k == 1 else 2e-6
        torch.testing.assert_close(expected, master, rtol=0, atol=atol)
        assert torch.equal(param, expected.bfloat16())
        master.copy_(expected)


@pytest.mark.parametrize("foreach", [None, True])
def test_wsam_over_agd_with_masters_follows_float32(foreach):
    narrow = weight(torch.bfloat16, 256, 1.0)
    wide = torch.nn.Parameter(narrow.detach().float())
    for p in (narrow, wide):
        base = AGD([p], lr=1e-3, master_weights=True, foreach=foreach)
        wsam = WSAM(base, rho=0.5)
        for _ in range(40):
            wsam.step(lambda p=p: (p.float() ** 4).mean().mul(20).backward())
    master = base.state.get(wide, {}).get("master")
    assert master is None, "float32 weights are their own masters"
    error = (narrow.detach().float() - wide.detach()).abs()
    spacing = wide.detach().abs() * 2**-8
    assert bool((error <= 2 * spacing + 1e-3).all())


@pytest.mark.parametrize("decouple", [True, False])
def test_wsam_bfloat16_follows_float32(decouple):
    narrow = weight(torch.bfloat16, 256, 1.0)
    wide = torch.nn.Parameter(narrow.detach().float())
    for p in (narrow, wide):
        wsam = make(p, rho=0.5, lr=0.01, decouple=decouple, every_k=2)
        for _ in range(20):
            wsam.step(lambda p=p: (p.float() ** 4).mean().mul(20).backward())
    error = (narrow.detach().float() - wide.detach()).abs()
    assert error.max() < 0.15
    assert error.mean() < 0.02


@pytest.mark.parametrize("seed", [0, 1, 42, 1234])
def test_rounding_is_not_drawn_like_the_weights(seed):
    drawn = torch.rand(4096, generator=torch.Generator().manual_seed(seed))
    out = torch.empty(4096, dtype=torch.bfloat16)
    Rounding(seed).store([out], [torch.full((4096,), 1 + 2**-8)])
    up = (out > 1).float()
    assert torch.corrcoef(torch.stack([up, drawn]))[0, 1].abs() < 0.06


@pytest.mark.parametrize("dtype", NARROW)
def test_rounding_keeps_what_it_can_represent(dtype):
    values = torch.tensor(
        [
            0.0,
            -0.0,
            1.0,
            -1.5,
            float("inf"),
            -float("inf"),
            torch.finfo(dtype).max,
            torch.finfo(dtype).tiny,
            -torch.finfo(dtype).smallest_normal / 4,
        ]
    )
    out = torch.empty(9, dtype=dtype)
    for seed in range(20):
        Rounding(seed).store([out], [values])
        assert torch.equal(out.float(), values)
        assert torch.equal(torch.signbit(out), torch.signbit(values))


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF, -1])
def test_rounding_keeps_nan(dtype, bits):
    values = torch.tensor([bits], dtype=torch.int32).view(torch.float32)
    out = torch.empty(1, dtype=dtype)
    Rounding(0).store([out], [values])
    assert bool(out.isnan().all())


@settings(max_examples=40, deadline=None)
@given(
    value=st.floats(-1000, 1000, width=32),
    dtype=st.sampled_from(NARROW),
    seed=st.integers(0, 2**32),
)
def test_rounding_has_the_right_mean(value, dtype, seed):
    out = torch.empty(4096, dtype=dtype)
    Rounding(seed).store([out], [torch.full((4096,), value)])
    found = sorted(out.double().unique().tolist())
    assert len(found) <= 2
    gap = found[-1] - found[0]
    assert found[0] <= value <= found[-1] or gap == 0
    # Five standard errors of a fair draw between two neighbours.
    assert abs(out.double().mean().item() - value) <= 5 * max(
        gap / 2 / 64, abs(value) * torch.finfo(dtype).eps / 1024, 1e-7 / 64
    )


def test_rounding_of_smallest_values_has_the_right_mean():
    tiny = 2.0**-24  # the smallest of float16
    out = torch.empty(20_000, dtype=torch.float16)
    Rounding(0).store([out], [torch.full((20_000,), -0.3 * tiny)])
    assert abs(out.double().mean().item() / tiny + 0.3) < 0.02


@pytest.mark.parametrize("dtype", NARROW)
def test_rounding_is_drawn_in_float32_under_a_short_default(dtype):
    gap = torch.finfo(torch.bfloat16).eps
    out = torch.empty(2**20, dtype=torch.bfloat16)
    values = torch.full((2**20,), 1 + gap / 4096)
    torch.set_default_dtype(dtype)
    try:
        Rounding(0).store([out], [values])
    finally:
        torch.set_default_dtype(torch.float32)
    # One in 4096 goes up; a draw of eight bits is below that share once in 256.
    assert (out > 1).double().mean().item() == pytest.approx(1 / 4096, rel=0.3)
