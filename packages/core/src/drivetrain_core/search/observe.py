"""Takes the guard's observation of a built program."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_core._master_weights import MasterWeightOptimizer
from drivetrain_core.search.guard import Observation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from drivetrain_core._accelerated import Accelerated

__all__ = ["observe", "without_dropout"]

_VALUES_IN_ALL = 65_536
_VALUES_A_TENSOR = 512
_DROPOUT = re.compile(r"dropout", re.IGNORECASE)


def observe(
    accelerated: Accelerated, batches: Sequence[Any], *, seed: int, noise: bool
) -> Observation:
    """Trains on the batches and returns how the program behaved.

    Args:
        accelerated: The built program; it is trained, as in real use.
        batches: This rank's batches, one a step.
        seed: Random seed of the first pass.
        noise: Whether to measure how much the first loss depends on the seed.
    """
    module, step = accelerated.module, accelerated.train_step
    with without_dropout(module):
        trained = _trained(accelerated)
        before = _samples(trained)
        other = 0.0
        if noise:
            torch.manual_seed(seed + 1)
            other = _mean(step.accumulate(batches[0]))
            accelerated.optimizer.zero_grad(set_to_none=True)
        torch.manual_seed(seed)
        first = _mean(step.accumulate(batches[0]))
        gradients = {
            name: _full(parameter.grad)
            for name, parameter in module.named_parameters()
            if parameter.grad is not None
        }
        norms = {name: float(g.norm()) for name, g in gradients.items()}
        samples = _samples(gradients)
        del gradients
        step.second_pass(batches[0])
        step.optimizer_step()
        losses = [first, *(_mean(step(batch)) for batch in batches[1:])]
        after = _samples(trained)
        buffers = _samples(
            {name: b for name, b in module.named_buffers() if not b.is_complex()}
        )
    moved = frozenset(name for name in before if before[name] != after[name])
    return Observation(
        losses=tuple(losses),
        norms=norms,
        samples=samples,
        moved=moved,
        buffers=buffers,
        noise=abs(other - first) / max(abs(first), 1e-30) if noise else 0.0,
    )


@contextmanager
def without_dropout(model: torch.nn.Module) -> Iterator[None]:
    """Sets the probability of every dropout to zero inside.

    Dropout modules have `p`; functional dropout usually reads a float attribute of
    the module whose name says dropout.
    """
    found: list[tuple[torch.nn.Module, str, float]] = []
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            found.append((module, "p", module.p))
            continue
        for key, value in vars(module).items():
            if _DROPOUT.search(key) and isinstance(value, float):
                found.append((module, key, value))
    found = [entry for entry in found if entry[2]]
    for module, key, _ in found:
        setattr(module, key, 0.0)
    try:
        yield
    finally:
        for module, key, value in found:
            setattr(module, key, value)


def _trained(accelerated: Accelerated) -> dict[str, torch.Tensor]:
    """Returns what the optimizer steps: the masters where there are any.

    A bf16 weight may round to itself after a step that its master did take.
    """
    if isinstance(accelerated.optimizer, MasterWeightOptimizer):
        return dict(accelerated.optimizer.masters)
    return dict(accelerated.module.named_parameters())


def _full(tensor: torch.Tensor) -> torch.Tensor:
    full = getattr(tensor, "full_tensor", None)
    whole = full() if full is not None else tensor
    return whole.detach().float()


def _samples(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[float, ...]]:
    """Returns values at fixed, evenly spread places of each tensor."""
    share = max(8, _VALUES_IN_ALL // max(len(tensors), 1))
    number = min(_VALUES_A_TENSOR, share)
    picked = {}
    for name, tensor in tensors.items():
        flat = _full(tensor).flatten()
        last = max(flat.numel() - 1, 0)
        places = torch.linspace(0, last, number, dtype=torch.float64).long()
        picked[name] = tuple(flat[places.to(flat.device)].tolist()) if len(flat) else ()
    return picked


def _mean(loss: torch.Tensor) -> float:
    """Returns the mean over ranks, which is the loss of the global batch."""
    value = loss.detach().float().clone()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(value)
        value /= torch.distributed.get_world_size()
    return float(value)
