"""Models and optimizers whose state dict is of their own making: by overrides, or by hooks.

Others are held by the names of their parameters and buffers. What such a one adds,
changes or leaves out would be lost so: it is held as any object with a state is.
"""

from __future__ import annotations

from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

from torch.optim import Optimizer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

OWN = "state_dict"
"""The kind of the entry of such a model."""

HOOKS = attrgetter(
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
_METHODS = attrgetter(
    "state_dict", "load_state_dict", "_save_to_state_dict", "_load_from_state_dict"
)
# Torch's layers read older forms of their state there, its wrappers take prefixes out of
# names and gather shards: neither keeps more than the tensors.
_TORCHS = ("torch.nn.", "torch.distributed.")
_OPTIMIZER_HOOKS = ("state_dict_pre_hooks", "state_dict_post_hooks")


def has_own_state(modules: Iterable[nn.Module]) -> bool:
    """Says whether one of a model's modules has a hand in its state dict.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        >>> has_own_state(model.modules())
        False
        >>> _ = model[1].register_state_dict_post_hook(lambda *_: None)
        >>> has_own_state(model.modules())
        True
    """
    return any(
        not str(getattr(part, "__module__", "")).startswith(_TORCHS)
        for module in modules
        for part in (
            *_METHODS(module),
            *chain.from_iterable(hooks.values() for hooks in HOOKS(module)),
        )
    )


def makes_its_state(optimizer: Optimizer) -> bool:
    """Says whether an optimizer, or the one inside it, has a hand in its state dict.

    Example:
        >>> import torch
        >>> adam = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])
        >>> makes_its_state(adam)
        False
        >>> _ = adam.register_state_dict_post_hook(lambda _, state: state)
        >>> makes_its_state(adam)
        True
    """
    inner = getattr(getattr(optimizer, "inner", None), "__dict__", {})
    held = [*vars(optimizer).items(), *inner.items()]
    has_hooks = any(value for name, value in held if name.endswith(_OPTIMIZER_HOOKS))
    is_own = getattr(optimizer.state_dict, "__func__", None) is not Optimizer.state_dict
    return has_hooks or (is_own and not hasattr(optimizer, "master_weights"))
