"""GPUs of CUDA and ROCm, both of which torch calls `cuda`."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib.util
from typing import TYPE_CHECKING

import torch

from drivetrain_core.accelerators._torch_accelerator import TorchAccelerator

if TYPE_CHECKING:
    from drivetrain_core.accelerators.facts import AcceleratorFacts


class CudaAccelerator(TorchAccelerator):
    """What torch's generic interface does not tell of these."""

    def __init__(self) -> None:
        """Asks nothing yet."""
        super().__init__("cuda")

    def facts(self, index: int = 0) -> AcceleratorFacts:
        """Returns the compute capability as well, and whether Triton is there."""
        found = super().facts(index)
        properties = torch.cuda.get_device_properties(index)
        has_triton = importlib.util.find_spec("triton") is not None
        return dataclasses.replace(
            found,
            capability=(properties.major, properties.minor),
            shared_memory_bytes=getattr(properties, "shared_memory_per_block_optin", 0),
            compiler_needs="" if has_triton else "triton",
            triton=has_triton,
        )

    def version(self) -> str:
        """Returns the version of CUDA or ROCm that torch was built with."""
        is_rocm = torch.version.hip is not None
        return f"ROCm {torch.version.hip}" if is_rocm else f"CUDA {torch.version.cuda}"

    def driver(self) -> str:
        """Returns the newest version of CUDA that the driver takes."""
        version = ctypes.c_int()
        try:
            ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
        except (OSError, AttributeError):
            return ""
        return str(version.value)

    def register_host_memory(self, address: int, size_bytes: int) -> str:
        """Registers memory with the driver."""
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        code = int(cudart.cudaHostRegister(address, size_bytes, 0))
        if code == 0:
            return ""
        _forget_error()
        return f"CUDA does not register it: error {code}"

    def unregister_host_memory(self, address: int) -> None:
        """Gives memory back; what it says of memory that it does not know is dropped."""
        if int(torch.cuda.cudart().cudaHostUnregister(address)):  # type: ignore[no-untyped-call]
            _forget_error()


def _forget_error() -> None:
    """Clears the error of a call, which the next launch of a kernel would raise again."""
    name = f"libcudart.so.{str(torch.version.cuda).split('.', 1)[0]}"
    # One that is linked into torch itself cannot be asked.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(name).cudaGetLastError()
