"""The exceptions of this package.

Each inherits core's `DrivetrainError` and the nearest built-in:

    DrivetrainError
     |- ImplementationError (RuntimeError)   an implementation asked for cannot run here
     |- ImplementationNameError (ValueError) there is no implementation of that name
     |- ShapeError (ValueError)              sizes do not fit each other
     |- DtypeError (TypeError)               a tensor has a dtype that the op cannot take
     |- DeviceError (ValueError)             tensors lie on different devices
     |- IndexRangeError (IndexError)         a target or an offset is out of its range
     |- OptionError (ValueError)             an option has a value that is not allowed
     |- ReplacementError (ValueError)        a model or a plan cannot be replaced so
     `- SelectionError (ValueError)          there is nothing that could be selected so
"""

from __future__ import annotations

from drivetrain_core import DrivetrainError


class DeviceError(DrivetrainError, ValueError):
    """Tensors of one call lie on different devices.

    Example:
        >>> issubclass(DeviceError, ValueError)
        True
    """


class DtypeError(DrivetrainError, TypeError):
    """A tensor has a dtype that the op cannot take.

    Example:
        >>> import torch
        >>> from drivetrain_kernels import rms_norm
        >>> rms_norm(torch.zeros(2, 3, dtype=torch.int64))
        Traceback (most recent call last):
        ...
        drivetrain_kernels._errors.DtypeError: rms_norm: x must be float64, float32, \
bfloat16 or float16, got torch.int64; convert it first
    """


class ImplementationError(DrivetrainError, RuntimeError):
    """An implementation was asked for by name, and cannot run this call.

    Example:
        >>> import torch
        >>> from drivetrain_kernels import rms_norm
        >>> rms_norm(torch.zeros(2, 3, dtype=torch.float64), impl="cutile")
        Traceback (most recent call last):
        ...
        drivetrain_kernels._errors.ImplementationNameError: rms_norm: there is no \
implementation 'cutile'; it has 'triton', 'eager', 'torch', 'compiled', \
'reference', or take 'auto'
    """


class ImplementationNameError(DrivetrainError, ValueError):
    """An op has no implementation of the name that was asked for.

    Example:
        >>> issubclass(ImplementationNameError, ValueError)
        True
    """


class IndexRangeError(DrivetrainError, IndexError):
    """A tensor of classes, positions or offsets holds one that is out of its range.

    Example:
        >>> import torch
        >>> from drivetrain_kernels import cross_entropy
        >>> cross_entropy(torch.zeros(2, 3), torch.tensor([0, 3]))
        Traceback (most recent call last):
        ...
        drivetrain_kernels._errors.IndexRangeError: cross_entropy: a target must be in \
0 to 2 or ignore_index=-100, got 3 at token 1
    """


class OptionError(DrivetrainError, ValueError):
    """An option of an op has a value that is not allowed.

    Example:
        >>> import torch
        >>> from drivetrain_kernels import rms_norm
        >>> rms_norm(torch.zeros(2, 3), eps=-1.0)
        Traceback (most recent call last):
        ...
        drivetrain_kernels._errors.OptionError: rms_norm: eps must be >= 0, got -1.0
    """


class ReplacementError(DrivetrainError, ValueError):
    """`replace` was given a plan or a model that it cannot work on.

    Example:
        >>> import torch
        >>> from drivetrain_kernels import replace
        >>> replace(torch.nn.Linear(2, 2), {"rmsnorm": "reference"})
        Traceback (most recent call last):
        ...
        drivetrain_kernels._errors.ReplacementError: a plan names kinds of modules; \
there is no kind 'rmsnorm', nearest: rms_norm; the kinds are cross_entropy, \
geglu, layer_norm, rms_norm, swiglu
    """


class SelectionError(DrivetrainError, ValueError):
    """`select` was given something that it cannot run, or choose between.

    Example:
        >>> import torch
        >>> from drivetrain_kernels import select
        >>> select(torch.nn.Linear(2, 2), [])
        Traceback (most recent call last):
        ...
        drivetrain_kernels._errors.SelectionError: select() needs one example batch or \
more, got none
    """


class ShapeError(DrivetrainError, ValueError):
    """Sizes of the tensors of one call do not fit each other.

    Example:
        >>> import torch
        >>> from drivetrain_kernels import rms_norm
        >>> rms_norm(torch.zeros(2, 3), torch.ones(4))
        Traceback (most recent call last):
        ...
        drivetrain_kernels._errors.ShapeError: rms_norm: weight must have the shape \
(3,), got (4,)
    """
