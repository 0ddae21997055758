"""The norm of all gradients together, and their scaling to a largest one.

    total = (sum over gradients of sum |g|^p)^(1/p)
    g <- g min(1, max_norm / (total + 1e-6))

Pascanu, Mikolov and Bengio, On the difficulty of training recurrent neural networks,
2013, algorithm 1: https://arxiv.org/abs/1211.5063.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.utils import clip_grads_with_norm_

from drivetrain_kernels._accumulation import accumulation_dtype
from drivetrain_kernels._available import triton_missing
from drivetrain_kernels._check import check_at_least, check_floating
from drivetrain_kernels._dispatch import Example, Implementation, Op
from drivetrain_kernels._errors import DtypeError, OptionError
from drivetrain_kernels.ops._clip_epsilon import EPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_TRITON_FROM = 16  # tensors, from where on launches cost more than a table does


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipFacts:
    """What the choice of an implementation depends on.

    Args:
        devices: The types of the devices.
        num_tensors: How many gradients there are.
        contiguous: Whether each lies in one piece.
        sharded: Whether there are DTensors.
        norm_type: Which norm.
    """

    devices: tuple[str, ...]
    num_tensors: int
    contiguous: bool
    sharded: bool
    norm_type: float


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    *,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    impl: str = "auto",
) -> Tensor:
    """Scales gradients so that their norm is at most `max_norm`; returns what it was.

    Gradients are changed in place. The host waits for the device only if
    `error_if_nonfinite` asks for it. The scale is 1 where the norm is small enough, NaN
    where it is NaN, and 0 where it is infinite, as in torch.

    Args:
        parameters: Those whose gradients count; without a gradient they do not. Sharded
            ones (DTensor) count as a whole, and then all have to be sharded.
        max_norm: The largest norm that is left.
        norm_type: p of the norm, at least 1; `math.inf` for the largest magnitude.
        error_if_nonfinite: Whether a norm that is not finite raises, before anything
            is changed.
        impl: "auto", or "triton", "torch" or "reference".

    Returns:
        The norm before, in float32 (float64 for float64 gradients), on their device.

    Raises:
        DtypeError: A gradient is not floating-point.
        OptionError: `max_norm` or `norm_type` is not allowed.
        RuntimeError: The norm is not finite, and that was to be an error.
        ImplementationError: The implementation asked for cannot take this call.

    Example:
        >>> weight = torch.zeros(2)
        >>> weight.grad = torch.tensor([3.0, 4.0])
        >>> clip_grad_norm_([weight], 1.0)
        tensor(5.)
        >>> weight.grad
        tensor([0.6000, 0.8000])
    """
    grads = _gradients(parameters)
    found = _facts(grads, max_norm, norm_type)
    if not grads:
        OP.check_name(impl)
        return torch.zeros(())
    # Gradients that were made to be differentiated would keep their graphs otherwise.
    with torch.no_grad():
        total: Tensor = OP.run(
            found, impl, grads, max_norm, norm_type, error_if_nonfinite
        )
    return total


def facts(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    *,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> ClipFacts:
    """Checks a call and returns what the choice depends on.

    Args:
        parameters: See `clip_grad_norm_`.
        max_norm: Likewise.
        norm_type: Likewise.
        error_if_nonfinite: Likewise.
    """
    del error_if_nonfinite
    return _facts(_gradients(parameters), max_norm, norm_type)


def _gradients(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    if isinstance(parameters, torch.Tensor):
        parameters = [parameters]
    some: object = parameters
    if not isinstance(some, Iterable):
        message = (
            "clip_grad_norm_: parameters must be a tensor or an iterable of tensors, "
            f"got {type(parameters).__name__}"
        )
        raise DtypeError(message)
    parameters = list(parameters)
    given: list[object] = list(parameters)
    for parameter in given:
        if not isinstance(parameter, torch.Tensor):
            message = (
                "clip_grad_norm_: parameters must be tensors, got "
                f"{type(parameter).__name__}"
            )
            raise DtypeError(message)
    # The largest magnitude of nothing is not defined, and nothing has no part in it.
    return [p.grad for p in parameters if p.grad is not None and p.grad.numel()]


def _facts(grads: list[Tensor], max_norm: float, norm_type: float) -> ClipFacts:
    op = "clip_grad_norm_"
    check_at_least(op, "max_norm", max_norm, 0.0)
    check_at_least(op, "norm_type", norm_type, 1.0)
    for grad in grads:
        check_floating(op, "a gradient", grad)
        if grad.layout != torch.strided:
            message = f"{op}: a gradient must be dense, got {grad.layout}; make it dense first"
            raise OptionError(message)
    sharded = [hasattr(grad, "to_local") for grad in grads]
    if any(sharded) and not all(sharded):
        message = (
            f"{op}: all gradients or none must be sharded, got {sum(sharded)} of "
            f"{len(grads)}; clip those that are not in a call of their own"
        )
        raise OptionError(message)
    return ClipFacts(
        devices=tuple(sorted({grad.device.type for grad in grads})),
        num_tensors=len(grads),
        contiguous=all(grad.is_contiguous() for grad in grads),
        sharded=any(sharded),
        norm_type=norm_type,
    )


def check_finite(total: Tensor) -> None:
    """Raises if a norm is not finite, for which the host waits.

    Args:
        total: The norm.

    Raises:
        RuntimeError: It is not finite.
    """
    if not bool(torch.isfinite(total)):
        message = (
            f"clip_grad_norm_: the norm must be finite, got {total.item()}; nothing "
            "was changed"
        )
        raise RuntimeError(message)


def _reference(
    grads: list[Tensor], max_norm: float, norm_type: float, error_if_nonfinite: bool
) -> Tensor:
    device = grads[0].device
    norms = [
        torch.linalg.vector_norm(g, norm_type, dtype=accumulation_dtype(g.dtype))
        for g in grads
    ]
    parts = torch.stack([norm.to(device) for norm in norms])
    total: Tensor = torch.linalg.vector_norm(parts, norm_type)
    if error_if_nonfinite:
        check_finite(total)
    scale = (max_norm / (total + EPS)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(scale.to(grad.device))
    return total


def _torch(
    grads: list[Tensor], max_norm: float, norm_type: float, error_if_nonfinite: bool
) -> Tensor:
    total = _total_norm(grads, norm_type)
    whole: Tensor = total.full_tensor() if hasattr(total, "full_tensor") else total
    if error_if_nonfinite:
        check_finite(whole)
    # It takes whatever has gradients, of which these are views.
    holders = [_Holder(grad) for grad in grads]
    clip_grads_with_norm_(holders, max_norm, total)  # type: ignore[arg-type]
    return whole.to(accumulation_dtype(whole.dtype))


def _total_norm(grads: list[Tensor], norm_type: float) -> Tensor:
    """Returns the norm by torch's multi-tensor operators, in float32 or wider.

    torch's own function would keep that of a narrow tensor in its dtype: in float16 it
    overflows early, and in bfloat16 it has three digits.
    """
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for grad in grads:
        by_dtype.setdefault(grad.dtype, []).append(grad)
    widest = torch.float64 if torch.float64 in by_dtype else torch.float32
    norms = [
        norm for alike in by_dtype.values() for norm in _norms(alike, norm_type, widest)
    ]
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    return total


def _norms(
    grads: list[Tensor], norm_type: float, dtype: torch.dtype
) -> Sequence[Tensor]:
    if hasattr(grads[0], "full_tensor"):
        # Of those, the operator of many takes no dtype from torch 2.14 on.
        norm = torch.linalg.vector_norm
        return [norm(grad, norm_type, dtype=dtype) for grad in grads]
    return torch._foreach_norm(grads, norm_type, dtype)


class _Holder:
    def __init__(self, grad: Tensor) -> None:
        self.grad = grad


def _triton(
    grads: list[Tensor], max_norm: float, norm_type: float, error_if_nonfinite: bool
) -> Tensor:
    # Triton is an extra, which only those need who run its kernels.
    from drivetrain_kernels.ops import _triton_clip

    del norm_type
    total: Tensor = _triton_clip.total_norm(grads)
    if error_if_nonfinite:
        check_finite(total)
    _triton_clip.scale(grads, total, max_norm)
    return total


def _triton_refuses(facts: ClipFacts) -> str | None:
    if facts.norm_type != 2.0:
        return f"knows the norm 2 only, got {facts.norm_type}"
    if facts.sharded:
        return "knows no sharded gradients"
    if len(facts.devices) > 1:
        return f"needs gradients on one device, got {', '.join(facts.devices)}"
    if not facts.contiguous:
        return "needs contiguous gradients"
    return triton_missing(facts.devices[0]) if facts.devices else None


def _not_for_few(facts: ClipFacts) -> str | None:
    if facts.devices == ("cpu",) or len(facts.devices) != 1:
        return f"is made for a GPU, the tensors are on {', '.join(facts.devices)}"
    if facts.num_tensors < _TRITON_FROM:
        return f"saves launches from {_TRITON_FROM} tensors on, got {facts.num_tensors}"
    return None


def _torch_refuses(facts: ClipFacts) -> str | None:
    if len(facts.devices) > 1:
        return f"needs gradients on one device, got {', '.join(facts.devices)}"
    return None


def _reference_refuses(facts: ClipFacts) -> str | None:
    return "knows no sharded gradients" if facts.sharded else None


def _example(device: torch.device, dtype: torch.dtype) -> Example:
    weight = torch.zeros(6, 40, device=device, dtype=dtype)
    weight.grad = torch.randn(6, 40, device=device, dtype=dtype)
    return ([weight], 1.0), {}


OP = Op(
    name="clip_grad_norm_",
    implementations=(
        Implementation(
            name="triton",
            call=_triton,
            refuse=_triton_refuses,
            automatic=_not_for_few,
            because="one launch for the norm of any number of tensors, one to scale",
        ),
        Implementation(
            name="torch",
            call=_torch,
            refuse=_torch_refuses,
            because="torch's multi-tensor operators, also for sharded gradients",
        ),
        Implementation(
            name="reference",
            call=_reference,
            refuse=_reference_refuses,
            because="it takes gradients on several devices",
        ),
    ),
    facts=facts,
    example=_example,
)
