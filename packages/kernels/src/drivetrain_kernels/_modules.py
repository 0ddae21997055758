"""The ops as modules, with the parameters that torch's own have."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from drivetrain_kernels.ops._add_rms_norm import add_rms_norm
from drivetrain_kernels.ops._geglu import geglu
from drivetrain_kernels.ops._layer_norm import layer_norm
from drivetrain_kernels.ops._rms_norm import rms_norm
from drivetrain_kernels.ops._rope import rope
from drivetrain_kernels.ops._rope_tables import counted_tables
from drivetrain_kernels.ops._swiglu import swiglu


def linear_weight(
    *shape: int,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Parameter:
    """Returns matrices that start as those of `torch.nn.Linear` do.

    Args:
        *shape: That of the matrices; the last dimension is what they multiply.
        device: Where they lie.
        dtype: Theirs.
    """
    bound = 1 / math.sqrt(shape[-1])
    start = torch.empty(shape, device=device, dtype=dtype)
    return nn.Parameter(start.uniform_(-bound, bound))


class RMSNorm(nn.Module):
    """`rms_norm` with a weight; its state dict is that of `torch.nn.RMSNorm`.

    Args:
        width: The length of a row.
        eps: See `rms_norm`.
        offset: Likewise; with one, the weight starts at `1 - offset`.
        cast: Likewise.
        impl: Likewise.
        device: Where the weight lies.
        dtype: That of the weight.

    Example:
        >>> RMSNorm(4)(torch.ones(1, 4))
        tensor([[1.0000, 1.0000, 1.0000, 1.0000]], grad_fn=...)
    """

    def __init__(
        self,
        width: int,
        *,
        eps: float = 1e-6,
        offset: float = 0.0,
        cast: str = "input",
        impl: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.offset = offset
        self.cast = cast
        self.impl = impl
        start = torch.full((width,), 1.0 - offset, device=device, dtype=dtype)
        self.weight = nn.Parameter(start)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the normalised rows.

        Args:
            x: `(..., width)`.
        """
        return rms_norm(
            x,
            self.weight,
            eps=self.eps,
            offset=self.offset,
            cast=self.cast,
            impl=self.impl,
        )

    def extra_repr(self) -> str:
        """Returns the options, for printing."""
        return f"{self.weight.numel()}, eps={self.eps}, impl={self.impl!r}"


class AddRMSNorm(RMSNorm):
    """`add_rms_norm` with a weight; its state dict is that of `torch.nn.RMSNorm`.

    Its arguments are those of `RMSNorm`.

    Example:
        >>> normed, total = AddRMSNorm(4)(torch.ones(1, 4), torch.ones(1, 4))
        >>> total
        tensor([[2., 2., 2., 2.]])
    """

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Returns the normalised sum, and the sum.

        Args:
            x: `(..., width)`.
            residual: Of the same shape.
        """
        return add_rms_norm(
            x,
            residual,
            self.weight,
            eps=self.eps,
            offset=self.offset,
            cast=self.cast,
            impl=self.impl,
        )


class LayerNorm(nn.Module):
    """`layer_norm` with weight and bias; its state dict is `torch.nn.LayerNorm`'s.

    Args:
        width: The length of a row.
        eps: See `layer_norm`.
        bias: Whether there is one.
        impl: See `layer_norm`.
        device: Where the parameters lie.
        dtype: That of the parameters.

    Example:
        >>> LayerNorm(2, eps=0.0)(torch.tensor([[1.0, 3.0]]))
        tensor([[-1.,  1.]], grad_fn=...)
    """

    def __init__(
        self,
        width: int,
        *,
        eps: float = 1e-5,
        bias: bool = True,
        impl: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.impl = impl
        self.weight = nn.Parameter(torch.ones(width, device=device, dtype=dtype))
        shift = torch.zeros(width, device=device, dtype=dtype)
        self.bias = nn.Parameter(shift) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Returns the normalised rows.

        Args:
            x: `(..., width)`.
        """
        return layer_norm(x, self.weight, self.bias, eps=self.eps, impl=self.impl)

    def extra_repr(self) -> str:
        """Returns the options, for printing."""
        return f"{self.weight.numel()}, eps={self.eps}, impl={self.impl!r}"


class SwiGLU(nn.Module):
    """`swiglu` as a module; it has no parameters.

    Args:
        impl: See `swiglu`.

    Example:
        >>> SwiGLU()(torch.zeros(2), torch.ones(2))
        tensor([0., 0.])
    """

    def __init__(self, *, impl: str = "auto") -> None:
        super().__init__()
        self.impl = impl

    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        """Returns `silu(gate) * up`.

        Args:
            gate: Any shape.
            up: Of the same shape.
        """
        return swiglu(gate, up, impl=self.impl)


class GEGLU(nn.Module):
    """`geglu` as a module; it has no parameters.

    Args:
        approximate: See `geglu`.
        impl: Likewise.

    Example:
        >>> GEGLU()(torch.zeros(2), torch.ones(2))
        tensor([0., 0.])
    """

    def __init__(self, *, approximate: str = "tanh", impl: str = "auto") -> None:
        super().__init__()
        self.approximate = approximate
        self.impl = impl

    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        """Returns `gelu(gate) * up`.

        Args:
            gate: Any shape.
            up: Of the same shape.
        """
        return geglu(gate, up, approximate=self.approximate, impl=self.impl)


class RotaryEmbedding(nn.Module):
    """`rope` with tables that are kept between calls; it has no parameters.

    Args:
        rotary_dim: How many columns are rotated.
        base: What the frequencies are powers of.
        interleaved: Whether neighbouring columns are a pair.
        impl: See `rope`.

    Example:
        >>> q = torch.randn(1, 3, 2, 8)
        >>> turned, _ = RotaryEmbedding(8)(q, q)
        >>> torch.equal(turned[:, 0], q[:, 0])  # position 0 is not turned
        True
    """

    def __init__(
        self,
        rotary_dim: int,
        *,
        base: float = 10000.0,
        interleaved: bool = False,
        impl: str = "auto",
    ) -> None:
        super().__init__()
        self.rotary_dim = rotary_dim
        self.base = base
        self.interleaved = interleaved
        self.impl = impl

    def forward(
        self, q: Tensor, k: Tensor, *, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns queries and keys with their pairs of columns rotated.

        Args:
            q: `(B, S, H, D)`, or `(T, H, D)` for packed sequences.
            k: Likewise.
            cu_seqlens: Where packed sequences begin, and where the last ends.
        """
        # No buffers: a cast of the module would round them, and late positions with them.
        cos, sin = counted_tables(q.shape[-3], self.rotary_dim, self.base, q)
        return rope(
            q,
            k,
            cos,
            sin,
            interleaved=self.interleaved,
            rotary_dim=self.rotary_dim,
            cu_seqlens=cu_seqlens,
            impl=self.impl,
        )
