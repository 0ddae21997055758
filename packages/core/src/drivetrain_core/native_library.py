"""Compiled parts of packages, found where they were installed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["address_of", "find_library", "load_extension", "without_memory"]


def load_extension(module: str) -> tuple[Any, str | None]:
    """Returns an extension module, or None and why it is not there.

    Args:
        module: Its name.

    Example:
        >>> load_extension("drivetrain_core.no_such_module")
        (None, "the package was installed without a C++ compiler or Python's headers")
    """
    try:
        return importlib.import_module(module), None
    except ImportError as error:
        # What the module itself imports may be missing, too.
        if isinstance(error, ModuleNotFoundError) and error.name == module:
            because = "without a C++ compiler or Python's headers"
            return None, f"the package was installed {because}"
        return None, f"its library does not load: {error}"


def find_library(package: str, file: str) -> Path | None:
    """Returns a library that was built with a package; None if it was not.

    In an editable installation the library and the sources lie in two folders.

    Args:
        package: The name of the package, which is imported.
        file: The name of the library's file in it.

    Example:
        >>> find_library("drivetrain_core", "there_is_none.so") is None
        True
    """
    folders = map(Path, sys.modules[package].__path__)
    return next((f / file for f in folders if (f / file).exists()), None)


def address_of(tensor: Tensor, name: str) -> int:
    """Returns where the values of a tensor lie side by side, for native code.

    Args:
        tensor: The tensor, of any shape; it must live while the address is used.
        name: What the error calls it.

    Raises:
        TypeError: They do not lie in this process's memory, or not in order.

    Example:
        >>> import torch
        >>> address_of(torch.ones(2, 3).T, "the weight")
        Traceback (most recent call last):
        TypeError: the weight, a Tensor of shape (3, 2), does not lie side by side
    """
    if not tensor.is_cpu:
        why = f"lies on {tensor.device}, and not in this memory"
    elif tensor.is_nested or str(tensor.layout) != "torch.strided":
        why = f"is not dense, but {'nested' if tensor.is_nested else tensor.layout}"
    elif tensor.is_conj() or tensor.is_neg():
        why = "is a lazy view: call resolve_conj() or resolve_neg()"
    elif not tensor.is_contiguous():
        why = "does not lie side by side"
    elif not (why := without_memory(tensor)):
        return tensor.data_ptr()
    # What is nested has no shape.
    shape = "" if tensor.is_nested else f" of shape {tuple(tensor.shape)}"
    message = f"{name}, a {type(tensor).__name__}{shape}, {why}"
    raise TypeError(message)


def without_memory(tensor: Tensor) -> str:
    """Returns why a strided tensor on a CPU has no memory to be read; "" if it has.

    Example:
        >>> import torch
        >>> without_memory(torch.ones(2)), without_memory(torch.ones(0))
        ('', '')
    """
    # A fake tensor warns when it is asked for its address.
    is_fake = hasattr(tensor, "fake_mode")
    if not is_fake and (tensor.data_ptr() or not tensor.numel()):
        return ""
    if tensor.untyped_storage().nbytes():
        return "has no memory of its own: it is fake, or stands for other tensors"
    return "has no memory: it was freed, as FSDP does with parameters not in use"
