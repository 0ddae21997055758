"""The exceptions of this package.

Each inherits core's `DrivetrainError` and the nearest built-in:

    DrivetrainError
     |- HyperparameterError (ValueError)     an option of an optimizer is not allowed
     |- UnsupportedTensorError (TypeError)   a parameter or gradient cannot be stepped
     |- StateDictError (ValueError)          a state dict is not this optimizer's
     |- StepOrderError (RuntimeError)        the passes of a step are out of order
     |- NonFiniteGradientError (ArithmeticError)   a gradient holds inf or nan
     `- GraphCaptureError (RuntimeError)     a step cannot be part of a CUDA graph
"""

from __future__ import annotations

from drivetrain_core import DrivetrainError


class GraphCaptureError(DrivetrainError, RuntimeError):
    """A step was called while a CUDA graph was captured, which would freeze it.

    Example:
        >>> issubclass(GraphCaptureError, RuntimeError)
        True
    """


class HyperparameterError(DrivetrainError, ValueError):
    """An option of an optimizer has a value that is not allowed.

    Example:
        >>> import torch
        >>> from drivetrain_optim import AGD
        >>> AGD([torch.zeros(2)], lr=-1.0)
        Traceback (most recent call last):
        ...
        drivetrain_optim._errors.HyperparameterError: AGD: lr must be a finite number \
>= 0, got -1.0
    """


class NonFiniteGradientError(DrivetrainError, ArithmeticError):
    """A gradient holds an infinity or a NaN, found before anything was stepped.

    Example:
        >>> import torch
        >>> from drivetrain_optim import AGD
        >>> weight = torch.zeros(2)
        >>> weight.grad = torch.tensor([1.0, float("nan")])
        >>> AGD([("weight", weight)], check_finite=True).step()
        Traceback (most recent call last):
        ...
        drivetrain_optim._errors.NonFiniteGradientError: AGD: gradients must be \
finite, but 1 of 2 elements of that of parameter weight are not; nothing was stepped
    """


class UnsupportedTensorError(DrivetrainError, TypeError):
    """A parameter or a gradient is of a kind that the optimizer cannot step.

    Example:
        >>> import torch
        >>> from drivetrain_optim import AGD
        >>> AGD([torch.zeros(2, dtype=torch.complex64)])
        Traceback (most recent call last):
        ...
        drivetrain_optim._errors.UnsupportedTensorError: AGD: parameters must be \
float64, float32, bfloat16 or float16, but parameter 0.0 of shape (2,) is \
torch.complex64; pass torch.view_as_real(p) for a complex p
    """


class StateDictError(DrivetrainError, ValueError):
    """A state dict was not saved by this kind of optimizer.

    Example:
        >>> import torch
        >>> from drivetrain_optim import AGD
        >>> weight = torch.zeros(2)
        >>> AGD([weight]).load_state_dict(torch.optim.SGD([weight]).state_dict())
        Traceback (most recent call last):
        ...
        drivetrain_optim._errors.StateDictError: AGD: the state dict must be one of \
AGD, but its parameter group 0 has no delta, decay, clip, state_dtype; moments of \
another optimizer mean something else, so start without them
    """


class StepOrderError(DrivetrainError, RuntimeError):
    """A step of several passes was called out of order, or without one of them.

    Example:
        >>> issubclass(StepOrderError, RuntimeError)
        True
    """
