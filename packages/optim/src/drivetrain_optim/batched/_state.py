"""What an optimizer keeps for a parameter, in which dtype, and its local part.

The layout is that of torch's own optimizers (`step` a scalar on the CPU, float32 at least,
the moments shaped like the parameter), so that checkpoint tools treat it alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor


def moment_dtype(param: Tensor, state_dtype: str | None) -> torch.dtype:
    """Returns the dtype of a parameter's moments.

    Args:
        param: The parameter.
        state_dtype: The name of the narrowest dtype; checkpoint tools take no dtypes.

    Example:
        >>> moment_dtype(torch.zeros(1, dtype=torch.bfloat16), "float32")
        torch.float32
        >>> moment_dtype(torch.zeros(1, dtype=torch.float64), "float32")
        torch.float64
    """
    if state_dtype is None:
        return param.dtype
    return torch.promote_types(param.dtype, getattr(torch, state_dtype))


def make_state(
    state: dict[str, Any],
    param: Tensor,
    *,
    moments: Sequence[str],
    state_dtype: str | None,
    master: bool,
    step_device: torch.device,
) -> None:
    """Adds what a parameter's state lacks; moments have its strides and sharding.

    Args:
        state: The parameter's state, changed in place.
        param: The parameter.
        moments: The names of the moments.
        state_dtype: The name of the narrowest dtype of the moments, or None.
        master: Whether a parameter narrower than float32 gets a float32 copy.
        step_device: Where the step count lies; on the CPU, reading it never waits.

    Example:
        >>> state = {}
        >>> make_state(state, torch.ones(2, dtype=torch.bfloat16), moments=["exp_avg"],
        ...            state_dtype="float32", master=True,
        ...            step_device=torch.device("cpu"))
        >>> state
        {'step': tensor(0.), 'exp_avg': tensor([0., 0.]), 'master': tensor([1., 1.])}
    """
    if "step" not in state:
        state["step"] = torch.zeros((), dtype=_step_dtype(), device=step_device)
    for name in moments:
        if name not in state:
            state[name] = torch.zeros_like(
                param,
                dtype=moment_dtype(param, state_dtype),
                memory_format=torch.preserve_format,
            )
    if master and _is_narrow(param.dtype) and "master" not in state:
        state["master"] = param.detach().to(torch.float32)


def _step_dtype() -> torch.dtype:
    """Returns the dtype of step counts: float32 at least, as in torch."""
    return torch.promote_types(torch.float32, torch.get_default_dtype())


def _is_narrow(dtype: torch.dtype) -> bool:
    return torch.promote_types(dtype, torch.float32) is not dtype


def local_part(tensor: Tensor, like: Tensor | None = None) -> Tensor:
    """Returns this rank's part of a DTensor; any other tensor as it is.

    Elementwise updates need no communication, and local tensors skip DTensor's cost
    per operation. Call under `torch.no_grad()`.

    Args:
        tensor: The tensor.
        like: A DTensor whose placements the part must have, such as the parameter
            of a gradient.
    """
    if not hasattr(tensor, "to_local"):
        return tensor
    sharded: Any = tensor
    if like is not None and sharded.placements != (wanted := like.placements):  # type: ignore[attr-defined]
        sharded = sharded.redistribute(placements=wanted)
    part: Any = sharded.to_local()
    # What an asynchronous collective left behind has no memory until it is waited for.
    return part.wait() if hasattr(part, "wait") else part  # type: ignore[no-any-return]


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is what its memory holds: no wrapper, no view that negates."""
    kinds = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return (
        type(tensor) in kinds
        and tensor.layout is torch.strided
        and not tensor.is_neg()
        and not tensor.is_meta
        and (tensor.data_ptr() != 0 or tensor.numel() == 0)
    )


def is_freed(tensor: Tensor) -> bool:
    """Whether the memory of a tensor was given back; to read it ends the process.

    Example:
        >>> parameter = torch.ones(2)
        >>> _ = parameter.untyped_storage().resize_(0)
        >>> is_freed(parameter)
        True
    """
    is_empty = tensor.numel() == 0 or tensor.layout is not torch.strided
    return not is_empty and tensor.untyped_storage().nbytes() == 0


def load_moments(
    state: Mapping[str, Any],
    *,
    param: Tensor,
    names: Sequence[str],
    state_dtype: str | None,
    step_device: torch.device,
) -> dict[str, Tensor]:
    """Returns a parameter's saved state as an optimizer keeps it.

    Args:
        state: The saved state of one parameter.
        param: The parameter.
        names: The names of the moments.
        state_dtype: The narrowest dtype of the moments, or None.
        step_device: Where the step count lies.
    """
    dtypes = dict.fromkeys(names, moment_dtype(param, state_dtype))
    dtypes["master"] = torch.float32
    loaded = {
        name: state[name].to(dtype=dtype, device=param.device)
        for name, dtype in dtypes.items()
        if name in state
    }
    step = torch.as_tensor(state["step"], dtype=_step_dtype(), device=step_device)
    return {"step": step, **loaded}
