"""Modules in the spellings of several libraries, for the tests of `replace`."""

import torch
from torch import nn


class LlamaNorm(nn.Module):
    """Rounds before the weight."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.variance_epsilon = 1e-6

    def forward(self, hidden_states):
        dtype = hidden_states.dtype
        wide = hidden_states.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(dtype)


class GemmaNorm(nn.Module):
    """Keeps its weight as a difference from one, and rounds at the end."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.eps = 1e-6

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * (1.0 + self.weight.float())).type_as(x)


class L1Norm(nn.Module):
    """Has all that an RMSNorm has, and is none."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = 1e-6

    def forward(self, x):
        return self.weight * x / (x.abs().mean(-1, keepdim=True) + self.eps)


class GatedMLP(nn.Module):
    """Three projections and an activation."""

    def __init__(self, width, act):
        super().__init__()
        self.gate_proj = nn.Linear(width, 3 * width, bias=False)
        self.up_proj = nn.Linear(width, 3 * width, bias=False)
        self.down_proj = nn.Linear(3 * width, width, bias=False)
        self.act = act

    def forward(self, x):
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class JoinedMLP(nn.Module):
    """Gate and up in one projection, as Phi-3 has them."""

    def __init__(self, width):
        super().__init__()
        self.gate_up_proj = nn.Linear(width, 6 * width, bias=False)
        self.down_proj = nn.Linear(3 * width, width, bias=False)

    def forward(self, x):
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(up * nn.functional.silu(gate))


class Model(nn.Module):
    """One of each, in a chain."""

    def __init__(self, width=8):
        super().__init__()
        torch.manual_seed(0)
        self.first = LlamaNorm(width)
        self.mlp = GatedMLP(width, nn.SiLU())
        self.second = GemmaNorm(width)
        self.gelu = GatedMLP(width, nn.GELU(approximate="tanh"))
        self.joined = JoinedMLP(width)
        self.third = nn.RMSNorm(width)
        self.fourth = nn.LayerNorm(width)
        self.odd = L1Norm(width)

    def forward(self, x):
        for child in self.children():
            x = x + child(x)
        return x
