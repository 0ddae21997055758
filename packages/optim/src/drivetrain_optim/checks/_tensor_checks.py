"""What an optimizer refuses of parameters and gradients, before anything changes."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from drivetrain_optim._errors import NonFiniteGradientError, UnsupportedTensorError
from drivetrain_optim.batched._state import is_freed, local_part

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

# What marks a shard, whose it is, and what to take instead.
_MARKS_OF_SHARDS = {
    "_fsdp_flattened": (
        "torch's FullyShardedDataParallel",
        "use fully_shard (FSDP2), whose parameters are DTensors",
    ),
    "ds_id": ("DeepSpeed's ZeRO stage 3", "use stage 1 or 2, or fully_shard"),
    "tensor_model_parallel": (
        "Megatron's tensor parallelism",
        "use torch's parallelize_module, whose parameters are DTensors",
    ),
}
_DTYPES = {torch.float64, torch.float32, torch.bfloat16, torch.float16}


def parameter_names(index: int, group: Mapping[str, Any]) -> list[str]:
    """Returns the names of a group's parameters, or `group.position` without names."""
    names: list[str] = group.get("param_names") or []
    # They do not follow where someone changes the list of parameters in place.
    fit, count = len(names) == len(group["params"]), len(group["params"])
    return names if fit else [f"{index}.{position}" for position in range(count)]


def check_parameters(optimizer: str, index: int, group: Mapping[str, Any]) -> None:
    """Raises unless each parameter is a real floating-point tensor, and there once.

    Raises:
        UnsupportedTensorError: One is complex or integer, or in the group again.
    """
    if twice := len(group["params"]) - len(set(group["params"])):
        message = (
            f"{optimizer}: a group must hold a parameter once, but {twice} of group "
            f"{index} are in it again; pass list(dict.fromkeys(params))"
        )
        raise UnsupportedTensorError(message)
    for name, param in zip(parameter_names(index, group), group["params"], strict=True):
        if param.dtype in _DTYPES:
            continue
        hint = ""
        if param.is_complex():
            hint = "; pass torch.view_as_real(p) for a complex p"
        message = (
            f"{optimizer}: parameters must be float64, float32, bfloat16 or float16, but "
            f"parameter {name} of shape {tuple(param.shape)} is {param.dtype}{hint}"
        )
        raise UnsupportedTensorError(message)


def check_whole(optimizer: str, index: int, group: Mapping[str, Any]) -> None:
    """Raises if a parameter is marked as a shard by something that is no DTensor.

    Its norm cannot be that of the whole: the other shards are not known.

    Raises:
        UnsupportedTensorError: One is.
    """
    for name, param in zip(parameter_names(index, group), group["params"], strict=True):
        for mark, (whose, way_out) in _MARKS_OF_SHARDS.items():
            if getattr(param, mark, False) is False:
                continue
            message = (
                f"{optimizer}: norms must be those of whole tensors, but parameter "
                f"{name} is a shard of {whose}, whose other shards are not known here; "
                f"{way_out}. Clip by what it offers, without max_grad_norm; AGD without "
                "max_grad_norm takes no norm. Nothing was stepped"
            )
            raise UnsupportedTensorError(message)


def sharding_owner(new: Optimizer) -> str | None:
    """Returns the class of an optimizer that is building another for a part of its own.

    Such as torch's `ZeroRedundancyOptimizer`, which gives each rank a part of the
    parameters. None if nothing of the kind is on the stack.
    """
    frame = inspect.currentframe()
    while dist.is_available() and dist.is_initialized() and frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Optimizer) and owner is not new:
            held = vars(owner).values()
            groups = [one for one in held if isinstance(one, dist.ProcessGroup)]
            if any(group.size() > 1 for group in groups):
                return type(owner).__name__
        frame = frame.f_back
    return None


def params_with_gradients(
    optimizer: str, index: int, group: Mapping[str, Any]
) -> list[Tensor]:
    """Returns the group's parameters that have a gradient, each dense and real.

    Raises:
        UnsupportedTensorError: A gradient is sparse or complex, or has another shape
            or device than its parameter, or one of them was freed.
    """
    params = []
    for name, param in zip(parameter_names(index, group), group["params"], strict=True):
        if param.grad is None:
            continue
        if problem := _misfit(param, param.grad):
            rule, found = problem
            message = (
                f"{optimizer}: gradients must be {rule}, but that of parameter {name} of "
                f"shape {tuple(param.shape)} is {found}"
            )
            raise UnsupportedTensorError(message)
        params.append(param)
    return params


def _misfit(param: Tensor, grad: Tensor) -> tuple[str, str] | None:
    """Returns what a gradient must be and what it is instead; None if it fits."""
    nothing = "; nothing was stepped"
    if hasattr(param, "to_local") and not hasattr(grad, "to_local"):
        return "DTensors where parameters are", f"a plain tensor{nothing}"
    if grad.shape != param.shape or grad.device != param.device:
        found = (
            f"of shape {tuple(grad.shape)} on {grad.device}{nothing}. Clear it when "
        )
        rule = f"shaped like their parameters and on their device, {param.device}"
        return rule, f"{found}the parameter changes"
    is_dense = grad.layout is torch.strided
    if not is_dense or grad.is_complex():
        found = (
            f"{grad.dtype if is_dense else grad.layout}{nothing}. Use sparse=False in"
        )
        way_out = "the embedding, or another optimizer for this parameter"
        return "dense and real", f"{found} {way_out}"
    if any(is_freed(local_part(tensor)) for tensor in (param, grad)):
        whose = "freed, or the parameter was, as by FSDP where they are not in use"
        return "in memory with their parameters", f"{whose}{nothing}"
    return None


def check_finite(
    optimizer: str,
    groups: Sequence[Mapping[str, Any]],
    on_any_rank: Callable[[bool], bool],
) -> None:
    """Raises if a gradient of a group with `check_finite` is not finite; waits for it.

    Args:
        optimizer: The optimizer's name.
        groups: Its groups.
        on_any_rank: Whether something is so on any of the ranks that step together.

    Raises:
        NonFiniteGradientError: One holds an infinity or a NaN.
    """
    message = None
    for index, group in enumerate(groups):
        if not group["check_finite"] or message:
            continue
        names = parameter_names(index, group)
        found = [
            (name, local_part(param.grad, like=param))
            for name, param in zip(names, group["params"], strict=True)
            if param.grad is not None
        ]
        # 0 times a sum is 0 just if every element is finite; one wait tells for all.
        sums = [grad.sum(dtype=torch.float64) * 0 for _, grad in found]
        if not sums or not bool(torch.stack([s.cpu() for s in sums]).sum() != 0):
            continue
        for name, grad in found:
            count = int((~torch.isfinite(grad)).sum())
            if count and not message:
                message = (
                    f"{optimizer}: gradients must be finite, but {count} of "
                    f"{grad.numel()} elements of that of parameter {name} are not; "
                    "nothing was stepped"
                )
    if on_any_rank(message is not None):
        message = message or (
            f"{optimizer}: gradients must be finite, but on another rank one is not; "
            "nothing was stepped"
        )
        raise NonFiniteGradientError(message)
