"""Availability of libraries, kernels and torch's functions; each is looked up once."""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import TYPE_CHECKING, TypeVar

import torch
from torch.autograd import forward_ad

from drivetrain_core.accelerators import accelerator_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_core.accelerators import AcceleratorFacts

MIN_CAPABILITY = (8, 0)  # the first with bfloat16

# Where the interpreter reads and writes the memory of tensors.
_INTERPRETED = ("cpu", "cuda")

_found: dict[str, str | None] = {}

_CallT = TypeVar("_CallT", bound="Callable[..., object]")


def _constant(function: _CallT) -> _CallT:
    """Lets torch.compile take a function's result as it is while it traces."""
    marked: _CallT = torch.compiler.assume_constant_result(function)  # type: ignore[no-untyped-call]
    return marked


def _is_installed(library: str) -> bool:
    try:
        return importlib.util.find_spec(library) is not None
    except (ImportError, ValueError):
        return False


@_constant
def library_missing(library: str) -> str | None:
    """Returns why a library cannot be imported, or None if it is installed.

    Args:
        library: Its import name.

    Example:
        >>> library_missing("torch")
        >>> library_missing("no_such_library")
        'no_such_library is not installed'
    """
    if library not in _found:
        there = _is_installed(library)
        _found[library] = None if there else f"{library} is not installed"
    return _found[library]


def triton_interprets() -> bool:
    """Returns whether Triton's kernels run in its interpreter, on any device.

    Triton decides by `TRITON_INTERPRET` when a kernel is defined, so that the variable
    has to be set before the first use of a Triton implementation.
    """
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


@_constant
def transforms_active() -> str | None:
    """Returns why an operator with a gradient of its own cannot run, or None if it can.

    Example:
        >>> torch.func.grad(lambda x: x if transforms_active() else 0 * x)(torch.ones(()))
        tensor(1.)
    """
    if forward_ad._current_level >= 0:
        return "knows no forward-mode derivative, and would leave it out"
    if torch._C._are_functorch_transforms_active():
        return "has no rule for torch.func, of which a transform is active"
    return None


@_constant
def second_derivative() -> str | None:
    """Returns why an operator without a second derivative cannot run, or None.

    Example:
        >>> second_derivative()
    """
    functorch = torch._C._functorch
    active = [one.key() for one in functorch.get_interpreter_stack() or ()]
    if forward_ad._current_level >= 0 or active.count(functorch.TransformType.Grad) > 1:
        return "has neither a forward-mode nor a second derivative"
    return None


@_constant
def triton_missing(device: str) -> str | None:
    """Returns why Triton's kernels cannot run on a device, or None if they can.

    Args:
        device: The type of the device, such as "cuda".

    Example:
        >>> triton_missing("meta")
        'needs a CUDA tensor, got meta'
    """
    transformed: str | None = transforms_active()
    if transformed is not None:
        return transformed
    interprets = triton_interprets()
    major, minor = (0, 0) if interprets else capability_of(device)
    if major == 0 and not (interprets and device in _INTERPRETED):
        return f"needs a CUDA tensor, got {device}"
    missing = library_missing("triton")
    if missing is not None:
        return f"{missing}: pip install 'drivetrain-kernels[triton]'"
    if interprets or (major, minor) >= MIN_CAPABILITY:
        return None
    return f"needs compute capability 8.0, got {major}.{minor}"


@functools.cache
def _facts_of(device: str) -> AcceleratorFacts | None:
    """Returns what the first device of a type is; None without one."""
    accelerator = accelerator_of(device)
    return accelerator.facts() if accelerator.device_count() else None


@_constant
def capability_of(device: str) -> tuple[int, int]:
    """Returns the compute capability of the first device of a type; (0, 0) has none.

    Args:
        device: The type.

    Example:
        >>> capability_of("cpu")
        (0, 0)
    """
    facts = _facts_of(device)
    return facts.capability if facts else (0, 0)


@_constant
def compiler_missing(device: str) -> str | None:
    """Returns why torch.compile makes no kernels for a device, or None if it does.

    Args:
        device: The type of the device.

    Example:
        >>> compiler_missing("cpu")
    """
    facts = _facts_of(device)
    traces = facts is not None and facts.compiler == "aot_eager"
    return (
        f"needs a device that torch.compile makes kernels for, got {device}"
        if traces
        else None
    )


@_constant
def torch_function_missing(path: str) -> str | None:
    """Returns why a function of torch cannot be used, or None if it is there.

    Args:
        path: Module and name, such as "torch.nn.functional.grouped_mm".

    Example:
        >>> torch_function_missing("torch.nn.functional.rms_norm")
        >>> "has no torch.nn.functional.nothing" in torch_function_missing(
        ...     "torch.nn.functional.nothing")
        True
    """
    if path not in _found:
        module, _, name = path.rpartition(".")
        try:
            there = hasattr(importlib.import_module(module), name)
        except ImportError:
            there = False
        _found[path] = None if there else f"torch {torch.__version__} has no {path}"
    return _found[path]
