"""Compiles a module in place, so that no name of a parameter changes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import nn


def compile_in_place(module: nn.Module) -> None:
    """Compiles what calling the module does.

    `Module.compile` compiles nothing, without a word, where `forward` is one of torch's
    own modules', such as that of `nn.Sequential`: the compiler does not look into a
    function of torch that is called from outside of a compiled one. Such a module is
    therefore called from a function of ours. It takes the module as an argument, so that
    modules that are built alike share one compilation.

    Example:
        >>> from torch import nn
        >>> blocks = nn.Sequential(nn.Linear(2, 2), nn.GELU())
        >>> compile_in_place(blocks)
        >>> sorted(blocks.state_dict())
        ['0.bias', '0.weight']
    """
    if (module.forward.__module__ or "").startswith("torch."):
        module._compiled_call_impl = partial(torch.compile(_call), module)
    else:
        module.compile()


def _call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
