"""Puts what a checkpoint holds back into a live state, after checking that it fits."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from drivetrain_core._errors import CheckpointError, NamesError
from drivetrain_core._names import named_modules, named_tensors
from drivetrain_core.services._optimizer_state import (
    OptimizerState,
    keeps_state_by_parameter,
)
from drivetrain_core.services._packed_entry import HasStateDict
from drivetrain_core.services._plain_tree import join_tree, split_tree
from drivetrain_core.services.state_source import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, MutableMapping

    from drivetrain_core.services.packed_state import Entry

__all__ = ["Restoration", "plan_restoration"]


@dataclass(slots=True)
class Restoration:
    """What is to be done to restore a state, in this order.

    Args:
        prepare: Makes places for tensors that are not there yet.
        targets: Returns the tensors to be written in place, by name.
        finish: Takes over plain values, when the tensors have been written.
    """

    prepare: list[Callable[[], None]] = field(default_factory=list)
    targets: list[Callable[[], Mapping[str, torch.Tensor]]] = field(
        default_factory=list
    )
    finish: list[Callable[[], None]] = field(default_factory=list)


def plan_restoration(
    into: MutableMapping[str, object],
    entries: Mapping[str, Entry],
    saved: Mapping[str, TensorSpec],
) -> Restoration:
    """Returns what restores a state, after checking that it fits; changes nothing.

    Args:
        into: The state to be restored in place.
        entries: The plain half of each entry in the checkpoint.
        saved: The tensors in the checkpoint, by name.

    Raises:
        CheckpointError: The checkpoint does not fit; the message says where.

    Example:
        >>> from drivetrain_core.services import pack_state
        >>> packed = pack_state({"rng": torch.ones(2)})
        >>> spec = TensorSpec(name="rng", global_shape=(2,), dtype=torch.float32)
        >>> into = {"rng": torch.zeros(2)}
        >>> plan = plan_restoration(into, packed.entries, {"rng": spec})
        >>> plan.targets[0]()["rng"].copy_(packed.tensors["rng"])
        tensor([1., 1.])
        >>> into["rng"]
        tensor([1., 1.])
    """
    names = _parameter_names(into)
    plan = Restoration()
    for key, target in into.items():
        if key not in entries:
            message = f"the checkpoint has no entry {key!r}{_nearest(key, entries)}"
            raise CheckpointError(message)
        entry = entries[key]
        kind = _expected_kind(target, entry)
        if kind != entry["kind"] and "data" not in {kind, entry["kind"]}:
            message = (
                f"{key!r} is a {kind} here, but a {entry['kind']} in the checkpoint"
            )
            raise CheckpointError(message)
        specs = [_spec(name, saved) for name in entry["tensors"]]
        try:
            if kind == "model" and isinstance(target, nn.Module):
                _plan_model(plan, key, target, entry, specs)
            elif kind == "optimizer" and isinstance(target, torch.optim.Optimizer):
                state = OptimizerState(target, names)
                _plan_optimizer(plan, key, state, entry, specs)
            else:
                _plan_data(plan, key, into, entry, specs)
        except NamesError as error:
            message = f"{key!r} does not fit the checkpoint: {error}"
            raise CheckpointError(message) from error
    return plan


def _expected_kind(target: object, entry: Entry) -> str:
    if isinstance(target, nn.Module):
        return "model"
    if isinstance(target, torch.optim.Optimizer):
        # A new optimizer does not show yet how it keeps its state: the saved one did.
        by_name = keeps_state_by_parameter(target) and entry["kind"] == "optimizer"
        return "optimizer" if by_name else "object"
    return "object" if isinstance(target, HasStateDict) else "data"


def _plan_model(
    plan: Restoration,
    key: str,
    model: nn.Module,
    entry: Entry,
    specs: Iterable[TensorSpec],
) -> None:
    targets = _model_tensors(key, model)
    extra_tensors: dict[str, torch.Tensor] = {}
    saved = {s.name: s for s in specs}
    extra_prefix = f"{key}._extra_state."
    for name in [name for name in saved if name.startswith(extra_prefix)]:
        extra_tensors[name] = _new_tensor(saved.pop(name))
    missing, left = sorted(targets.keys() - saved), sorted(saved.keys() - targets)
    if missing or left:
        parts = [f"the model has {_listing(missing)} more"] if missing else []
        parts += [f"the checkpoint has {_listing(left)} more"] if left else []
        message = f"{key!r} is not the model of the checkpoint: {'; '.join(parts)}"
        raise CheckpointError(message)
    for name, tensor in targets.items():
        _check_fits(name, tensor, saved[name])

    def finish() -> None:
        extra: Any = join_tree(entry["plain"], extra_tensors)
        for name, module in _with_extra_state(model):
            if name in extra:
                module.set_extra_state(extra[name])

    plan.targets.append(lambda: {**targets, **extra_tensors})
    plan.finish.append(finish)


def _plan_optimizer(
    plan: Restoration,
    key: str,
    state: OptimizerState,
    entry: Entry,
    specs: Iterable[TensorSpec],
) -> None:
    if state.groups() != entry["groups"]:
        message = (
            f"{key!r} has not the parameter groups of the checkpoint: "
            f"{state.groups()!r:.200} here, {entry['groups']!r:.200} there"
        )
        raise CheckpointError(message)
    inner = [
        TensorSpec(
            name=spec.name.removeprefix(f"{key}."),
            global_shape=spec.global_shape,
            dtype=spec.dtype,
        )
        for spec in specs
    ]
    state.check(inner)
    scalars: Any = join_tree(entry["plain"], {})

    def prepare() -> None:
        state.retain({spec.name for spec in inner} | scalars.keys())
        state.prepare(inner)
        present = state.tensors()
        for spec in inner:
            _check_fits(spec.name, present[spec.name], spec)

    plan.prepare.append(prepare)
    plan.targets.append(lambda: _prefixed(key, state.tensors()))
    plan.finish.append(lambda: state.load_scalars(scalars))


def _plan_data(
    plan: Restoration,
    key: str,
    into: MutableMapping[str, object],
    entry: Entry,
    specs: Iterable[TensorSpec],
) -> None:
    target = into[key]
    present = _present_tensors(key, target)
    tensors: dict[str, torch.Tensor] = {}
    for spec in specs:
        tensor = present.get(spec.name)
        if isinstance(target, torch.Tensor) and tensor is not None:
            _check_fits(spec.name, tensor, spec)
        fits = tensor is not None and _matches(tensor, spec)
        tensors[spec.name] = (
            tensor if fits and tensor is not None else _new_tensor(spec)
        )

    def finish() -> None:
        value: Any = join_tree(entry["plain"], tensors)
        if isinstance(target, HasStateDict):
            target.load_state_dict(value)
        elif isinstance(target, dict) and isinstance(value, dict):
            target.clear()
            target.update(value)
        elif not isinstance(target, torch.Tensor):
            into[key] = value

    plan.targets.append(lambda: tensors)
    plan.finish.append(finish)


def _present_tensors(key: str, target: object) -> dict[str, torch.Tensor]:
    """Returns the tensors that are there already, to be written in place."""
    tensors: dict[str, torch.Tensor] = {}
    try:
        value = target.state_dict() if isinstance(target, HasStateDict) else target
        split_tree(value, key, tensors)
    except TypeError:
        # A placeholder that could not be saved itself: all of it will be replaced.
        return {}
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _parameter_names(state: Mapping[str, object]) -> dict[int, str]:
    return {
        id(tensor): f"{key}.{name}"
        for key, value in state.items()
        if isinstance(value, nn.Module)
        for name, tensor in named_tensors(value, buffers=False).items()
    }


def _model_tensors(key: str, model: nn.Module) -> dict[str, torch.Tensor]:
    named = named_tensors(model).items()
    return {f"{key}.{name}": tensor.detach() for name, tensor in named}


def _with_extra_state(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [
        (name, module)
        for name, module in named_modules(model).items()
        if type(module).get_extra_state is not nn.Module.get_extra_state
    ]


def _prefixed(key: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{key}.{name}": tensor for name, tensor in tensors.items()}


def _spec(name: str, saved: Mapping[str, TensorSpec]) -> TensorSpec:
    if name not in saved:
        message = f"the index of the checkpoint has no tensor {name!r}"
        raise CheckpointError(message)
    return saved[name]


def _new_tensor(spec: TensorSpec) -> torch.Tensor:
    return torch.empty(spec.global_shape, dtype=spec.dtype)


def _matches(tensor: torch.Tensor, spec: TensorSpec) -> bool:
    return (tuple(tensor.shape), tensor.dtype) == (spec.global_shape, spec.dtype)


def _check_fits(name: str, tensor: torch.Tensor, spec: TensorSpec) -> None:
    if not _matches(tensor, spec):
        message = (
            f"{name!r} is {list(tensor.shape)} {tensor.dtype} here, but "
            f"{list(spec.global_shape)} {spec.dtype} in the checkpoint"
        )
        raise CheckpointError(message)


def _listing(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5}" if len(names) > 5 else "")


def _nearest(key: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(key, names, n=3)
    return f"; nearest: {', '.join(near)}" if near else f"; it has {', '.join(names)}"
