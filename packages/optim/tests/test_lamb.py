"""LAMB against the formulas of its variants, each written out in numpy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_optim import LAMB
from drivetrain_optim.checks._options import LAMB_PRESETS

PATHS = [
    pytest.param({"foreach": False}, id="loop"),
    pytest.param({"foreach": True}, id="foreach"),
    pytest.param({"fused": True}, id="native"),
]
SIZES = [(3, 5), (7,), (1,), (129,)]
LR = 0.05


def norm(x):
    return math.sqrt(float((x * x).sum()))


class Adam:
    """The moments that every variant shares, in float64."""

    def __init__(self, weights):
        self.w = [np.array(w, dtype=np.float64) for w in weights]
        self.m = [np.zeros_like(w) for w in self.w]
        self.v = [np.zeros_like(w) for w in self.w]
        self.t = 0

    def moments(self, k, g, average=0.1):
        self.m[k] = 0.9 * self.m[k] + average * g
        self.v[k] = 0.999 * self.v[k] + 0.001 * g * g
        return self.m[k] / (1 - 0.9**self.t), self.v[k] / (1 - 0.999**self.t)


class Paper(Adam):
    """Algorithm 2 with phi the identity."""

    def step(self, grads, decays):
        self.t += 1
        for k, g in enumerate(grads):
            m, v = self.moments(k, g)
            u = m / (np.sqrt(v) + 1e-6) + decays[k] * self.w[k]
            sizes = norm(self.w[k]), norm(u)
            ratio = sizes[0] / sizes[1] if min(sizes) > 0 else 1.0
            self.w[k] = self.w[k] - LR * ratio * u


class Nvlamb(Adam):
    """Gradients divided by their common norm where it is above 1, then the paper."""

    def step(self, grads, decays):
        self.t += 1
        common = math.sqrt(sum(norm(g) ** 2 for g in grads))
        divisor = common if common > 1 else 1.0
        for k, g in enumerate(grads):
            m, v = self.moments(k, g / divisor)
            u = m / (np.sqrt(v) + 1e-6) + decays[k] * self.w[k]
            sizes = norm(self.w[k]), norm(u)
            rate = LR * sizes[0] / sizes[1] if min(sizes) > 0 else LR
            self.w[k] = self.w[k] - rate * u


class Timm(Adam):
    """As NVLAMB; parameters without weight decay are not scaled."""

    def step(self, grads, decays):
        self.t += 1
        common = math.sqrt(sum(norm(g) ** 2 for g in grads))
        clip = max(common / 1.0, 1.0)
        for k, g in enumerate(grads):
            m, v = self.moments(k, g / clip)
            update = m / (np.sqrt(v) + 1e-6)
            if decays[k] != 0:
                update = update + decays[k] * self.w[k]
                sizes = norm(self.w[k]), norm(update)
                update = update * (sizes[0] / sizes[1] if min(sizes) > 0 else 1.0)
            self.w[k] = self.w[k] - LR * update


def parameters(seed=0, sizes=SIZES):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.nn.Parameter(torch.randn(s, generator=generator, dtype=torch.float64))
        for s in sizes
    ]


def run(params, optimizer, reference, num_steps, scale=1.0, **options):
    """Steps both on the gradients of a quadratic bowl with noise."""
    rng = np.random.default_rng(1)
    for _ in range(num_steps):
        noise = [scale * rng.standard_normal(p.shape) for p in params]
        for p, n in zip(params, noise, strict=True):
            p.grad = 0.3 * p.detach() + torch.from_numpy(np.asarray(n))
        optimizer.step()
        pairs = zip(reference.w, noise, strict=True)
        reference.step([0.3 * w + n for w, n in pairs], **options)


def assert_close(params, reference, tolerance=1e-12):
    for p, w in zip(params, reference.w, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), w, rtol=tolerance, atol=1e-13)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("scale", [0.01, 1.0])
@pytest.mark.parametrize(
    ("preset", "formula"), [("paper", Paper), ("nvlamb", Nvlamb), ("timm", Timm)]
)
def test_lamb_preset_equals_its_own_formula(preset, formula, scale, path):
    params = parameters()
    reference = formula([p.detach().numpy() for p in params])
    decays = [0.01, 0.01, 0.0, 0.0]
    groups = [
        {"params": params[:2], "weight_decay": 0.01},
        {"params": params[2:], "weight_decay": 0.0},
    ]
    optimizer = getattr(LAMB, preset)(groups, lr=LR, **path)
    run(params, optimizer, reference, 200, scale, decays=decays)
    assert_close(params, reference)


def test_lamb_presets_differ_from_each_other():
    results = []
    for preset in LAMB_PRESETS:
        params = parameters()
        groups = [
            {"params": params[:2], "weight_decay": 0.01},
            {"params": params[2:], "weight_decay": 0.0},
        ]
        optimizer = getattr(LAMB, preset)(groups, lr=LR)
        reference = Paper([p.detach().numpy() for p in params])
        run(params, optimizer, reference, 3, decays=[0] * 4)
        results.append(torch.cat([p.detach().flatten() for p in params]))
    assert not torch.allclose(results[0], results[1])
    assert not torch.allclose(results[1], results[2])


class Variant(Adam):
    """One option at a time."""

    def step(self, grads, option, value):
        self.t += 1
        given = {option: value}
        for k, raw in enumerate(grads):
            w = self.w[k]
            decay, mode = 0.1, given.get("decay", "inside")
            g = -raw if given.get("maximize") else raw
            g = g + (decay * w if mode == "coupled" else 0)
            average = 0.1 if given.get("grad_averaging", True) else 1.0
            m, v = self.moments(k, g, average)
            if not given.get("bias_correction", True):
                m, v = self.m[k], self.v[k]
            u = m / (np.sqrt(v) + given.get("eps", 1e-6))
            u = u + (decay * w if mode == "inside" else 0)
            low, high = given.get("weight_norm_clip") or (0, math.inf)
            ratio = 1.0
            if norm(w) > 0 and norm(u) > 0 and given.get("adapt") != "none":
                ratio = min(max(norm(w), low), high) / norm(u)
                low, high = given.get("trust_clip") or (0, math.inf)
                ratio = min(max(ratio, low), high)
            shrink = 1 - LR * decay if mode == "decoupled" else 1.0
            self.w[k] = shrink * w - LR * ratio * u


OPTIONS = [
    ("decay", "decoupled"),
    ("decay", "coupled"),
    ("bias_correction", False),
    ("grad_averaging", False),
    ("adapt", "none"),
    ("eps", 0.1),
    ("weight_norm_clip", (0.5, 2.0)),
    ("trust_clip", (0.01, 0.5)),
    ("trust_clip", (0.0, 1.0)),
    ("maximize", True),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("option", "value"), OPTIONS, ids=str)
def test_lamb_option_changes_the_formula_as_it_says(option, value, path):
    params = parameters()
    reference = Variant([p.detach().numpy() for p in params])
    optimizer = LAMB(params, lr=LR, weight_decay=0.1, **{option: value}, **path)
    run(params, optimizer, reference, 50, option=option, value=value)
    assert_close(params, reference, 1e-11)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("which", ["weights", "step"])
def test_lamb_ratio_is_one_where_a_norm_is_zero(which, path):
    param = torch.nn.Parameter(torch.zeros(5) if which == "weights" else torch.ones(5))
    param.grad = torch.ones(5) if which == "weights" else torch.zeros(5)
    LAMB([param], lr=0.5, weight_decay=0.0, trust_clip=(2.0, 3.0), **path).step()
    expected = -0.5 if which == "weights" else 1.0
    torch.testing.assert_close(param.detach(), torch.full((5,), expected))


@pytest.mark.parametrize("path", PATHS)
def test_lamb_clips_by_the_norm_over_all_groups(path):
    params = parameters()
    alone = parameters()
    groups = [{"params": params[:1], "max_grad_norm": None}, {"params": params[1:]}]
    for p, q in zip(params, alone, strict=True):
        p.grad, q.grad = torch.full_like(p, 3.0), torch.full_like(q, 3.0)
    torch.nn.utils.clip_grad_norm_(alone, 0.25)
    alone[0].grad = torch.full_like(alone[0], 3.0)
    LAMB(groups, lr=LR, max_grad_norm=0.25, eps=0.1, **path).step()
    LAMB(alone, lr=LR, eps=0.1, foreach=False).step()
    for p, q in zip(params, alone, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)
        assert torch.equal(p.grad, torch.full_like(p, 3.0))


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_lamb_native_gives_the_same_bits_on_any_number_of_threads(num_threads):
    results = []
    for threads in (1, num_threads):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            torch.manual_seed(0)
            params = [torch.nn.Parameter(torch.randn(n)) for n in (100_000, 17, 40_001)]
            optimizer = LAMB(params, fused=True, max_grad_norm=1.0)
            for p in params:
                p.grad = torch.randn_like(p)
            optimizer.step()
        finally:
            torch.set_num_threads(before)
        results.append(params)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@settings(max_examples=60, deadline=None)
@given(
    start=st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=4),
    gradients=st.lists(
        st.none() | st.floats(-1e3, 1e3, width=32), min_size=1, max_size=10
    ),
    path=st.sampled_from([{"foreach": False}, {"foreach": True}, {"fused": True}]),
)
def test_lamb_any_sequence_of_gradients_equals_the_paper(start, gradients, path):
    param = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))
    optimizer = LAMB([param], lr=LR, **path)
    reference = Paper([start])
    for value in gradients:
        param.grad = None
        if value is not None:
            param.grad = torch.full_like(param, value)
            reference.step([np.full(len(start), value)], decays=[0.01])
        optimizer.step()
    np.testing.assert_allclose(param.detach().numpy(), reference.w[0], rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": 0.0}, r"eps must be a finite number > 0, got 0\.0"),
        ({"trust_clip": (2.0, 1.0)}, r"trust_clip must be .* got \(2\.0, 1\.0\)"),
        ({"trust_clip": 1.0}, r"trust_clip must be two numbers .* got 1\.0"),
        ({"weight_norm_clip": (-1.0, 1.0)}, r"weight_norm_clip must be .* got \(-1\.0"),
        ({"adapt": "decay"}, "adapt must be one of .* got 'decay'; nearest: decayed"),
        ({"decay": "in"}, "decay must be one of inside, .* got 'in'"),
        ({"max_grad_norm": 0}, "max_grad_norm must be .* got 0"),
        ({"lr": -1.0}, r"lr must be a finite number >= 0, got -1\.0"),
        ({"betas": (0.9, 1.0)}, r"betas must be two numbers in \[0, 1\)"),
        ({"differentiable": True}, "differentiable must be False, .* got True"),
        ({"foreach": True, "fused": True}, "at most one of foreach and fused"),
        ({"master_weights": True, "stochastic_rounding": True}, "stochastic_rounding"),
        ({"capturable": True, "check_finite": True}, "check_finite=True waits"),
    ],
    ids=str,
)
def test_lamb_option_that_is_not_allowed_is_refused(options, message):
    with pytest.raises(ValueError, match=f"^LAMB: {message}"):
        LAMB([torch.zeros(2)], **options)
