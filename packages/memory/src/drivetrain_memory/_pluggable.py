"""Whether this PyTorch takes another allocator of device memory."""

from __future__ import annotations

from drivetrain_memory._errors import DeviceError


def require_pluggable() -> None:
    """Raises DeviceError where this PyTorch was built without CUDA."""
    import torch

    if not hasattr(torch._C, "_cuda_customAllocator"):
        message = f"PyTorch {torch.__version__} was built without CUDA"
        raise DeviceError(message)
