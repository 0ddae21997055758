"""Compiles a module in place, with a cache of compiled code for each kind of CPU."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import nn


def compile_in_place(module: nn.Module, backend: str = "inductor") -> None:
    """Compiles what calling the module does, so that no name of a parameter changes.

    `Module.compile` compiles nothing, without a word, where `forward` is one of torch's
    own modules', such as that of `nn.Sequential`: the compiler does not look into a
    function of torch that is called from outside of a compiled one. Such a module is
    therefore called from a function of ours. It takes the module as an argument, so that
    modules that are built alike share one compilation.

    Args:
        module: What is compiled.
        backend: The backend of `torch.compile`.

    Example:
        >>> from torch import nn
        >>> blocks = nn.Sequential(nn.Linear(2, 2), nn.GELU())
        >>> compile_in_place(blocks)
        >>> sorted(blocks.state_dict())
        ['0.bias', '0.weight']
    """
    separate_compile_cache()
    if (module.forward.__module__ or "").startswith("torch."):
        module._compiled_call_impl = partial(
            torch.compile(_call, backend=backend), module
        )
    else:
        module.compile(backend=backend)


def separate_compile_cache() -> None:
    """Makes what this thread compiles from now on be cached for this kind of CPU alone.

    Inductor's key of a graph does not say for which width of vectors its C++ was written
    (torch 2.11 to 2.13). Where a cache is shared with another CPU, or
    `ATEN_CPU_CAPABILITY` differs from the last run's, code for 16 lanes is compiled with 8,
    and computes garbage without a word. The capability becomes part of
    `torch.compiler.config.cache_key_tag`, beside what the user has there.

    Example:
        >>> separate_compile_cache()
        >>> torch.backends.cpu.get_cpu_capability() in torch.compiler.config.cache_key_tag
        True
    """
    capability = torch.backends.cpu.get_cpu_capability()
    if capability not in torch.compiler.config.cache_key_tag:
        torch.compiler.config.cache_key_tag += capability


def _call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
