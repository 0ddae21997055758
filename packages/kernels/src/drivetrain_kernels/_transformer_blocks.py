"""Transformer blocks as modules: attention and MLP in turn, or side by side.

Both hold the same matrices and can be made from each other's parts; but they are
different functions, and a model trained as one is not the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from drivetrain_kernels._errors import OptionError
from drivetrain_kernels._modules import AddRMSNorm, RMSNorm, linear_weight
from drivetrain_kernels.ops._attention import attention
from drivetrain_kernels.ops._parallel_block import added_product, parallel_block
from drivetrain_kernels.ops._rope import rope
from drivetrain_kernels.ops._swiglu import swiglu

if TYPE_CHECKING:
    from collections.abc import Mapping

_OPTIONS = ("num_heads", "num_kv_heads", "inner", "window", "rope_base", "eps")


class _Block(nn.Module):
    """Sizes that both blocks have, and the start of their weights."""

    def __init__(
        self,
        width: int,
        *,
        num_heads: int,
        num_kv_heads: int | None = None,
        inner: int | None = None,
        window: int | None = None,
        rope_base: float | None = 10000.0,
        eps: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if width % num_heads or num_heads % kv_heads:
            name = type(self).__name__
            message = (
                f"{name}: width must be a multiple of num_heads, and num_heads of "
                f"num_kv_heads, got {width}, {num_heads} and {kv_heads}"
            )
            raise OptionError(message)
        self.width = width
        self.num_heads = num_heads
        self.num_kv_heads = kv_heads
        self.head_dim = width // num_heads
        self.inner = 4 * width if inner is None else inner
        self.window = window
        self.rope_base = rope_base
        self.eps = eps
        self._make_parameters({"device": device, "dtype": dtype})

    def _make_parameters(self, factory: dict[str, Any]) -> None:
        """Makes the parameters; `factory` has their device and dtype."""
        raise NotImplementedError

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that make a block of the same sizes."""
        return {name: getattr(self, name) for name in _OPTIONS}

    def parts(self) -> dict[str, Tensor]:
        """Returns the matrices by name, as views: q, k, v, gate, up, o and down."""
        raise NotImplementedError

    @torch.no_grad()
    def load_parts(self, parts: Mapping[str, Tensor]) -> None:
        """Copies matrices into this block.

        Args:
            parts: What `parts` of a block of the same sizes returns.
        """
        for name, mine in self.parts().items():
            mine.copy_(parts[name])

    @property
    def _in_widths(self) -> dict[str, int]:
        keys = self.num_kv_heads * self.head_dim
        return {
            "q": self.width,
            "k": keys,
            "v": keys,
            "gate": self.inner,
            "up": self.inner,
        }

    def extra_repr(self) -> str:
        """Returns the sizes, for printing."""
        return ", ".join(
            [str(self.width), *(f"{k}={v}" for k, v in self.options.items())]
        )


class ParallelBlock(_Block):
    """`x + Attn(N(x)) + MLP(N(x))`, causal, with RMSNorm, rotary embeddings and SwiGLU.

    Args:
        width: The channels of a token.
        num_heads: Heads of queries, a divisor of `width`.
        num_kv_heads: Heads of keys and values, a divisor of `num_heads`; None for as
            many.
        inner: The MLP's inner width; None for four times `width`.
        window: How many tokens a query sees, itself included; None for all before it.
        rope_base: The base of rotary embeddings; None for none.
        eps: The norm's.
        impl: See `parallel_block`.
        device: Where the parameters lie.
        dtype: That of the parameters.

    Example:
        >>> ParallelBlock(8, num_heads=2)(torch.randn(1, 5, 8)).shape
        torch.Size([1, 5, 8])
    """

    def __init__(
        self,
        width: int,
        *,
        num_heads: int,
        num_kv_heads: int | None = None,
        inner: int | None = None,
        window: int | None = None,
        rope_base: float | None = 10000.0,
        eps: float = 1e-6,
        impl: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            width,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            inner=inner,
            window=window,
            rope_base=rope_base,
            eps=eps,
            device=device,
            dtype=dtype,
        )
        self.impl = impl

    def _make_parameters(self, factory: dict[str, Any]) -> None:
        width = self.width
        self.norm = nn.Parameter(torch.ones(width, **factory))
        self.w_in = linear_weight(sum(self._in_widths.values()), width, **factory)
        self.w_out = linear_weight(width, width + self.inner, **factory)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the block's result.

        Args:
            x: Tokens, `(B, S, width)`.
        """
        return parallel_block(
            x,
            self.norm,
            self.w_in,
            self.w_out,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            eps=self.eps,
            rope_base=self.rope_base,
            window=self.window,
            impl=self.impl,
        )

    def parts(self) -> dict[str, Tensor]:
        """Returns the matrices by name, as views: q, k, v, gate, up, o and down."""
        names = self._in_widths
        found = dict(
            zip(
                names,
                self.w_in.detach().split_with_sizes([*names.values()]),
                strict=True,
            )
        )
        o, down = self.w_out.detach().split_with_sizes([self.width, self.inner], 1)
        return {**found, "o": o, "down": down}


class SerialBlock(_Block):
    """`h = x + Attn(N(x)); y = h + MLP(N(h))`: the usual block, for comparison.

    Its arguments are those of `ParallelBlock`, without `impl`. Queries, keys and values
    come of one GEMM, as do gate and up, and the sum and the second norm are one op.

    Example:
        >>> SerialBlock(8, num_heads=2)(torch.randn(1, 5, 8)).shape
        torch.Size([1, 5, 8])
    """

    def _make_parameters(self, factory: dict[str, Any]) -> None:
        width, widths = self.width, self._in_widths
        self.norm = RMSNorm(width, eps=self.eps, **factory)
        self.mlp_norm = AddRMSNorm(width, eps=self.eps, **factory)
        self.w_qkv = linear_weight(widths["q"] + 2 * widths["k"], width, **factory)
        self.w_o = linear_weight(width, width, **factory)
        self.w_gate_up = linear_weight(2 * self.inner, width, **factory)
        self.w_down = linear_weight(width, self.inner, **factory)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the block's result.

        Args:
            x: Tokens, `(B, S, width)`.
        """
        widths = self._in_widths
        joined = functional.linear(self.norm(x), self.w_qkv)
        sizes = [widths["q"], widths["k"], widths["v"]]
        q, k, v = (
            part.view(*part.shape[:-1], size // self.head_dim, self.head_dim)
            for part, size in zip(
                joined.split_with_sizes(sizes, -1), sizes, strict=True
            )
        )
        if self.rope_base is not None:
            q, k = rope(q, k, base=self.rope_base)
        heads = attention(q, k, v, window=self.window).flatten(-2)
        # Under autocast the product is narrow, and x need not be.
        product = functional.linear(heads, self.w_o).to(x.dtype)
        normed, total = self.mlp_norm(product, x)
        gate, up = functional.linear(normed, self.w_gate_up).chunk(2, -1)
        return added_product(total, swiglu(gate, up), self.w_down)

    def parts(self) -> dict[str, Tensor]:
        """Returns the matrices by name, as views: q, k, v, gate, up, o and down."""
        widths = self._in_widths
        sizes = [widths["q"], widths["k"], widths["v"]]
        q, k, v = self.w_qkv.detach().split_with_sizes(sizes)
        gate, up = self.w_gate_up.detach().chunk(2)
        o, down = self.w_o.detach(), self.w_down.detach()
        return {"q": q, "k": k, "v": v, "gate": gate, "up": up, "o": o, "down": down}
