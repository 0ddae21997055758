"""What a forward reads beside its input: a change of it counts, or the module is left."""

import copy
import functools
import os
import types

import pytest
import torch
from replace_models import GatedMLP, LlamaNorm
from torch import nn
from torch.nn import functional

from drivetrain_kernels import replace

REFERENCE = dict.fromkeys(("rms_norm", "layer_norm", "swiglu", "geglu"), "reference")
X = torch.linspace(-2.0, 2.0, 48).view(2, 3, 8)
SCALE, OPTIONS = 1.0, {"scale": 1.0}
SETTINGS = types.SimpleNamespace(scale=1.0)


class Scaled(LlamaNorm):
    """Scaled in one of many ways; the plain one is one of them."""

    scale = 1.0

    def forward(self, x):
        return self.factor() * super().forward(x)

    def factor(self):
        return self.scale


class GlobalScaled(Scaled):
    def factor(self):
        return SCALE * SETTINGS.scale


class TextScaled(Scaled):
    def factor(self):
        return getattr(self, "scale")  # noqa: B009


class PropertyScaled(Scaled):
    hidden = 1.0

    @property
    def scale(self):
        return self.hidden


def scale_of(module):
    return module.amount


class HelperScaled(Scaled):
    amount = 1.0

    def factor(self):
        return scale_of(self)


@pytest.mark.parametrize(
    ("make", "place", "name", "value"),
    [
        (Scaled, None, "scale", 2.0),
        (Scaled, Scaled, "scale", 2.0),
        (Scaled, Scaled, "factor", lambda self: 2.0),
        (Scaled, LlamaNorm, "forward", lambda self, x: 2.0 * x),
        (Scaled, None, "scale", torch.full((8,), 2.0)),
        (GlobalScaled, SETTINGS, "scale", 2.0),
        (GlobalScaled, None, "SCALE", 2.0),
        (TextScaled, None, "scale", 2.0),
        (PropertyScaled, None, "hidden", 2.0),
        (HelperScaled, None, "amount", 2.0),
    ],
)
def test_norm_whose_forward_reads_something_else_now_is_its_own(
    make, place, name, value, monkeypatch
):
    norm = make(8)
    model = nn.Sequential(norm)
    assert replace(model, REFERENCE).replaced
    before = model(X)
    if name == "SCALE":
        monkeypatch.setitem(globals(), name, value)
    elif place is None:
        setattr(norm, name, value)
    else:
        monkeypatch.setattr(place, name, value)
    assert torch.equal(model(X), type(norm).forward(norm, X))
    assert not torch.allclose(model(X), before)


@pytest.mark.parametrize(
    "act", [functional.gelu, functools.partial(functional.gelu, approximate="tanh")]
)
def test_activation_that_is_a_function_can_be_exchanged(act):
    model = nn.Sequential(GatedMLP(8, act))
    assert replace(model, {"geglu": "reference"}).replaced
    model[0].act = torch.tanh
    assert torch.equal(model(X), GatedMLP.forward(model[0], X))


@pytest.mark.parametrize(
    "place", [nn.SiLU, None, GatedMLP], ids=["class", "part", "module"]
)
def test_forward_that_is_patched_later_is_what_runs(place, monkeypatch):
    model = nn.Sequential(GatedMLP(8, nn.SiLU()))
    assert replace(model, {"swiglu": "reference"}).replaced
    before = model(X)
    whole = place is GatedMLP
    patched = (lambda self, x: 2.0 * x) if whole else (lambda *_: torch.ones(24))
    monkeypatch.setattr(place or model[0].act, "forward", patched)
    assert torch.equal(model(X), GatedMLP.forward(model[0], X))
    assert not torch.allclose(model(X), before)


def closing_over(scale):
    class Closed(Scaled):
        def factor(self):
            return scale

    return Closed(8)


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 1.0 * x

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-1e3, 1e3)


class OwnBackward(LlamaNorm):
    def forward(self, x):
        return Own.apply(super().forward(x))


class HookedBackward(LlamaNorm):
    def forward(self, x):
        out = super().forward(x)
        if out.requires_grad:
            out.register_hook(lambda grad: grad.clamp(-1e3, 1e3))
        return out


class GlobalDict(Scaled):
    def factor(self):
        return OPTIONS["scale"]


class Environment(Scaled):
    def factor(self):
        return float(os.environ.get("SCALE", "1"))


class Held(Scaled):
    def __init__(self, held):
        super().__init__(8)
        self.held = held


class HeldItem(Held):
    def factor(self):
        return self.held[0]


class HeldFirst(HeldItem):
    pass


class HeldTensor(Held):
    def factor(self):
        return self.held


class HeldDeep(Held):
    def factor(self):
        return self.held.inner.scale


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (closing_over(1.0), "scale"),
        (GlobalDict(8), "OPTIONS"),
        (Environment(8), "os"),
        (HeldItem([1.0]), "held"),
        (HeldFirst({0: 1.0}), "held"),
        (HeldTensor(torch.ones(())), "held"),
        (HeldDeep(types.SimpleNamespace(inner=SETTINGS)), "held"),
        (OwnBackward(8), "apply"),
        (HookedBackward(8), "register_hook"),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, nn.Module) else one,
)
def test_module_that_reads_what_cannot_be_watched_is_left(module, name):
    replacement = replace(nn.Sequential(module), REFERENCE)
    assert not replacement.replaced
    assert replacement.left[0].why.startswith(f"its forward uses '{name}'")


class BufferScaled(GatedMLP):
    def __init__(self, scale):
        super().__init__(8, nn.SiLU())
        self.register_buffer("scale", scale)

    def forward(self, x):
        return self.scale * super().forward(x)


class Counting(GatedMLP):
    def __init__(self):
        super().__init__(8, nn.SiLU())
        self.register_buffer("num_calls", torch.zeros(()))

    def forward(self, x):
        self.num_calls.add_(1)
        return super().forward(x)


class PastTheCall(GatedMLP):
    def forward(self, x):
        up = functional.linear(x, self.up_proj.weight)
        return self.down_proj(self.act(self.gate_proj(x)) * up)


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (BufferScaled(torch.ones(())), "in float64 it differs by"),
        (BufferScaled(torch.tensor(1)), "its buffers hold whole numbers"),
        (Counting(), "its forward writes to num_calls"),
        (
            PastTheCall(8, nn.SiLU()),
            "reads the weights of a linear layer past its call",
        ),
    ],
    ids=["scale", "whole", "count", "weights"],
)
def test_feed_forward_with_more_than_a_formula_is_left(module, why):
    replacement = replace(nn.Sequential(module), REFERENCE)
    assert not replacement.replaced
    assert why in replacement.left[0].why


class ThirdDimension(LlamaNorm):
    def forward(self, x):
        return self.weight * (x * (x.pow(2).mean(2, keepdim=True) + 1e-6).rsqrt())


class Flattening(GatedMLP):
    """Takes three dimensions and no other number."""

    def forward(self, x):
        batch, length, width = x.shape
        return super().forward(x.view(-1, width)).view(batch, length, width)


def test_number_of_dimensions_counts():
    replacement = replace(nn.Sequential(ThirdDimension(8)), REFERENCE)
    assert "it is no rms_norm" in replacement.left[0].why
    assert replace(nn.Sequential(Flattening(8, nn.SiLU())), REFERENCE).replaced


def test_deep_copy_of_what_reads_more_is_replaced_too(monkeypatch):
    model = nn.Sequential(GlobalScaled(8))
    assert replace(model, REFERENCE).replaced
    copied = copy.deepcopy(model)
    monkeypatch.setattr(SETTINGS, "scale", 3.0)
    assert torch.equal(copied(X), GlobalScaled.forward(copied[0], X))
