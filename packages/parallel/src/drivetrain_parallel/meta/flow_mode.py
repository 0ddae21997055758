"""Runs a model whose weights are on the meta device on inputs that have values.

What depends on a weight has a shape and no value. All else is computed: positions, masks
and lengths, on which the code of many models decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

if TYPE_CHECKING:
    from collections.abc import Callable

_META = torch.device("meta")


class FlowMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets operations mix tensors on the meta device with others.

    An operation that takes one on meta runs on meta. What a program makes anew "on the
    device of its weights" is made on the CPU instead, with values.

    Example:
        >>> table = torch.nn.Embedding(4, 2, device="meta")
        >>> with FlowMode():
        ...     ids = torch.arange(3, device=table.weight.device)
        ...     found = table(ids)
        >>> ids.tolist(), found.is_meta
        ([0, 1, 2], True)
    """

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs one operation on the device that its inputs ask for."""
        del types
        kwargs = kwargs or {}
        tensors = [
            t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)
        ]
        if not any(t.is_meta for t in tensors):
            if kwargs.get("device") is not None and _is_meta(kwargs["device"]):
                device = tensors[0].device if tensors else torch.device("cpu")
                kwargs = {**kwargs, "device": device}
            return func(*args, **kwargs)
        if all(t.is_meta for t in tensors):
            return func(*args, **kwargs)
        moved, moved_kwargs = tree_map_only(
            torch.Tensor, lambda t: t if t.is_meta else t.to(_META), (args, kwargs)
        )
        result = func(*moved, **moved_kwargs)
        first = args[0] if args else None
        if result is not None and moved and result is moved[0]:
            # Written in place: the tensor stays what it is, its values are unknown.
            return first
        return result


def _is_meta(device: object) -> bool:
    return bool(torch.device(device) == torch.device("meta"))  # type: ignore[call-overload]
