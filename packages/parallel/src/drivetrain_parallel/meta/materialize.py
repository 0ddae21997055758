"""Gives this rank's part of a model that was built on the meta device its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from drivetrain_core.services.chunked_tensor import Chunk
from drivetrain_parallel.meta.initialize import draw_weights, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from drivetrain_parallel.meta.initialize import Initializer
    from drivetrain_parallel.state.parallelized_model import ParallelizedModel, Piece


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
    laid: ParallelizedModel,
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
