"""Double backward: whether a program differentiates its gradients again."""

from __future__ import annotations

from typing import Any

from torch.overrides import TorchFunctionMode


class DoubleBackward(TorchFunctionMode):
    """Notes inside whether a gradient is asked for with a graph of its own.

    Attributes:
        is_seen: Whether one was.

    Example:
        >>> import torch
        >>> weight = torch.ones(2, requires_grad=True)
        >>> with DoubleBackward() as mode:
        ...     slope, = torch.autograd.grad((weight**2).sum(), weight, create_graph=True)
        >>> mode.is_seen
        True
    """

    is_seen = False

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Looks at what is differentiated, and leaves all functions alone."""
        kwargs = kwargs or {}
        # Torch hands it on by its name, wherever it stood.
        self.is_seen |= bool(kwargs.get("create_graph"))
        return func(*args, **kwargs)
