"""Gives this rank's part of a model that was built on the meta device its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from drivetrain_core._errors import Code, PlanError
from drivetrain_core.parallel.meta.initialize import draw_weights, parts_of
from drivetrain_core.parallel.state.entries import laid_model
from drivetrain_core.services.chunked_tensor import Chunk

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from drivetrain_core._state import TrainingState
    from drivetrain_core.parallel.meta.hollow import Weights
    from drivetrain_core.parallel.meta.initialize import Initializer
    from drivetrain_core.parallel.state.laid_model import LaidModel, Piece

__all__ = ["allocate", "fill", "materialize"]


def materialize(
    state: TrainingState, weights: Weights | Initializer, seed: int
) -> None:
    """Gives this rank's part of a program its weights, once it is sharded.

    Args:
        state: The program, laid over a mesh without weights.
        weights: Where they come from; nothing is drawn for `restore`.
        seed: What they are drawn with.

    Raises:
        PlanError: The plan has no mesh.
        ProgramError: Nothing sets one of the parameters.
    """
    if state.hollow_model is None:
        shown = "a function" if callable(weights) else repr(weights)
        raise PlanError(
            Code.REQUIRES,
            "mesh",
            because=f"weights={shown} builds a model without weights, which are made "
            "where a mesh has cut it, and the plan has no mesh",
            fix='add a mesh, such as ("mesh", {"shard": 4}), or use weights="build"',
        )
    allocate(state.models(), state.device)
    if weights != "restore":
        given = weights if callable(weights) else None
        laid = laid_model(state)
        fill(laid, state.hollow_model, state.device, seed=seed, given=given)


def allocate(models: Iterable[nn.Module], device: torch.device) -> None:
    """Gives all parameters on the meta device memory, in place; ties are kept.

    The values are NaN, so that what nobody sets afterwards shows.

    Args:
        models: This rank's part of the model, sharded.
        device: Where it is to be.

    Example:
        >>> model = nn.Linear(2, 1, bias=False, device="meta")
        >>> allocate([model], torch.device("cpu"))
        >>> model.weight
        Parameter containing:
        tensor([[nan, nan]], requires_grad=True)
    """
    made: dict[int, nn.Parameter] = {}
    # Those that are replaced live on until the end: their ids are keys.
    replaced = []
    for model in models:
        for module in model.modules():
            for key, parameter in list(module._parameters.items()):
                if parameter is None or not parameter.is_meta:
                    continue
                if id(parameter) not in made:
                    made[id(parameter)] = _allocated(parameter, device)
                    replaced.append(parameter)
                module._parameters[key] = made[id(parameter)]


def fill(
    laid: LaidModel,
    whole: nn.Module,
    device: torch.device,
    *,
    seed: int,
    given: Initializer | None = None,
) -> None:
    """Draws the weights of this rank's part, a block of the whole model at a time.

    Any two ranks that hold the same have the same values, and so has any other mesh.

    Args:
        laid: This rank's part, allocated.
        whole: The model as written, on the meta device.
        device: Where to draw.
        seed: What they are drawn with.
        given: The user's own initializer, if there is one.

    Raises:
        ProgramError: Nothing sets one of the parameters.
    """
    mine: dict[str, list[Piece]] = {}
    for piece in laid.pieces():
        if piece.is_parameter:
            mine.setdefault(piece.name, []).append(piece)
    for part, names in _names_by_part(whole).items():
        if not any(name in mine for name in names):
            continue
        # No name for what is drawn: it would live on while the next part is.
        _copy(draw_weights(whole, part, device, seed=seed, given=given), names, mine)


def _copy(
    drawn: Mapping[str, torch.Tensor],
    names: Iterable[str],
    mine: Mapping[str, Sequence[Piece]],
) -> None:
    """Copies what this rank has of some parameters."""
    for name in names:
        for piece in mine.get(name, ()):
            chunk = Chunk(offset=piece.offset, tensor=piece.tensor)
            local = chunk.local()
            where = zip(chunk.local_offset(), local.shape, strict=True)
            if local.numel():
                local.copy_(drawn[name][tuple(slice(o, o + n) for o, n in where)])


def _names_by_part(whole: nn.Module) -> dict[str, list[str]]:
    """Returns the first names of the parameters of each part."""
    found: dict[str, list[str]] = {part: [] for part in parts_of(whole)}
    for name, _ in whole.named_parameters():
        path = name.split(".")[:-1]
        # The longest part that the parameter is in.
        while ".".join(path) not in found:
            path.pop()
        found[".".join(path)].append(name)
    return found


def _allocated(parameter: nn.Parameter, device: torch.device) -> nn.Parameter:
    value: torch.Tensor
    if isinstance(parameter, DTensor):
        local = _nan_like(parameter.to_local(), device)
        value = DTensor.from_local(
            local,
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )
    else:
        value = _nan_like(parameter.detach(), device)
    # A DTensor's class is its own, though it is a parameter.
    kind = nn.Parameter if isinstance(parameter, DTensor) else type(parameter)
    made = kind(value, requires_grad=parameter.requires_grad)
    for key, attribute in vars(parameter).items():
        made.__dict__.setdefault(key, attribute)
    return made


def _nan_like(local: torch.Tensor, device: torch.device) -> torch.Tensor:
    found = torch.empty_like(local, device=device)
    return found.fill_(float("nan")) if found.is_floating_point() else found.zero_()
