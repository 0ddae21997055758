"""Which implementation steps which parameters, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from drivetrain_optim.batched._batched import BatchedOptimizer
from drivetrain_optim.batched._layout import choice_for
from drivetrain_optim.batched._paths import PATHS
from drivetrain_optim.batched._state import local_part
from drivetrain_optim.fused import _native
from drivetrain_optim.wsam._wsam import WSAM

if TYPE_CHECKING:
    from torch.optim import Optimizer


class PathUse(NamedTuple):
    """Parameters of one group that one implementation steps.

    Args:
        group: The number of the group.
        device: Where the parameters lie.
        dtype: Their dtype.
        num_tensors: How many there are.
        num_elements: How many elements they have on this process.
        path: The implementation: "loop", "foreach", "native", "triton" or "capturable".
        because: Why it was chosen.
    """

    group: int
    device: str
    dtype: str
    num_tensors: int
    num_elements: int
    path: str
    because: str


class Explanation(NamedTuple):
    """How an optimizer runs; `str` gives it as text.

    Args:
        optimizer: The name of its class.
        uses: The implementations that it uses.
    """

    optimizer: str
    uses: tuple[PathUse, ...]

    def __str__(self) -> str:
        """Returns one line for each use, and what the implementations are."""
        lines = [self.optimizer]
        if not self.uses:
            lines.append(
                "  stepped by the base optimizer, which is not of this package"
            )
        for use in self.uses:
            tensors = "tensor" if use.num_tensors == 1 else "tensors"
            lines.append(
                f"  group {use.group}: {use.num_tensors:,} {tensors} of "
                f"{use.num_elements:,} elements, {use.dtype} on {use.device}: "
                f"{use.path}, because: {use.because}"
            )
        for path in dict.fromkeys(use.path for use in self.uses):
            kind = f" ({_native.instruction_set()})" if path == "native" else ""
            lines.append(f"  {path}: {PATHS[path]}{kind}")
        return "\n".join(lines)


def explain(optimizer: Optimizer) -> Explanation:
    """Returns how an optimizer would step its parameters now.

    Args:
        optimizer: An `AGD`, a `LAMB`, or a `WSAM`; of a `WSAM` around an optimizer of
            another package there are no uses to tell.

    Raises:
        TypeError: It is another optimizer.

    Example:
        >>> import torch
        >>> from drivetrain_optim import AGD
        >>> weight, bias = torch.zeros(3, 4), torch.zeros(3)
        >>> print(explain(AGD([weight, bias], foreach=True)))
        AGD
          group 0: 2 tensors of 15 elements, float32 on cpu: foreach, because: \
foreach=True
          foreach: multi-tensor operations of torch
    """
    name = type(optimizer).__name__
    if isinstance(optimizer, WSAM):
        around = f"{name} around {type(optimizer.base).__name__}"
        if not isinstance(optimizer.base, BatchedOptimizer):
            return Explanation(around, ())
        return Explanation(around, explain(optimizer.base).uses)
    if not isinstance(optimizer, BatchedOptimizer):
        message = f"explain() takes an AGD, a LAMB or a WSAM, got {name}"
        raise TypeError(message)
    found: dict[tuple[int, str, str, str, str], list[int]] = {}
    for index, group in enumerate(optimizer.param_groups):
        for param in group["params"]:
            path, because = choice_for(name, group, param)
            dtype = str(param.dtype).removeprefix("torch.")
            key = (index, str(param.device), dtype, path, because)
            found.setdefault(key, []).append(local_part(param).numel())
    uses = (
        PathUse(index, device, dtype, len(sizes), sum(sizes), path, because)
        for (index, device, dtype, path, because), sizes in found.items()
    )
    return Explanation(name, tuple(uses))
