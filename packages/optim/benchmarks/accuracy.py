"""How near each path comes to the paper's recurrence."""

import copy

import numpy as np
import torch
from peers import load_peers

from drivetrain_optim import AGD, LAMB
from drivetrain_testing import Row

BETA1, BETA2, DELTA, LR = 0.9, 0.999, 1e-5, 0.01
EXACT = 1e-12
NO_FURTHER = 2.0
PATHS = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "native": {"fused": True},
    "capturable": {"capturable": True},
}
MODES = [
    (AGD, {}),
    (AGD, {"weight_decay": 0.1, "decay": "coupled", "amsgrad": True, "clip": 1.0}),
    (LAMB, {}),
    (LAMB, {"max_grad_norm": 1.0, "decay": "decoupled", "trust_clip": (0.1, 2.0)}),
]


class Literal:
    """AGD as the paper writes it, on float64 arrays."""

    def __init__(self, w):
        self.w = w.astype(np.float64)
        self.m = self.b = np.zeros_like(self.w)
        self.t = 0

    def step(self, g):
        self.t += 1
        c1, c1_before = 1 - BETA1**self.t, 1 - BETA1 ** (self.t - 1)
        m_before, self.m = self.m, BETA1 * self.m + (1 - BETA1) * g
        s = self.m / c1 - (m_before / c1_before if self.t > 1 else 0)
        self.b = BETA2 * self.b + (1 - BETA2) * s * s
        bhat = self.b / (1 - BETA2**self.t)
        self.w = self.w - LR * (self.m / c1) / np.maximum(np.sqrt(bhat), DELTA)


def exactness(quick):
    """AGD in float64, on each path, against the recurrence; quadratic problems."""
    worst = {}
    num_problems = 2 if quick else 5
    for name, path in PATHS.items():
        errors = []
        for seed in range(num_problems):
            rng = np.random.default_rng(seed)
            start, curvature = rng.standard_normal(501), rng.uniform(0.01, 3, 501)
            param = torch.nn.Parameter(torch.from_numpy(start.copy()))
            optimizer, literal = AGD([param], lr=LR, **path), Literal(start)
            for _ in range(1000):
                noise = rng.standard_normal(501)
                gradient = torch.from_numpy(curvature) * param.detach()
                param.grad = gradient + torch.from_numpy(noise)
                optimizer.step()
                literal.step(curvature * literal.w + noise)
            gap = np.abs(param.detach().numpy() - literal.w).max()
            errors.append(gap / np.abs(literal.w).max())
        worst[name] = max(errors)
    most = max(worst.values())
    return Row(figure=f"{most:.1e}", holds=bool(most <= EXACT), details=worst)


def one_step(kind, options, params, saved, dtype, path):
    copies = [torch.nn.Parameter(p.detach().to(dtype, copy=True)) for p in params]
    for p, q in zip(params, copies, strict=True):
        q.grad = p.grad.to(dtype)
    optimizer = kind(copies, lr=LR, **options, **path)
    saved = copy.deepcopy(saved)
    default = {"foreach": None, "fused": None, "capturable": False}
    for group in saved["param_groups"]:
        group.update({**default, **path})
    optimizer.load_state_dict(saved)
    optimizer.step()
    return torch.cat([q.detach().double().flatten() for q in copies])


def paths(quick):
    """One float32 step from the same state: each path's error in errors of the loop."""
    worst = dict.fromkeys(["foreach", "native", "capturable"], 0.0)
    for kind, options in MODES:
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(n)) for n in (20_001, 333, 1)]
        optimizer = kind(params, lr=LR, foreach=False, **options)
        for _ in range(5 if quick else 40):
            for p in params:
                p.grad = torch.randn_like(p)
            saved = copy.deepcopy(optimizer.state_dict())
            step = (kind, options, params, saved)
            truth = one_step(*step, torch.float64, PATHS["loop"])
            loop = (one_step(*step, torch.float32, PATHS["loop"]) - truth).abs().max()
            for name in worst:
                other = one_step(*step, torch.float32, PATHS[name]) - truth
                worst[name] = max(worst[name], float(other.abs().max() / loop))
            optimizer.step()
    most = max(worst, key=worst.get)
    return Row(
        figure=f"{worst[most]:.2f} ({most})",
        holds=worst[most] <= NO_FURTHER,
        details=worst,
    )


def presets(quick):
    """`LAMB.timm` against timm's own Lamb in float64, 100 steps."""
    peer = load_peers().get("timm")
    if peer is None:
        return Row(figure="-", holds=None, details={"needs": "timm"})
    torch.manual_seed(0)
    start = [torch.randn(n, dtype=torch.float64) for n in (100, 7, 33)]
    runs = []
    for make in (LAMB.timm, peer):
        params = [torch.nn.Parameter(p.clone()) for p in start]
        groups = [
            {"params": params[:2], "weight_decay": 0.02},
            {"params": params[2:], "weight_decay": 0.0},
        ]
        optimizer = make(groups, lr=LR)
        generator = torch.Generator().manual_seed(1)
        for _ in range(100):
            for p in params:
                p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            optimizer.step()
        runs.append(torch.cat([p.detach() for p in params]))
    gap = float((runs[0] - runs[1]).abs().max() / runs[1].abs().max())
    return Row(figure=f"{gap:.1e}", holds=gap <= EXACT)
