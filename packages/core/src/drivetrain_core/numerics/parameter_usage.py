"""Parameter usage: what of a built program trains, and obeys what steers it."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from drivetrain_core._optimizer.master_weights import MasterWeightOptimizer
from drivetrain_core.numerics.checksum import gathered, tensor_checksum
from drivetrain_core.numerics.view import View, full

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from drivetrain_core._accelerated import Accelerated

# Larger than what anybody clips to, and far from overflow.
_POKED_NORM = 1e4
_DROPOUT = re.compile(r"dropout", re.IGNORECASE)


def trained(accelerated: Accelerated) -> dict[str, torch.Tensor]:
    """Returns what the optimizer steps: the masters where there are any.

    A bf16 weight may round to itself after a step that its master did take.
    """
    if isinstance(accelerated.optimizer, MasterWeightOptimizer):
        return dict(accelerated.optimizer.masters)
    return dict(View(accelerated).parameters())


def checksums(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Returns a checksum of this rank's part of each tensor."""
    return {name: tensor_checksum(_local(tensor)) for name, tensor in tensors.items()}


def apart(view: View) -> tuple[str, ...]:
    """Returns the parameters that are not the same on every rank that holds them."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return ()
    # Of a shard nobody else has a copy: whole parameters are compared.
    mine = {name: tensor_checksum(p) for name, p in view.whole(view.parameters())}
    seen = defaultdict(set)
    for sums in gathered(mine):
        for name, value in sums.items():
            seen[name].add(value)
    return tuple(name for name, values in seen.items() if len(values) > 1)


def ties(module: torch.nn.Module) -> tuple[tuple[str, ...], ...]:
    """Returns the groups of names whose parameters share their memory."""
    groups: dict[Any, list[str]] = defaultdict(list)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        part = _local(parameter)
        address = part.untyped_storage().data_ptr() if part.numel() else 0
        key = (address, part.storage_offset()) if address else id(parameter)
        groups[key].append(name)
    return tuple(tuple(sorted(names)) for names in groups.values() if len(names) > 1)


def foreign(accelerated: Accelerated) -> int:
    """Returns how many tensors of the optimizer are not the model's."""
    own = {id(tensor) for tensor in trained(accelerated).values()}
    groups = accelerated.optimizer.param_groups
    return sum(id(p) not in own for group in groups for p in group["params"])


def evaluating(module: torch.nn.Module) -> frozenset[str]:
    """Returns the names of the modules that are in evaluation mode."""
    return frozenset(name for name, m in module.named_modules() if not m.training)


def rates(optimizer: torch.optim.Optimizer) -> tuple[float, ...]:
    """Returns the learning rate of each group that has one."""
    return tuple(float(g["lr"]) for g in optimizer.param_groups if "lr" in g)


class Poked(NamedTuple):
    """How the optimizer's step answered."""

    clipped_norm: float | None = None
    rests: bool | None = None


def poke(accelerated: Accelerated) -> Poked:
    """Steps on a huge gradient at a learning rate of zero.

    The gradients of a pass must be there; they are cleared. No parameter changes,
    unless something is wrong: a huge gradient shows whether clipping is on, also when
    the real ones are too small for it, and a rate of zero whether the optimizer
    follows its groups, also before the scheduler has changed anything.
    """
    optimizer = accelerated.optimizer
    gradients = list(View(accelerated).gradients().values())
    before = checksums(trained(accelerated))

    def size() -> float:
        if accelerated.is_meshed:
            # What every rank has counts once; nothing is clipped to this.
            return float(accelerated.train_step.clip(math.inf))
        return _norm(gradients)

    norm = size()
    found = Poked()

    def step(*args: Any, **kwargs: Any) -> Any:
        nonlocal found
        left = size()
        # What the optimizer keeps in its state shall be of the usual size.
        _scale(gradients, norm / max(left, 1e-30))
        groups = [group for group in optimizer.param_groups if "lr" in group]
        rates = [group["lr"] for group in groups]
        for group in groups:
            # A rate that is a tensor must stay one.
            group["lr"] = group["lr"] * 0.0
        try:
            answer = original(*args, **kwargs)
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate
        found = Poked(left, checksums(trained(accelerated)) == before)
        return answer

    if not norm > 0.0:
        optimizer.zero_grad(set_to_none=True)
        return found
    _scale(gradients, _POKED_NORM / norm)
    with _replaced(optimizer, "step", step) as original:
        accelerated.optimizer_step()
    return found


@contextmanager
def _replaced(holder: Any, name: str, value: Any) -> Iterator[Any]:
    """Sets an attribute of an instance inside, and yields what was there."""
    own, original = vars(holder).get(name), getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield original
    finally:
        if own is None:
            delattr(holder, name)
        else:
            setattr(holder, name, own)


def _norm(gradients: list[torch.Tensor]) -> float:
    norms = [float(full(g.detach().float().norm())) for g in gradients]
    return math.sqrt(sum(norm * norm for norm in norms))


@torch.no_grad()
def _scale(gradients: list[torch.Tensor], factor: float) -> None:
    for gradient in gradients:
        gradient.mul_(factor)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    local = getattr(tensor, "to_local", None)
    return (local() if local is not None else tensor).detach()


def dropouts(model: torch.nn.Module) -> list[tuple[torch.nn.Module, str, float]]:
    """Returns where the probabilities of dropout that are not zero stand.

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
    return [entry for entry in found if entry[2]]


@contextmanager
def without_dropout(model: torch.nn.Module) -> Iterator[None]:
    """Sets the probability of every dropout to zero inside."""
    found = dropouts(model)
    for module, key, _ in found:
        setattr(module, key, 0.0)
    try:
        yield
    finally:
        for module, key, value in found:
            setattr(module, key, value)
