"""What a process has set in torch for all that it computes, as trials set it too."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def read_settings() -> dict[str, Any]:
    """Returns the settings of this process and thread, to be sent to another.

    Example:
        >>> read_settings()["dtype"]
        torch.float32
    """
    return {name: get() for name, (get, _) in _SETTINGS.items()}


def apply_settings(settings: Mapping[str, Any]) -> None:
    """Sets what is set otherwise here.

    Args:
        settings: From `read_settings`.
    """
    for name, value in settings.items():
        get, put = _SETTINGS[name]
        if get() != value:
            put(value)


def _flushes_denormal() -> bool:
    # Torch has no question for it; what a thread does is the same for all that it computes.
    return sys.float_info.min / 2.0 == 0.0


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _cudnn() -> dict[str, bool]:
    return {name: getattr(torch.backends.cudnn, name) for name in _CUDNN}


def _set_cudnn(found: dict[str, bool]) -> None:
    for name, is_on in found.items():
        setattr(torch.backends.cudnn, name, is_on)


def _autocast() -> dict[str, tuple[bool, torch.dtype]]:
    here = torch.accelerator.current_accelerator()
    kinds = ["cpu", here.type] if here else ["cpu"]
    return {
        k: (torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in kinds
    }


def _set_autocast(found: dict[str, tuple[bool, torch.dtype]]) -> None:
    for kind, (is_on, dtype) in found.items():
        torch.set_autocast_enabled(kind, is_on)
        torch.set_autocast_dtype(kind, dtype)


def _attention() -> dict[str, bool]:
    return {name: getattr(torch._C, f"_get_{name}_sdp_enabled")() for name in _SDP}


def _set_attention(found: dict[str, bool]) -> None:
    for name, is_on in found.items():
        getattr(torch._C, f"_set_sdp_use_{name}")(is_on)


_CUDNN = ("enabled", "benchmark", "deterministic")
_SDP = ("flash", "mem_efficient", "math", "cudnn")
_SETTINGS: Mapping[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "matmul": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "deterministic": (
        torch.get_deterministic_debug_mode,
        torch.set_deterministic_debug_mode,
    ),
    "denormal": (_flushes_denormal, torch.set_flush_denormal),
    "anomaly": (_anomaly, lambda found: torch.autograd.set_detect_anomaly(*found)),
    "cudnn": (_cudnn, _set_cudnn),
    "onednn": (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    "attention": (_attention, _set_attention),
    "autocast": (_autocast, _set_autocast),
    "recursion": (sys.getrecursionlimit, sys.setrecursionlimit),
}
