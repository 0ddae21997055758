"""Lets tensors without values lie on a CUDA device on a machine that has none.

PyTorch's rules for a device, its autocast, its fused operators, its optimizers' default
steps, hold for a FakeTensor of that device wherever it runs. Two places ask for a device
all the same: guards, which a build without CUDA lacks, and the autograd engine, which
asks for the accelerator of the process. PyTorch has a guard that does nothing, and puts
it where a guard says that there are no devices; the engine asks a few virtual functions
whether CUDA is there, which they say as long as a backward of a recording runs.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from drivetrain_memory._errors import MemoryUseError, refused

if TYPE_CHECKING:
    from collections.abc import Iterator

_CUDA = 1  # c10::DeviceType
_POINTER_BYTES = ctypes.sizeof(ctypes.c_void_p)
# More than any of PyTorch's tables of virtual functions has.
_MOST_SLOTS = 96
_function = ctypes.CFUNCTYPE(ctypes.c_int)
_refuse_build = refused(
    f"PyTorch {torch.__version__} without a GPU", "use Linux, or a machine with a GPU"
)
_none, _one = _function(lambda: 0), _function(lambda: 1)


class Values(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Tensors without values, which never begin to use a device that is there."""

    avoid_device_init = True
    refusal: MemoryUseError | None = None

    def __init__(self, **options: Any) -> None:
        """Belongs to the thread that makes it."""
        super().__init__(**options)
        self._thread = threading.get_ident()

    def require_thread(self) -> None:
        """Refuses the device to other threads, whose storages would not be recorded.

        What they do with the error is not known: `refusal` keeps it.
        """
        if threading.get_ident() != self._thread:
            self.refusal = MemoryUseError(
                f"{threading.current_thread().name} computes on the device of a program "
                "that is recorded in another thread: compute in that one"
            )
            raise self.refusal

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Runs an operator in the thread that it belongs to."""
        self.require_thread()
        return super().__torch_dispatch__(func, types, args, kwargs)


@functools.cache
def require_simulation() -> None:
    """Finds what to tell PyTorch, so that it takes CUDA for a device that is there.

    Raises:
        MemoryUseError: This build of PyTorch cannot be told so.
    """
    if not _has_guard():
        _refuse_build()
    if torch._C._get_accelerator().type != "cuda":
        _hooks_with_cuda()


def _has_guard() -> bool:
    """Lets PyTorch put its guard that does nothing where it has none for CUDA."""
    name = "_ZN3c104impl26device_guard_impl_registryE"
    try:
        guards = (ctypes.c_void_p * (_CUDA + 1)).in_dll(_library("c10"), name)
    except (OSError, ValueError):
        return False
    if guards[_CUDA] is None:
        # Whichever of its functions is asked for the number of devices says 0.
        table = (ctypes.c_void_p * _MOST_SLOTS)(*[_address(_none)] * _MOST_SLOTS)
        asked = ctypes.c_void_p(ctypes.addressof(table))
        guards[_CUDA] = ctypes.addressof(asked)
        torch._C._ensureCUDADeviceGuardSet()
        if guards[_CUDA] == ctypes.addressof(asked):
            guards[_CUDA] = None
    return guards[_CUDA] is not None


@contextmanager
def accelerator_is_cuda() -> Iterator[None]:
    """Meanwhile the process's accelerator is CUDA, as the autograd engine asks for it.

    It computes in the thread that calls it: one of its own might still hold something when
    the process ends.
    """
    with ExitStack() as stack:
        if torch._C._get_accelerator().type != "cuda":
            hooks, table = _hooks_with_cuda()
            stack.callback(setattr, hooks, "value", hooks.value)
            hooks.value = ctypes.addressof(table)
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        yield


@functools.cache
def _hooks_with_cuda() -> tuple[ctypes.c_void_p, ctypes.Array[ctypes.c_void_p]]:
    """Returns where the hooks have their functions, and those of which some say yes."""
    try:
        get_hooks = _library("torch_cpu")._ZN2at6detail12getCUDAHooksEv
    except (OSError, AttributeError):
        _refuse_build()
    get_hooks.restype = ctypes.c_void_p
    hooks = ctypes.c_void_p.from_address(get_hooks())
    before = hooks.value
    assert before is not None
    slots = (ctypes.c_void_p * _MOST_SLOTS).from_address(before)
    table = (ctypes.c_void_p * _MOST_SLOTS)(*[_address(_one)] * _MOST_SLOTS)
    hooks.value, values = ctypes.addressof(table), Values()
    try:
        if not _runs_backward(values):
            _refuse_build()
        # What the engine does not need stays what it was.
        for slot in range(_MOST_SLOTS):
            table[slot] = slots[slot]
            if not _runs_backward(values):
                table[slot] = _address(_one)
    finally:
        hooks.value = before
    return hooks, table


def _runs_backward(values: Values) -> bool:
    """Returns whether the engine computes a gradient on a device that is not there."""
    try:
        with (
            _disable_current_modes(),
            values,
            torch.autograd.set_multithreading_enabled(False),
        ):
            no_values = torch.empty(1, device="meta", requires_grad=True)
            weight = FakeTensor(values, no_values, torch.device("cuda", 0))
            torch.autograd.grad(2 * weight, weight, weight)
    except RuntimeError:
        return False
    return True


def _address(function: ctypes._FuncPointer) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value


def _library(name: str) -> ctypes.CDLL:
    folder = Path(torch.__file__).parent / "lib"
    return ctypes.CDLL(str(next(iter(folder.glob(f"lib{name}.*")), name)))
