"""Puts what a checkpoint holds back into a live state, after checking that it fits."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from drivetrain_core._errors import CheckpointError, NamesError
from drivetrain_core._model.names import named_modules, named_tensors, unwrap
from drivetrain_core.services._optimizer_restoration import OptimizerRestoration
from drivetrain_core.services._optimizer_state import (
    OptimizerState,
    keeps_state_by_parameter,
)
from drivetrain_core.services._own_state import OWN, has_own_state
from drivetrain_core.services._packed_entry import HasStateDict, with_extra_state
from drivetrain_core.services._plain_tree import join_tree, split_tree
from drivetrain_core.services._shape_mismatch import absent, nearest, shape_mismatch
from drivetrain_core.services.restoration import Restoration
from drivetrain_core.services.state_entry import StateEntry
from drivetrain_core.services.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, MutableMapping, Sequence

    from drivetrain_core.services.packed_state import Entry

# What is here, and what in the checkpoint: an object may take what was saved as data, and
# data be replaced by an object's state.
_INTERCHANGEABLE = {("object", "data"), ("data", "object")}
_KINDS = {
    "model": "a model",
    "optimizer": "an optimizer",
    "object": "an object",
    OWN: "a model with hooks or overrides of its state dict",
}
_NUM_HINTS = 3


def plan_restoration(
    into: MutableMapping[str, object],
    entries: Mapping[str, Entry],
    saved: Mapping[str, TensorSpec],
    *,
    strict: bool = True,
) -> Restoration:
    """Returns what restores a state, after checking that it fits; changes nothing.

    Args:
        into: The state to be restored in place, or a part of it.
        entries: The plain half of each entry in the checkpoint. Those that `into` does
            not ask for are left out.
        saved: The tensors in the checkpoint, by name.
        strict: Whether all that `into` asks for has to fit. Otherwise what fits is
            restored: each tensor and each extra state of a model by itself; of an
            optimizer the state of each parameter, and the options of each group;
            everything else as a whole. What does not fit is left as it is, and
            `mismatches` tells of all of it.

    Raises:
        CheckpointError: The checkpoint does not fit, if that is asked for; its
            `mismatches` are all that does not. Or it lacks a tensor of its own.

    Example:
        >>> from drivetrain_core.services import TensorSpec, pack_state
        >>> packed = pack_state({"rng": torch.ones(2)})
        >>> spec = TensorSpec(name="rng", global_shape=(2,), dtype=torch.float32)
        >>> into = {"rng": torch.zeros(2), "step": 3}
        >>> plan = plan_restoration(into, packed.entries, {"rng": spec}, strict=False)
        >>> plan.targets[0]()["rng"].copy_(packed.tensors["rng"])
        tensor([1., 1.])
        >>> into["rng"], plan.mismatches
        (tensor([1., 1.]), ["the checkpoint has no entry 'step'; it has rng"])
    """
    names = _parameter_names(into)
    plan = Restoration()
    num_hints = 0
    for key, target in into.items():
        if key not in entries:
            # Looking among 10,000 names for near ones takes 0.2 s.
            hint = nearest(key, list(entries)) if num_hints < _NUM_HINTS else ""
            num_hints += 1
            plan.mismatches.append(f"the checkpoint has no entry {key!r}{hint}")
            continue
        entry = entries[key]
        kind = _expected_kind(target, entry)
        if kind != entry["kind"] and (kind, entry["kind"]) not in _INTERCHANGEABLE:
            there = _KINDS.get(entry["kind"], entry["kind"])
            plan.mismatches.append(
                f"{key!r} is {_KINDS.get(kind, kind)} here, but {there} in the checkpoint"
            )
            continue
        specs = [_spec(name, saved) for name in entry["tensors"]]
        if isinstance(target, StateEntry):
            target.plan(key, into, plan, entry, specs, saved)
        elif isinstance(target, nn.Module) and kind == "model":
            _plan_model(plan, key, target, entry, specs)
        elif kind == "optimizer" and isinstance(target, torch.optim.Optimizer):
            _plan_optimizer(plan, key, target, names, entry, specs, saved)
        elif isinstance(target, torch.Tensor):
            _plan_tensor(plan, key, target, entry, specs)
        else:
            _plan_data(plan, key, into, entry, specs, strict=strict)
    if strict and plan.mismatches:
        error = CheckpointError(plan.summary())
        error.mismatches = tuple(plan.mismatches)
        raise error
    return plan


def _expected_kind(target: object, entry: Entry) -> str:
    if isinstance(target, StateEntry):
        return target.kind
    if isinstance(target, nn.Module):
        return OWN if has_own_state(named_modules(target).values()) else "model"
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
    extra_prefix = f"{key}._extra_state."
    saved = {s.name: s for s in specs if not s.name.startswith(extra_prefix)}
    present = _model_tensors(key, model)
    ties = {f"{key}.{n}": f"{key}.{of}" for n, of in entry.get("ties", {}).items()}
    sources = {n: n if n in saved else ties.get(n, n) for n in present}
    plan.mismatches += absent(
        [s if s in saved else n for n, s in sources.items()], saved
    )
    targets: dict[str, torch.Tensor] = {}
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []
    for name, source in sources.items():
        if source not in saved:
            continue
        problem = shape_mismatch(name, present[name], saved[source])
        if problem:
            plan.mismatches.append(problem)
        elif targets.setdefault(source, present[name]) is not present[name]:
            copies.append((present[name], targets[source]))
    extra_tensors = {s.name: _new_tensor(s) for s in specs if s.name not in saved}
    extra: Any = join_tree(entry["plain"], extra_tensors)
    modules = with_extra_state(named_modules(model))
    plan.mismatches += absent(modules, extra, f"{key!r}: the extra state of ")

    def finish() -> None:
        for tensor, source in copies:
            tensor.copy_(source)
        for name, module in modules.items():
            if name in extra:
                module.set_extra_state(extra[name])

    plan.targets.append(lambda: targets | extra_tensors)
    plan.finish.append(finish)


def _plan_optimizer(
    plan: Restoration,
    key: str,
    optimizer: torch.optim.Optimizer,
    names: Mapping[int, str],
    entry: Entry,
    specs: Sequence[TensorSpec],
    saved: Mapping[str, TensorSpec],
) -> None:
    try:
        state = OptimizerState(optimizer, names)
        restoration = OptimizerRestoration(key, state, entry, specs, saved)
    except NamesError as error:
        plan.mismatches.append(f"{key!r} does not fit the checkpoint: {error}")
        return
    plan.mismatches += restoration.mismatches
    plan.prepare.append(restoration.prepare)
    plan.targets.append(restoration.targets)
    plan.finish.append(restoration.finish)
    if type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict:
        # What else it does with a state that it loads.
        plan.finish.append(lambda: optimizer.load_state_dict(optimizer.state_dict()))


def _plan_tensor(
    plan: Restoration,
    key: str,
    target: torch.Tensor,
    entry: Entry,
    specs: Sequence[TensorSpec],
) -> None:
    is_within = entry["plain"][0] == "torch"
    value: Any = join_tree(entry["plain"], {}) if is_within else None
    if isinstance(value, torch.Tensor):
        specs = [TensorSpec(name=key, global_shape=value.shape, dtype=value.dtype)]
    elif entry["plain"] != ["tensor", key]:
        plan.mismatches.append(f"{key!r} is a tensor here, but not in the checkpoint")
        return
    problem = shape_mismatch(key, target, specs[0])
    if problem:
        plan.mismatches.append(problem)
    elif entry["tensors"]:
        plan.targets.append(lambda: {key: target.detach()})
    else:
        plan.finish.append(lambda: target.detach().copy_(value))


def _plan_data(
    plan: Restoration,
    key: str,
    into: MutableMapping[str, object],
    entry: Entry,
    specs: Iterable[TensorSpec],
    *,
    strict: bool,
) -> None:
    target = into[key]
    if isinstance(target, nn.Module):
        target = unwrap(target)
    if isinstance(target, HasStateDict) and entry["kind"] == "data":
        kind = entry["plain"][0]
        if kind in {"value", "numpy", "size", "tensor", "torch", "list", "tuple"}:
            plan.mismatches.append(
                f"{key!r} is an object here, but a {kind} in the checkpoint"
            )
            return
    present = _present_tensors(key, target)
    problems = {
        spec.name: shape_mismatch(spec.name, present[spec.name], spec)
        for spec in specs
        if spec.name in present
    }
    tensors = {
        s.name: present[s.name] if problems.get(s.name) == "" else _new_tensor(s)
        for s in specs
    }
    value: Any = join_tree(entry["plain"], tensors)
    if isinstance(target, nn.Module):
        plan.mismatches += absent(present, tensors)
        plan.mismatches += filter(None, problems.values())
        fitting = [n for n in value if not problems.get(f"{key}.{n}")]
        value = OrderedDict((name, value[name]) for name in fitting)
        # Some modules ask of which version a state is.
        value._metadata = getattr(target.state_dict(), "_metadata", OrderedDict())

    def finish() -> None:
        if isinstance(target, nn.Module) and not strict:
            target.load_state_dict(value, strict=False)
        elif isinstance(target, HasStateDict):
            target.load_state_dict(value)
        elif isinstance(target, dict) and isinstance(value, dict):
            target.clear()
            target.update(value)
        else:
            into[key] = value

    plan.targets.append(lambda: tensors)
    plan.finish.append(finish)


def _present_tensors(key: str, target: object) -> dict[str, torch.Tensor]:
    """Returns the tensors that are there already, to be written in place."""
    tensors: dict[str, torch.Tensor] = {}
    try:
        value = target.state_dict() if isinstance(target, HasStateDict) else target
        split_tree(value, key, tensors)
    except (TypeError, ValueError):
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


def _spec(name: str, saved: Mapping[str, TensorSpec]) -> TensorSpec:
    if name not in saved:
        message = f"the index of the checkpoint has no tensor {name!r}"
        raise CheckpointError(message)
    return saved[name]


def _new_tensor(spec: TensorSpec) -> torch.Tensor:
    return torch.empty(spec.global_shape, dtype=spec.dtype)
