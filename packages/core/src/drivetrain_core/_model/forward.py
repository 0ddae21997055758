"""Puts code around a module's forward without changing its class or its names.

A wrapper module would put its own prefix into every parameter name. An instance
attribute does not; `Module.compile`, FSDP2 and DDP all call through it. It is a bound
method, so that a deep copy of the module calls the copy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

Forward = Callable[..., Any]
"""Runs a module on its inputs."""


def wrap_forward(module: nn.Module, around: Callable[[Forward], Forward]) -> None:
    """Replaces `module.forward(...)` by `around(forward)(...)`, on this object only.

    Args:
        module: The module to change.
        around: Given the forward as a function of (module, ...), returns another.

    Example:
        >>> from torch import nn, ones
        >>> model = nn.Identity()
        >>> wrap_forward(model, lambda forward: lambda self, x: forward(self, x) + 1)
        >>> model(ones(1)).item()
        2.0
    """
    bound = module.forward
    # A forward that is no method (a plain function set on the instance) has no self.
    if isinstance(bound, MethodType) and bound.__self__ is module:
        function: Forward = bound.__func__
    else:

        @wraps(bound)
        def function(_self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            return bound(*args, **kwargs)

    replacement = wraps(function)(around(function))
    module.forward = MethodType(replacement, module)
