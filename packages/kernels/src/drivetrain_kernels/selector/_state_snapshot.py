"""What a model and its step hold, put back after steps were tried on it."""

from __future__ import annotations

import copy
import random
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from drivetrain_core.extending import ModelSnapshot
from drivetrain_kernels._errors import SelectionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drivetrain_kernels.selector._workload import Workload


@contextmanager
def state_snapshot(workload: Workload) -> Iterator[None]:
    """Puts back what steps changed.

    That is parameters, buffers, gradients, attributes, containers, generators and random
    states; values wait in memory of the host.
    """
    modules = nn.ModuleList(workload.modules)
    snapshot = ModelSnapshot(modules, *workload.held, values=True)
    with _random_states(workload.device):
        try:
            yield
        finally:
            with torch.no_grad():
                snapshot.restore()


def require_unchanged_values(workload: Workload) -> None:
    """Runs one step as the user wrote it, and checks that it can be repeated.

    Raises:
        SelectionError: The step changed a parameter, frozen ones too, or its batch.
    """
    batch = workload.batches[0]
    try:
        given = copy.deepcopy(batch)
    except Exception:  # noqa: BLE001
        given = batch  # Some objects cannot be copied, for reasons of their own.
    parameters = [p for module in workload.modules for p in module.parameters()]
    values = [p.detach().clone() for p in parameters]
    workload.run(workload.target, given)
    changed = [p for p, v in zip(parameters, values, strict=True) if not _same(p, v)]
    what = ""
    if changed:
        what = f"parameters, and this one did: one of shape {tuple(changed[0].shape)}"
        with torch.no_grad():
            for parameter, value in zip(parameters, values, strict=True):
                parameter.data.copy_(value)
    elif not _alike(workload.held_in(batch), workload.held_in(given)):
        what = "its batch, and this one did"
    if what:
        message = (
            f"a step that select() tries must not change {what}; leave the optimizer's "
            "step, and whatever else writes there, out of it"
        )
        raise SelectionError(message)


def _alike(before: list[Any], after: list[Any]) -> bool:
    pairs = zip(before, after, strict=False)
    return len(before) == len(after) and all(
        type(a) is type(b) and (not torch.is_tensor(a) or _same(a, b)) for a, b in pairs
    )


def _same(tensor: torch.Tensor, value: torch.Tensor) -> bool:
    """Returns whether every bit is as it was; NaN is what it is."""
    return tensor.shape == value.shape and (
        torch.equal(tensor, value)
        or torch.allclose(tensor, value, rtol=0.0, atol=0.0, equal_nan=True)
    )


@contextmanager
def _random_states(device: torch.device) -> Iterator[None]:
    numpy = sys.modules.get("numpy")
    host = random.getstate()
    array = numpy.random.get_state() if numpy else None
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices=devices, device_type=device.type):
        try:
            yield
        finally:
            random.setstate(host)
            if numpy:
                numpy.random.set_state(array)
