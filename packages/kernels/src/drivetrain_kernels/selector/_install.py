"""Installation of a candidate on a module, by its name or by measurement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from drivetrain_kernels._errors import SelectionError
from drivetrain_kernels.selector._candidates import EAGER, Installed, candidates_for
from drivetrain_kernels.selector._first_batch import first_batch
from drivetrain_kernels.selector._select import select
from drivetrain_kernels.selector._workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch
    from torch import nn


def install(module: nn.Module, name: str) -> Installed:
    """Lets a module run a candidate from now on, and returns what switches it off.

    Args:
        module: The module, not compiled yet.
        name: The candidate.

    Raises:
        SelectionError: There is no such candidate, or the module cannot be run so.

    Example:
        >>> from torch import nn
        >>> install(nn.Linear(2, 2), "eager").num_graphs
        0
    """
    candidate = candidates_for([name])[-1]
    workload = Workload(module, [()])
    why = candidate.unfit(workload, asked=True)
    if why and candidate.name != EAGER:
        message = f"{type(module).__name__} cannot run as {name!r}: {why}"
        raise SelectionError(message)
    installed = Installed(candidate, workload)
    installed.on()
    return installed


def install_fastest(
    module: nn.Module,
    loader: Iterable[Any],
    device: torch.device,
    names: Sequence[str],
    budget_s: float,
) -> str:
    """Lets a module run what is measured to be fastest, and returns its name.

    Args:
        module: The module, not compiled yet.
        loader: Gives the batch that is measured on.
        device: Where the module lies.
        names: The candidates beside eager.
        budget_s: The seconds to decide in.

    Raises:
        SelectionError: The module or the loader cannot be measured so.
    """
    own = Workload(module, [()])

    def step(model: Any, batch: Any) -> Any:
        # As core's loop calls a model.
        inputs = batch
        if isinstance(batch, tuple | list):
            inputs = (batch[0],)
        elif not isinstance(batch, Mapping):
            inputs = (batch,)
        return own.loss(model, inputs)

    batches = [first_batch(loader, device)]
    return select(
        module, batches, budget_s=budget_s, candidates=names, step=step
    ).choice
