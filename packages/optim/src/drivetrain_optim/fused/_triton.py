"""The fused steps on a GPU: a launch of a Triton kernel over a pointer table.

A batch of any number of tensors takes one launch for AGD, three for LAMB and two for
the norm of its gradients. Nothing here waits for the device but the check of the
kernels, once in a process for each device.
"""

from __future__ import annotations

import importlib.util
import logging
import math
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core import DeviceError
from drivetrain_core.accelerators import accelerator_of
from drivetrain_optim.algorithms._agd_update import agd_scalars, update_loop
from drivetrain_optim.algorithms._lamb_update import (
    apply_loop,
    lamb_scalars,
    moments_loop,
    trust_ratios,
)
from drivetrain_optim.batched._batch import Batch, Entry, Kind
from drivetrain_optim.batched._state import make_state
from drivetrain_optim.batched._work import Work
from drivetrain_optim.checks._options import AGD_OPTIONS, LAMB_OPTIONS
from drivetrain_optim.fused._table import Table
from drivetrain_optim.fused._triton_launch import is_capturing, launcher

if TYPE_CHECKING:
    from torch import Tensor

    from drivetrain_optim.algorithms._agd_update import AgdScalars
    from drivetrain_optim.algorithms._lamb_update import LambScalars

logger = logging.getLogger(__name__)

_MOMENTS = ("exp_avg", "exp_avg_sq")
_MIN_CAPABILITY = (8, 0)  # the first with bfloat16

_found: dict[torch.device, str | None] = {}


def missing_because(device: torch.device) -> str | None:
    """Returns why there are no fused steps on a GPU, or None if there are.

    The first call for a GPU compiles kernels and compares some steps with those of
    torch's operators, for which it waits.

    Args:
        device: The GPU.

    Example:
        >>> isinstance(missing_because(torch.device("meta")), str)
        True
    """
    if device not in _found:
        if is_capturing(device):
            return "the Triton kernels were not checked before the graph capture"
        _found[device] = _find_reason(device)
    return _found[device]


def agd(work: Work, scalars: AgdScalars) -> None:
    """Performs one step of AGD on a batch.

    Args:
        work: The step.
        scalars: Numbers, or tensors on the device of one element or of one a parameter.
    """
    s, kind, launch = scalars, work.batch.kind, launcher(work)
    numbers, places = launch.numbers(
        [
            1 - s.beta1,
            s.beta2,
            s.previous,
            (1 - s.beta2) * s.gain * s.gain,
            s.floor,
            s.rate,
            s.shrink,
            s.coupled,
            s.clip,
            s.grad_scale,
        ]
    )
    launch.launch(
        "agd_kernel",
        work,
        numbers,
        **places,
        **launch.constants,
        GRAD=launch.grad,
        AMSGRAD="max_exp_avg_sq" in kind.moments,
        CLIPS=s.clip != math.inf,
        STOCHASTIC=kind.stochastic,
    )


def lamb_moments(work: Work, scalars: LambScalars) -> Tensor:
    """Updates LAMB's moments.

    Args:
        work: The step.
        scalars: Numbers, or tensors on the device of one element or of one a parameter.

    Returns:
        The squared norms of weights and steps, float64 on the device, shape (n, 2).
    """
    s, launch = scalars, launcher(work)
    partials = launch.partials(2, work.batch.kind.dtype)
    numbers, places = launch.numbers(
        [
            s.beta1,
            s.average,
            s.beta2,
            1 - s.beta2,
            s.coupled,
            s.grad_scale,
            1 / s.debias1,
            1 / s.debias2_root,
            s.eps,
            s.inside,
        ]
    )
    launch.launch(
        "lamb_moments_kernel",
        work,
        [partials, *numbers],
        **places,
        **launch.constants,
        GRAD=launch.grad,
    )
    return launch.row_sums(partials)


def lamb_apply(work: Work, scalars: LambScalars, squares: Tensor) -> None:
    """Updates the weights by LAMB.

    Args:
        work: The step.
        scalars: Numbers, or tensors on the device of one element or of one a parameter.
        squares: The squared norms of whole weights and steps, on the device, (n, 2).
    """
    s, kind, launch = scalars, work.batch.kind, launcher(work)
    numbers, places = launch.numbers(
        [
            1 / s.debias1,
            1 / s.debias2_root,
            s.eps,
            s.inside,
            s.shrink,
            s.lr,
            s.norm_low,
            s.norm_high,
            s.ratio_low,
            s.ratio_high,
        ]
    )
    launch.launch(
        "lamb_apply_kernel",
        work,
        [squares.contiguous(), *numbers],
        **places,
        **launch.constants,
        ADAPTS=kind.adapts,
        STOCHASTIC=kind.stochastic,
    )


def grad_squares(work: Work) -> Tensor:
    """Returns the squared norm of each gradient, float64 on the device, shape (n,)."""
    launch = launcher(work)
    partials = launch.partials(1, torch.float64)
    launch.launch("grad_squares_kernel", work, [partials], GRAD=launch.grad)
    return launch.row_sums(partials)[:, 0]


def _find_reason(device: torch.device) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return 'triton is not installed: pip install "drivetrain-optim[triton]"'
    try:
        facts = accelerator_of(device).facts(device.index or 0)
    except DeviceError as error:
        return str(error)
    if not facts.triton:
        return f"there are no kernels for {device.type}"
    capability = facts.capability
    if torch.version.hip is None and capability < _MIN_CAPABILITY:
        has, needs = (".".join(map(str, c)) for c in (capability, _MIN_CAPABILITY))
        return f"the Triton kernels need compute capability {needs}, {device} has {has}"
    try:
        fault = find_fault(device)
    # Whatever a compiler or a driver raises, torch's operators can step.
    except Exception as error:  # noqa: BLE001
        fault = f"{type(error).__name__}: {error}".splitlines()[0]
    if fault is None:
        return None
    reason = f"the Triton kernels failed their check on {device}: {fault}"
    logger.warning("drivetrain-optim: %s; steps use torch's operators", reason)
    return reason


def find_fault(device: torch.device) -> str | None:
    """Steps odd-sized tensors by the kernels and by torch; returns what differs.

    It waits for the device.

    Args:
        device: Where the kernels run.

    Returns:
        What differs by more than rounding does; None if nothing does.
    """
    for dtype, stochastic in ((torch.float32, False), (torch.bfloat16, True)):
        if fault := _agd_fault(device, dtype, stochastic):
            return f"AGD on {dtype} gives {fault}"
    if fault := _lamb_fault(device):
        return f"LAMB gives {fault}"
    return None


def _agd_fault(
    device: torch.device, dtype: torch.dtype, stochastic: bool
) -> str | None:
    group = {name: rule.default for name, rule in AGD_OPTIONS.items()}
    fused, plain = (_example(device, dtype, stochastic) for _ in range(2))
    for step in (1, 2):
        scalars = agd_scalars(group, 0.01, step)
        agd(fused, scalars)
        columns = plain.columns()
        update_loop(columns, scalars)
        columns.store_weights(plain.batch)
    return _difference(fused, plain)


def _lamb_fault(device: torch.device) -> str | None:
    group = {name: rule.default for name, rule in LAMB_OPTIONS.items()}
    fused, plain = (_example(device, torch.float32, False) for _ in range(2))
    scalars = lamb_scalars(group, 0.01, 1)
    lamb_apply(fused, scalars, lamb_moments(fused, scalars))
    columns = plain.columns()
    ratios = trust_ratios(moments_loop(columns, scalars), scalars)
    apply_loop(columns, scalars, ratios)
    squares = torch.stack([grad.square().sum() for grad in plain.grads]).double()
    if not torch.allclose(grad_squares(fused), squares, rtol=1e-5):
        return "other norms of gradients"
    return _difference(fused, plain)


def _example(device: torch.device, dtype: torch.dtype, stochastic: bool) -> Work:
    generator = torch.Generator().manual_seed(0)
    entries: list[Entry] = []
    grads: list[Tensor | None] = []
    for index, size in enumerate((7, 0, 4097, 1)):
        values = torch.randn(2, size, generator=generator).to(device, dtype)
        param, state = values[0].clone(), dict[str, Any]()
        make_state(
            state,
            param,
            moments=_MOMENTS,
            state_dtype="float32",
            master=False,
            step_device=torch.device("cpu"),
        )
        entries.append(Entry(index, index, param, state))
        grads.append(values[1].clone())
    kind = Kind(
        path="triton",
        because="",
        device=device,
        dtypes=(dtype, dtype, torch.float32),
        moments=_MOMENTS,
        master=False,
        stochastic=stochastic,
        sharded=None,
        adapts=True,
        step=0.0,
    )
    batch = Batch(kind, entries)
    table = Table(batch)
    local = batch.local_grads(grads)
    assert local is not None
    return Work({}, 0.01, batch, table.point_to(batch, local), table)


def _difference(fused: Work, plain: Work) -> str | None:
    # An element that is rounded stochastically may come out as its other neighbour.
    rtol = 1e-5 if fused.batch.kind.dtypes[0] is torch.float32 else 2**-7
    names = ("weights", *_MOMENTS)
    for name in names:
        pairs = zip(_tensors(fused, name), _tensors(plain, name), strict=True)
        for tensor, wanted in pairs:
            if not torch.allclose(tensor, wanted, rtol=rtol, atol=1e-6):
                return f"other {name} for {tensor.numel()} elements"
    return None


def _tensors(work: Work, name: str) -> list[Tensor]:
    return work.batch.params if name == "weights" else work.batch.kept(name)
