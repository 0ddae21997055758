"""WSAM in numpy, a loss to minimize, and the ways to drive an optimizer over it."""

import numpy as np
import pytest
import torch

from drivetrain_optim.wsam._wsam import WSAM

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
