"""Fused training operators for PyTorch, and a compile selector.

Importing this package does not import torch; the first use of an op does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_core.lazy import load_export as _load_export
from drivetrain_kernels._errors import (
    DeviceError,
    DtypeError,
    ImplementationError,
    ImplementationNameError,
    IndexRangeError,
    OptionError,
    ReplacementError,
    SelectionError,
    ShapeError,
)

if TYPE_CHECKING:
    from drivetrain_kernels._explain import Explanation, explain
    from drivetrain_kernels._mixture import MoE
    from drivetrain_kernels._modules import (
        GEGLU,
        AddRMSNorm,
        LayerNorm,
        RMSNorm,
        RotaryEmbedding,
        SwiGLU,
    )
    from drivetrain_kernels._transformer_blocks import ParallelBlock, SerialBlock
    from drivetrain_kernels._version import __version__
    from drivetrain_kernels.ops._add_rms_norm import add_rms_norm
    from drivetrain_kernels.ops._attention import attention
    from drivetrain_kernels.ops._clip_grad_norm import clip_grad_norm_
    from drivetrain_kernels.ops._cross_entropy import cross_entropy
    from drivetrain_kernels.ops._dropout_add_rms_norm import dropout_add_rms_norm
    from drivetrain_kernels.ops._geglu import geglu
    from drivetrain_kernels.ops._layer_norm import layer_norm
    from drivetrain_kernels.ops._linear_cross_entropy import linear_cross_entropy
    from drivetrain_kernels.ops._moe import MoEResult, moe
    from drivetrain_kernels.ops._parallel_block import parallel_block
    from drivetrain_kernels.ops._rms_norm import rms_norm
    from drivetrain_kernels.ops._rope import rope
    from drivetrain_kernels.ops._swiglu import swiglu
    from drivetrain_kernels.replacement._handle import Left, Replaced, Replacement
    from drivetrain_kernels.replacement._replace import replace
    from drivetrain_kernels.selector._decide import Trial
    from drivetrain_kernels.selector._select import Selected, select
    from drivetrain_kernels.selector._watch import Watch

__all__ = [
    "GEGLU",
    "AddRMSNorm",
    "DeviceError",
    "DtypeError",
    "Explanation",
    "ImplementationError",
    "ImplementationNameError",
    "IndexRangeError",
    "LayerNorm",
    "Left",
    "MoE",
    "MoEResult",
    "OptionError",
    "ParallelBlock",
    "RMSNorm",
    "Replaced",
    "Replacement",
    "ReplacementError",
    "RotaryEmbedding",
    "Selected",
    "SelectionError",
    "SerialBlock",
    "ShapeError",
    "SwiGLU",
    "Trial",
    "Watch",
    "__version__",
    "add_rms_norm",
    "attention",
    "clip_grad_norm_",
    "cross_entropy",
    "dropout_add_rms_norm",
    "explain",
    "geglu",
    "layer_norm",
    "linear_cross_entropy",
    "moe",
    "parallel_block",
    "replace",
    "rms_norm",
    "rope",
    "select",
    "swiglu",
]

_MODULES = {
    "_explain": ("Explanation", "explain"),
    "_mixture": ("MoE",),
    "_modules": (
        "GEGLU",
        "AddRMSNorm",
        "LayerNorm",
        "RMSNorm",
        "RotaryEmbedding",
        "SwiGLU",
    ),
    "_transformer_blocks": ("ParallelBlock", "SerialBlock"),
    "_version": ("__version__",),
    "ops._add_rms_norm": ("add_rms_norm",),
    "ops._attention": ("attention",),
    "ops._clip_grad_norm": ("clip_grad_norm_",),
    "ops._cross_entropy": ("cross_entropy",),
    "ops._dropout_add_rms_norm": ("dropout_add_rms_norm",),
    "ops._geglu": ("geglu",),
    "ops._layer_norm": ("layer_norm",),
    "ops._linear_cross_entropy": ("linear_cross_entropy",),
    "ops._moe": ("moe", "MoEResult"),
    "ops._parallel_block": ("parallel_block",),
    "ops._rms_norm": ("rms_norm",),
    "ops._rope": ("rope",),
    "ops._swiglu": ("swiglu",),
    "replacement._handle": ("Left", "Replaced", "Replacement"),
    "replacement._replace": ("replace",),
    "selector._decide": ("Trial",),
    "selector._select": ("Selected", "select"),
    "selector._watch": ("Watch",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports what needs torch, or takes time, when it is first used."""
    return _load_export(__name__, _HOMES, name)


def __dir__() -> list[str]:
    """Returns the public names."""
    return list(__all__)
