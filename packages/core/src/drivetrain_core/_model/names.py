"""The canonical names of parameters and buffers: those of the user's own model.

Wrappers put prefixes into names: `module.` (DDP), `_orig_mod.` (compile),
`_checkpoint_wrapped_module.` and `_fsdp_wrapped_module.`. A canonical name has none of
them, so that one checkpoint fits however the model is wrapped. Whether a part of a name
stems from a wrapper is decided by the object that holds it, never by the text: a user
may well call an attribute `module`.
"""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_core._errors import NamesError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor, nn

_CHECKPOINTED = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
_SHARDED = "torch.distributed.fsdp.fully_sharded_data_parallel"
# Module, class, and the attribute that holds the wrapped model. The classes are looked
# up only where they are imported already: no object of theirs exists otherwise, and
# importing the compiler takes a second.
_WRAPPERS = (
    ("torch.nn.parallel.distributed", "DistributedDataParallel", "module"),
    ("torch.nn.parallel.data_parallel", "DataParallel", "module"),
    ("torch._dynamo.eval_frame", "OptimizedModule", "_orig_mod"),
    (_CHECKPOINTED, "ActivationWrapper", "_checkpoint_wrapped_module"),
    (_SHARDED, "FullyShardedDataParallel", "_fsdp_wrapped_module"),
)


@dataclass(frozen=True, slots=True)
class NamedParts:
    """What one walk over a model finds, by canonical name.

    Args:
        visited: The modules in the order of the walk, wrappers among them; one that is
            shared stands there each time.
        modules: What `named_modules` returns.
        tensors: What `named_tensors` returns.
        parameters: What `named_tensors` returns without the buffers.
        ties: The other names of tied tensors, and which of `tensors` each stands for.
    """

    visited: list[nn.Module]
    modules: dict[str, nn.Module]
    tensors: dict[str, Tensor]
    parameters: dict[str, Tensor]
    ties: dict[str, str]


def named_parts(model: nn.Module) -> NamedParts:
    """Returns the modules, tensors and parameters of a model in one walk.

    Args:
        model: A model, wrapped or not.

    Raises:
        NamesError: Two tensors have one name, or FSDP1 has flattened the parameters.

    Example:
        >>> import torch
        >>> parts = named_parts(torch.nn.BatchNorm1d(4))
        >>> len(parts.visited), len(parts.tensors), list(parts.parameters)
        (1, 5, ['weight', 'bias'])
    """
    visits = _walk_modules(model)
    found = _checked(_tensors_of(visits))
    tensors = _each_once(found, {"parameter", "buffer"})
    names = {id(tensor): name for name, tensor in tensors.items()}
    return NamedParts(
        visited=[module for _, _, module in visits],
        modules=_named(visits),
        tensors=tensors,
        parameters=_each_once(found, {"parameter"}),
        ties={
            name: names[id(tensor)]
            for _, name, tensor, kind in found
            if kind != "non-persistent buffer" and name not in tensors
        },
    )


def named_tensors(
    model: nn.Module, *, buffers: bool = True, non_persistent: bool = False
) -> dict[str, Tensor]:
    """Returns the parameters and buffers of a model by canonical name, each once.

    A tensor with several names (tied weights) stands under the first one.

    Args:
        model: A model, wrapped or not.
        buffers: Whether buffers are among them.
        non_persistent: Whether buffers that no state dict holds are, too.

    Returns:
        The tensors in the order of the model's modules.

    Raises:
        NamesError: Two tensors have one name, or FSDP1 has flattened the parameters.

    Example:
        >>> import torch
        >>> list(named_tensors(torch.nn.BatchNorm1d(4, affine=False)))
        ['running_mean', 'running_var', 'num_batches_tracked']
    """
    kinds = {"parameter"}
    if buffers:
        kinds |= {"buffer", "non-persistent buffer"} if non_persistent else {"buffer"}
    return _each_once(_checked_walk(model), kinds)


def canonical_names(model: nn.Module) -> dict[str, str]:
    """Returns the canonical name for each name in the model's own `state_dict`.

    Args:
        model: A model, wrapped or not.

    Returns:
        All names, those of tied tensors and non-persistent buffers included.

    Raises:
        NamesError: Two tensors have one name, or FSDP1 has flattened the parameters.

    Example:
        >>> import torch
        >>> from torch.nn.parallel import DataParallel
        >>> canonical_names(DataParallel(torch.nn.Linear(2, 2, bias=False)))
        {'module.weight': 'weight'}
    """
    return {raw: name for raw, name, _, _ in _checked_walk(model)}


def canonical_name(name: str, model: nn.Module) -> str:
    """Returns the canonical name of one tensor.

    Args:
        name: Its name in the wrapped model, or its canonical name, or what is between:
            some wrappers leave themselves out of a state dict.
        model: The model that it belongs to; its objects say what is a wrapper.

    Raises:
        NamesError: The model has no such tensor; the message names the nearest.

    Example:
        >>> import torch
        >>> canonical_name("weigth", torch.nn.Linear(2, 2))
        Traceback (most recent call last):
        ...
        drivetrain_core._errors.NamesError: the model has no tensor 'weigth'; nearest: \
weight
    """
    names = canonical_names(model)
    if name in names:
        return names[name]
    canonical = set(names.values())
    for candidate in (name, _without_wrappers(name, model)):
        if candidate in canonical:
            return candidate
    near = difflib.get_close_matches(name, sorted(canonical | names.keys()), n=3)
    hint = f"; nearest: {', '.join(near)}" if near else ""
    message = f"the model has no tensor {name!r}{hint}"
    raise NamesError(message)


def named_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Returns the modules by canonical name, the model itself under the empty one.

    Args:
        model: A model, wrapped or not. Wrappers are not among the modules.

    Example:
        >>> import torch
        >>> list(named_modules(torch.nn.DataParallel(torch.nn.Sequential(
        ...     torch.nn.ReLU()))))
        ['', '0']
    """
    return _named(_walk_modules(model))


def unwrap(model: nn.Module) -> nn.Module:
    """Returns the user's own model inside any wrappers around it.

    Args:
        model: A model, wrapped or not. Wrappers further inside stay.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 2)
        >>> unwrap(torch.nn.DataParallel(model)) is model
        True
    """
    while (attribute := _wrapped_attribute(model)) is not None:
        model = model.get_submodule(attribute)
    return model


def _without_wrappers(name: str, model: nn.Module) -> str:
    """Follows a name down the modules, past wrappers that it mentions or does not."""
    parts = name.split(".")
    kept: list[str] = []
    module: nn.Module | None = model
    while module is not None and len(parts) > 1:
        wrapped = _wrapped_attribute(module)
        if wrapped is not None:
            parts = parts[1:] if parts[0] == wrapped else parts
            module = module._modules[wrapped]
        else:
            module = module._modules.get(parts[0])
            kept.append(parts.pop(0))
    return ".".join([*kept, *parts])


def _wrapped_attribute(module: nn.Module) -> str | None:
    for module_name, class_name, attribute in _WRAPPERS:
        wrapper = getattr(sys.modules.get(module_name), class_name, None)
        if wrapper is not None and isinstance(module, wrapper):
            return attribute
    return None


# Raw name, canonical name, tensor and kind.
_Found = tuple[str, str, "Tensor", str]
# Raw prefix, canonical prefix and module.
_Visit = tuple[str, str, "nn.Module"]


def _checked_walk(model: nn.Module) -> list[_Found]:
    return _checked(_tensors_of(_walk_modules(model)))


def _checked(walk: Iterable[_Found]) -> list[_Found]:
    found = list(walk)
    raw_names: dict[str, str] = {}
    for raw, name, _, _ in found:
        if name.endswith("_flat_param") and name.rpartition(".")[2] == "_flat_param":
            message = (
                f"FSDP1 has flattened parameters into {raw!r}, which has no canonical "
                "name. Use fully_shard(), or FullyShardedDataParallel with "
                "use_orig_params=True"
            )
            raise NamesError(message)
        if name in raw_names:
            message = (
                f"{raw_names[name]!r} and {raw!r} share the canonical name {name!r}: a "
                "wrapper holds a tensor called like one of the model. Rename one"
            )
            raise NamesError(message)
        raw_names[name] = raw
    return found


def _each_once(found: list[_Found], kinds: set[str]) -> dict[str, Tensor]:
    """Returns the tensors of some kinds, each under its first name."""
    first: dict[int, tuple[str, Tensor]] = {}
    for _, name, tensor, kind in found:
        if kind in kinds:
            first.setdefault(id(tensor), (name, tensor))
    return dict(first.values())


def _tensors_of(visits: Iterable[_Visit]) -> Iterator[_Found]:
    for raw, name, module in visits:
        # The dictionaries themselves, since FSDP1 overrides `named_parameters`.
        for key, parameter in module._parameters.items():
            if parameter is not None:
                yield raw + key, name + key, parameter, "parameter"
        for key, buffer in module._buffers.items():
            if buffer is not None:
                hidden = key in module._non_persistent_buffers_set
                kind = "non-persistent buffer" if hidden else "buffer"
                yield raw + key, name + key, buffer, kind


def _named(visits: Iterable[_Visit]) -> dict[str, nn.Module]:
    # A wrapper and what it wraps have one name; the wrapped one comes later.
    return {name.removesuffix("."): module for _, name, module in visits}


def _walk_modules(model: nn.Module) -> list[_Visit]:
    """Returns all modules from the top down; goes down no cycle."""
    visits: list[_Visit] = []
    above: set[int] = set()
    # Whether a module is a wrapper is a matter of its class: asked once for each.
    wrapped: dict[type, str | None] = {}

    def visit(module: nn.Module, raw: str, name: str) -> None:
        if id(module) in above:
            return
        visits.append((raw, name, module))
        kind = type(module)
        if kind not in wrapped:
            wrapped[kind] = _wrapped_attribute(module)
        attribute = wrapped[kind]
        above.add(id(module))
        for key, child in module._modules.items():
            if child is not None:
                inner = name if key == attribute else f"{name}{key}."
                visit(child, f"{raw}{key}.", inner)
        above.discard(id(module))

    visit(model, "", "")
    return visits
