"""Which implementation of a step runs, and why: a decision, made without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from drivetrain_optim._errors import HyperparameterError

if TYPE_CHECKING:
    from collections.abc import Mapping

PATHS: Mapping[str, str] = {
    "loop": "one tensor at a time: the reference",
    "foreach": "multi-tensor operations of torch",
    "native": "a fused kernel in C++, on the CPU",
    "triton": "one launch of a fused Triton kernel over all tensors, on a GPU",
    "capturable": "one tensor at a time with its step count on the device",
}
"""The implementations of a step, and what each of them is."""


class Choice(NamedTuple):
    """An implementation, and why it was chosen.

    Args:
        path: A key of `PATHS`.
        because: The reason.
    """

    path: str
    because: str


def choose_path(
    optimizer: str,
    *,
    foreach: bool | None,
    fused: bool | None,
    capturable: bool,
    device: str,
    fused_missing: str | None,
) -> Choice:
    """Returns how a step runs for parameters of one device and dtype.

    Args:
        optimizer: The optimizer's name, for messages.
        foreach: The option of that name.
        fused: The option of that name.
        capturable: The option of that name.
        device: The type of the device, such as "cpu".
        fused_missing: Why there is no fused kernel for these parameters; None if there
            is one.

    Raises:
        HyperparameterError: A kernel is asked for that does not exist here.

    Example:
        >>> choose_path("AGD", foreach=None, fused=None, capturable=False,
        ...             device="cpu", fused_missing=None)
        Choice(path='native', because='the fastest there is for cpu')
    """
    kernel = "native" if device == "cpu" else "triton"
    if fused and (fused_missing or (capturable and device == "cpu")):
        because = fused_missing or "a capturable step has no fused kernel on a CPU"
        message = f"{optimizer}: fused=True asks for a fused kernel, but {because}"
        raise HyperparameterError(message)
    if fused:
        return Choice(kernel, "fused=True")
    if capturable and foreach is None and fused is None and device != "cpu":
        if fused_missing is None:
            return Choice(kernel, f"the fastest there is for {device}")
        return Choice("capturable", f"capturable=True, and {fused_missing}")
    if capturable:
        return Choice("capturable", "capturable=True")
    if foreach:
        return Choice("foreach", "foreach=True")
    if foreach is False:
        return Choice("loop", "foreach=False")
    if fused is False:
        return Choice("foreach", "fused=False")
    if fused_missing:
        return Choice("foreach", fused_missing)
    return Choice(kernel, f"the fastest there is for {device}")
