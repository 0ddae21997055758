"""Draws the first values of a model's weights, a part of the model at a time.

What is drawn depends on the seed and the names of modules alone: it is the same on any
mesh, whoever draws it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from drivetrain_core import ProgramError
from drivetrain_core.accelerators import isolated_rng
from drivetrain_core.extending import find_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Initializer = Callable[[nn.Module], object]
"""Sets the parameters of a module, as those that `nn.Module.apply` takes."""

_METHODS = ("reset_parameters", "_reset_parameters")


def parts_of(model: nn.Module) -> list[str]:
    """Returns the names of the parts that are drawn one after another.

    They are the repeated blocks, what stands beside them, and each module around them,
    whose own parameters alone are meant.

    Example:
        >>> blocks = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        >>> parts_of(nn.ModuleDict({"embed": nn.Embedding(4, 2), "blocks": blocks}))
        ['embed', 'blocks.0', 'blocks.1', 'blocks', '']
    """
    facts = find_blocks(model)
    container = "" if facts is None else facts.container

    def walk(name: str, module: nn.Module) -> Iterator[str]:
        for key, child in module._modules.items():
            if child is None:
                continue
            inner = f"{name}.{key}" if name else key
            if inner == container or container.startswith(f"{inner}."):
                yield from walk(inner, child)
            else:
                yield inner
        yield name

    return list(walk("", model))


def require_initializers(model: nn.Module, given: Initializer | None) -> None:
    """Raises unless something sets each parameter of a model.

    Args:
        model: The model, on the meta device.
        given: The user's own initializer, which is taken at its word.

    Raises:
        ProgramError: A module has parameters and no `reset_parameters`.
    """
    if given is not None or _init_weights_of(model, "") is not None:
        return
    for name, module in model.named_modules():
        own = [key for key, p in module._parameters.items() if p is not None]
        if own and _init_weights_of(model, name) is None and not _methods_of(module):
            raise ProgramError(_has_none(name, module, own[0]))


def draw_weights(
    model: nn.Module,
    part: str,
    device: torch.device,
    *,
    seed: int,
    given: Initializer | None = None,
) -> dict[str, torch.Tensor]:
    """Returns the first values of the parameters of one part, by name.

    Args:
        model: The model as written, with all parameters on the meta device. It is as
            before afterwards.
        part: One of `parts_of(model)`.
        device: Where to draw them.
        seed: What they are drawn with, together with the names of modules.
        given: Called with each module, inner ones first; by default the model's own
            `_init_weights` is, as those of transformers have it, or the module's
            `reset_parameters`.

    Raises:
        ProgramError: A parameter was not set, and which.

    Example:
        >>> model = nn.Linear(2, 2, device="meta")
        >>> found = draw_weights(model, "", torch.device("cpu"), seed=0)
        >>> sorted(found), model.weight.is_meta
        (['bias', 'weight'], True)
    """
    named = list(_inner_first(model, part))
    taken = _materialize([module for _, module in named], device)
    try:
        for name, module in named:
            initialize = given or _own(model, name, module)
            if initialize is None:
                continue
            with isolated_rng(_seed(seed, name)), torch.no_grad():
                initialize(module)
        found = {}
        for name, module in named:
            for key, parameter in module._parameters.items():
                if parameter is None or parameter.is_meta:
                    continue
                if parameter.is_floating_point() and bool(parameter.isnan().any()):
                    raise ProgramError(_has_none(name, module, key))
                full_name = f"{name}.{key}" if name else key
                found[full_name] = parameter.detach()
        return found
    finally:
        for module, parameters in taken:
            module._parameters.update(parameters)


def _inner_first(model: nn.Module, part: str) -> Iterable[tuple[str, nn.Module]]:
    root = model.get_submodule(part)
    others = [name for name in parts_of(model) if name != part]
    before = f"{part}." if part else ""
    if any(name.startswith(before) for name in others):
        # What is inside of it are parts of their own.
        return [(part, root)]
    found = [
        (before + name if name else part, module)
        for name, module in root.named_modules()
    ]
    found.reverse()
    return found


def _materialize(
    modules: Iterable[nn.Module], device: torch.device
) -> list[tuple[nn.Module, dict[str, nn.Parameter | None]]]:
    """Gives parameters memory, filled with NaN; returns what was there, by module."""
    made: dict[int, nn.Parameter] = {}
    before = []
    for module in modules:
        before.append((module, dict(module._parameters)))
        for key, parameter in list(module._parameters.items()):
            if parameter is None:
                continue
            if id(parameter) not in made:
                full = torch.empty_like(parameter, device=device)
                if full.is_floating_point():
                    full.fill_(float("nan"))
                new = nn.Parameter(full, requires_grad=parameter.requires_grad)
                made[id(parameter)] = new
            module._parameters[key] = made[id(parameter)]
    return before


def _own(model: nn.Module, name: str, module: nn.Module) -> Initializer | None:
    """Returns what the model has to initialize one of its modules with."""
    init_weights = _init_weights_of(model, name)
    if init_weights is not None:
        return init_weights
    method = _methods_of(module)
    return None if method is None else lambda _: method()


def _init_weights_of(model: nn.Module, name: str) -> Initializer | None:
    """Returns the `_init_weights` of the nearest module around one that has it."""
    found: Any = None
    module = model
    for key in ["", *name.split(".")] if name else [""]:
        module = module._modules[key] if key else module  # type: ignore[assignment]
        found = getattr(module, "_init_weights", found)
    return found if callable(found) else None


def _methods_of(module: nn.Module) -> Callable[[], object] | None:
    for name in _METHODS:
        method = getattr(module, name, None)
        if callable(method):
            return method  # type: ignore[no-any-return]
    return None


def _has_none(name: str, module: nn.Module, own: str) -> str:
    return (
        f"{name or 'the model'} ({type(module).__name__}) has a parameter {own!r} that "
        "nothing sets when its weights are reset; give it a reset_parameters(), or pass "
        "weights=function(module), which nn.Module.apply would take"
    )


def _seed(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
