"""Precision: fp32, tf32, bf16 autocast, or bf16 weights with fp32 masters."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core._choice import (
    Choice,
    Config,
    Numerics,
    Ok,
    Option,
    Phase,
    Reject,
    Slot,
)
from drivetrain_core._data.batch import map_tensors
from drivetrain_core._errors import Code
from drivetrain_core._model.forward import Forward, wrap_forward
from drivetrain_core._optimization import BaseOptimization

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_core._context import Context
    from drivetrain_core._state import TrainingState

_TF32_CAPABILITY = (8, 0)


class Precision(BaseOptimization):
    """Chooses the number format of the matrix products and of the weights.

    `bf16_autocast` keeps fp32 weights and casts around each product; `bf16_params`
    keeps bf16 weights with fp32 masters in the optimizer (under FSDP2: fp32 shards,
    bf16 when gathered, fp32 reduction). The model's outputs are always cast to fp32,
    so the loss is computed in fp32. Buffers stay as they are, such as tables of
    frequencies and moving averages, and so do the weights of BatchNorm. A model that has
    such buffers, or computes its own loss, runs under autocast as well, which computes
    losses in fp32. Until `Accelerated.close` the module of `bf16_params` has bf16 weights,
    and the optimizer's state dict is none of a plain one: save `Accelerated.state`.
    """

    name = "precision"
    slot = Slot.PRECISION
    phase = Phase.MODEL_SWAP
    options = {
        "dtype": Option(
            "bf16_autocast", choices=("fp32", "tf32", "bf16_autocast", "bf16_params")
        )
    }
    shorthand = "dtype"

    def numerics(self, config: Config) -> Numerics:
        """Returns `EXACT` for fp32, else `LOW_PRECISION`."""
        low = config["dtype"] != "fp32"
        return Numerics.LOW_PRECISION if low else Numerics.EXACT

    def configs(self, context: Context) -> Iterable[Config]:
        """Returns what the device has of tf32 and both bf16 forms, for fp32 models."""
        if context.model.dtypes != ("float32",):
            return []
        names = ["bf16_autocast", "bf16_params"] if _has_bf16(context) else []
        if context.device.capability >= _TF32_CAPABILITY:
            names.insert(0, "tf32")
        return [{"dtype": name} for name in names]

    def check(
        self, context: Context, config: Config, plan: Sequence[Choice]
    ) -> Ok | Reject:
        """Rejects what the device lacks, and bf16 for models that are not fp32."""
        del plan
        dtype = config["dtype"]
        if dtype == "tf32" and context.device.capability < _TF32_CAPABILITY:
            return Reject(
                Code.NEEDS_DEVICE,
                f"tf32 needs a CUDA device of capability 8.0, this is {context.device.name}",
                "use bf16_autocast" if _has_bf16(context) else "use fp32",
            )
        bf16 = dtype in ("bf16_autocast", "bf16_params")
        if bf16 and not _has_bf16(context):
            because = f"{context.device.name} does not compute in bf16"
            return Reject(Code.NEEDS_DEVICE, because, "use fp32")
        if bf16 and context.model.dtypes != ("float32",):
            return Reject(
                Code.NOT_APPLICABLE,
                f"{dtype} starts from fp32 weights, the model has {', '.join(context.model.dtypes)}",
                "hand over the model in fp32",
            )
        return Ok()

    def apply(self, state: TrainingState, config: Config) -> None:
        """Sets matmul precision, wraps the forward, or converts the weights."""
        dtype = config["dtype"]
        if dtype in ("fp32", "tf32"):
            before = torch.get_float32_matmul_precision()
            state.undo.append(lambda: torch.set_float32_matmul_precision(before))
            torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
            return
        if state.device.type == "cpu" and not _has_bf16_lstm():
            for module in state.module.modules():
                if isinstance(module, torch.nn.LSTM):
                    wrap_forward(module, _without_onednn)
        if dtype == "bf16_autocast":
            wrap_forward(state.module, _autocast(state.device.type))
        else:
            weighted = [m for m in state.module.modules() if _is_converted(m)]
            # FSDP2 casts when it gathers and keeps fp32 shards, which are the masters.
            if not state.is_planned("fsdp"):
                _convert(weighted, torch.bfloat16)
                state.undo.append(lambda: _convert(weighted, torch.float32))
                state.optimizer_source = state.optimizer_source.with_master_weights()
            if state.returns_loss or any(map(_keeps_fp32, state.module.modules())):
                for module in weighted:
                    wrap_forward(module, _cast_inputs)
                wrap_forward(state.module, _autocast(state.device.type))
            else:
                wrap_forward(state.module, _cast_ends)


def _has_bf16(context: Context) -> bool:
    return "bfloat16" in context.device.dtypes


def _has_bf16_lstm() -> bool:
    """Whether oneDNN has a bf16 LSTM for this CPU, which needs AVX-512."""
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return supported is None or bool(supported())


def _without_onednn(forward: Forward) -> Forward:
    # Torch hands every bf16 LSTM to oneDNN, which raises where it has none; torch's own
    # runs anywhere. `torch.backends.mkldnn.flags` sets more than that, and warns of it.
    def run(self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        before = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            return forward(self, *args, **kwargs)
        finally:
            torch._C._set_mkldnn_enabled(before)

    return run


def _to_fp32(output: Any) -> Any:
    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float() if tensor.dtype == torch.bfloat16 else tensor

    return _map_output(cast, output)


def _map_output(function: Any, output: Any) -> Any:
    """Maps the tensors of an output, of an object with attributes as well."""
    mapped = map_tensors(function, output)
    if isinstance(output, torch.Tensor):
        return mapped
    if mapped is output and hasattr(output, "__dict__"):
        found = {k: v for k, v in vars(output).items() if isinstance(v, torch.Tensor)}
        mapped = copy.copy(output) if found else output
        vars(mapped).update({key: function(value) for key, value in found.items()})
    return mapped


def _autocast(device_type: str) -> Any:
    def around(forward: Forward) -> Forward:
        def run(self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            with torch.autocast(device_type, torch.bfloat16):
                output = forward(self, *args, **kwargs)
            return _to_fp32(output)

        return run

    return around


def _cast_inputs(forward: Forward) -> Forward:
    def run(self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        # Back in fp32, once the plan is closed, the module takes what it took before.
        own = next(self.parameters(recurse=False), None)
        if own is not None and own.dtype == torch.bfloat16:
            args, kwargs = map_tensors(_down, args), map_tensors(_down, kwargs)
        return forward(self, *args, **kwargs)

    return run


def _cast_ends(forward: Forward) -> Forward:
    def run(self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        if any(p.dtype == torch.bfloat16 for p in self.parameters()):
            args, kwargs = map_tensors(_down, args), map_tensors(_down, kwargs)
        return _to_fp32(forward(self, *args, **kwargs))

    return run


def _down(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16() if tensor.dtype == torch.float32 else tensor


def _keeps_fp32(module: torch.nn.Module) -> bool:
    """Returns whether a module has fp32 buffers that its users may combine with others."""
    buffers = module.buffers(recurse=False)
    return not _is_batch_norm(module) and any(map(torch.is_floating_point, buffers))


def _is_batch_norm(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.modules.batchnorm._BatchNorm)


def _is_converted(module: torch.nn.Module) -> bool:
    """Returns whether a module's own parameters are kept in bf16."""
    own = next(module.parameters(recurse=False), None)
    return own is not None and not _is_batch_norm(module)


def _convert(modules: Iterable[torch.nn.Module], dtype: torch.dtype) -> None:
    """Gives the floating parameters of modules another format, each in its place.

    Tied parameters stay one object then.
    """
    for module in modules:
        for parameter in module.parameters(recurse=False):
            if parameter.dtype in (torch.float32, torch.bfloat16):
                parameter.data = parameter.data.to(dtype)
