"""Where a plan's optimizer comes from: a factory or an instance, and changes to it.

Sharding replaces parameters, so the optimizer is built once, last, from this recipe.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from drivetrain_core._errors import Code, PlanError, ProgramError
from drivetrain_core._optimizer.master_weights import MasterWeightOptimizer

OptimizerFactory = Callable[[Iterable[Any]], torch.optim.Optimizer]
"""Builds an optimizer from parameters, or from parameter groups."""

OptimizerWrapper = Callable[[torch.optim.Optimizer], torch.optim.Optimizer]
"""Returns an optimizer around another one."""

Named = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """A parameter group by names, so that it outlives the tensors.

    Args:
        names: Canonical parameter names.
        options: The group's options, such as `lr`.
    """

    names: tuple[str, ...]
    options: Mapping[str, Any]

    def of(self, named: Named) -> dict[str, Any]:
        """Returns the group with tensors in place of names.

        Over a mesh, what is on this rank of them: parts of a fused matrix stand for it,
        and what other stages have is left out.
        """
        if not isinstance(named, _Laid):
            return {**self.options, "params": [named[name] for name in self.names]}
        here: dict[str, list[torch.Tensor]] = {}
        for name, tensor in named.items():
            here.setdefault(named.canonical.get(name, name), []).append(tensor)
        params = [tensor for name in self.names for tensor in here.get(name, ())]
        return {**self.options, "params": params}


class _Laid(dict[str, torch.Tensor]):
    """Parameters of this rank by name, with what the whole model calls them."""

    def __init__(self, named: Named, canonical: Mapping[str, str]) -> None:
        super().__init__(named)
        self.canonical = canonical


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerSource:
    """A recipe for the optimizer; built after every parameter has its final form.

    Args:
        construct: Builds the optimizer from the parameters by name.
        groups: The user's parameter groups.
        kind: The class of the user's optimizer.
        defaults: The user's default options.
        saved_state: The state of an instance that has been stepped already.
        options: Values that are set on each group after the build.
        master_weights: Whether low-precision weights get fp32 masters.
        wrapper: Puts another optimizer around the one that was built.
        hooks: What the user's instance calls before and after its steps, by attribute.
    """

    construct: Callable[[Named], torch.optim.Optimizer]
    groups: tuple[ParameterGroup, ...]
    kind: type[torch.optim.Optimizer]
    defaults: Mapping[str, Any]
    saved_state: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    master_weights: bool = False
    wrapper: OptimizerWrapper | None = None
    hooks: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, given: torch.optim.Optimizer | OptimizerFactory, model: torch.nn.Module
    ) -> OptimizerSource:
        """Returns the recipe for a user's optimizer, given as factory or instance.

        Raises:
            ProgramError: It is neither, it holds parameters that are not the model's,
                or it is an instance that cannot be rebuilt without a loss.
        """
        saved, hooks = None, {}
        if isinstance(given, torch.optim.Optimizer):
            instance = given
            _require_rebuildable(instance)
            groups = _groups_by_name(instance, model)
            construct = _rebuild(type(instance), groups, instance.defaults)
            saved = instance.state_dict() if instance.state else None
            hooks = step_hooks(instance)
        else:
            instance = _call(given, model)
            groups = _groups_by_name(instance, model)
            construct = _call_factory(given, groups)
        return cls(
            construct=construct,
            groups=groups,
            kind=type(instance),
            defaults=dict(instance.defaults),
            saved_state=saved,
            hooks=hooks,
        )

    @property
    def needs_closure(self) -> bool:
        """Whether the user's optimizer evaluates the loss itself, as LBFGS does."""
        closure = inspect.signature(self.kind.step).parameters.get("closure")
        return closure is not None and closure.default is inspect.Parameter.empty

    def replaced_by(self, factory: OptimizerFactory) -> OptimizerSource:
        """Returns a recipe for another optimizer on the user's parameter groups.

        Args:
            factory: Called with groups that hold `params` and, when the user's
                optimizer has them, its `lr` and `weight_decay`.
        """
        kept = ("lr", "weight_decay")
        groups = tuple(
            ParameterGroup(g.names, {k: g.options[k] for k in kept if k in g.options})
            for g in self.groups
        )

        def construct(named: Named) -> torch.optim.Optimizer:
            return factory([group.of(named) for group in groups])

        return replace(self, construct=construct, saved_state=None, options={})

    def with_options(self, **options: Any) -> OptimizerSource:
        """Returns the recipe with options set on every group."""
        return replace(self, options={**self.options, **options})

    def wrapped_by(self, wrapper: OptimizerWrapper) -> OptimizerSource:
        """Returns a recipe that puts another optimizer around this one, last."""
        return replace(self, wrapper=wrapper)

    def with_master_weights(self) -> OptimizerSource:
        """Returns the recipe with fp32 masters for low-precision weights."""
        return replace(self, master_weights=True)

    def build(
        self, model: torch.nn.Module, canonical: Mapping[str, str] | None = None
    ) -> torch.optim.Optimizer:
        """Builds the optimizer on the model's parameters as they are now.

        Args:
            model: What this rank has of the model.
            canonical: Over a mesh, what the whole model calls each parameter.

        Raises:
            PlanError: An option is not one of this optimizer's, or the plan cannot
                carry over the state of an optimizer that has been stepped.
        """
        named = dict(model.named_parameters())

        def plain(tensors: Named) -> torch.optim.Optimizer:
            laid = tensors if canonical is None else _Laid(tensors, canonical)
            return self._plain(laid)

        if self.master_weights:
            optimizer: torch.optim.Optimizer = MasterWeightOptimizer(named, plain)
        else:
            optimizer = plain(named)
        return self.wrapper(optimizer) if self.wrapper else optimizer

    def _plain(self, named: Named) -> torch.optim.Optimizer:
        optimizer = self.construct(named)
        for name, hooks in self.hooks.items():
            getattr(optimizer, name).update(hooks)
        if self.saved_state is not None:
            shards = (hasattr(tensor, "device_mesh") for tensor in named.values())
            if isinstance(named, _Laid) or any(shards):
                raise PlanError(
                    Code.NOT_APPLICABLE,
                    "optimizer",
                    because="the optimizer was stepped before accelerate, and a "
                    "sharding plan cannot carry its state over",
                    fix="pass a new optimizer, or a factory",
                )
            # Its tensors are taken as they are, and stepped in place.
            optimizer.load_state_dict(copy.deepcopy(dict(self.saved_state)))
        for key, value in self.options.items():
            if key not in optimizer.defaults:
                raise PlanError(
                    Code.NOT_APPLICABLE,
                    "optimizer_impl",
                    because=f"{type(optimizer).__name__} has no option {key!r}",
                )
            optimizer.defaults[key] = value
            for group in optimizer.param_groups:
                group[key] = value
        if self.options.get("fused"):
            # What the constructor sets for fused=True; GradScaler looks for it.
            optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
        return optimizer


def step_hooks(optimizer: torch.optim.Optimizer) -> dict[str, dict[int, Any]]:
    """Returns what an optimizer calls before and after its steps, by attribute."""
    names = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    found = {name: dict(getattr(optimizer, name, {})) for name in names}
    return {name: hooks for name, hooks in found.items() if hooks}


def _call(factory: object, model: torch.nn.Module) -> torch.optim.Optimizer:
    if not callable(factory):
        message = (
            "optimizer must be a torch.optim.Optimizer or a function from "
            f"parameters to one, got {type(factory).__name__}"
        )
        raise ProgramError(message)
    instance = factory(model.parameters())
    if not isinstance(instance, torch.optim.Optimizer):
        message = (
            "the optimizer factory must return a torch.optim.Optimizer, got "
            f"{type(instance).__name__}"
        )
        raise ProgramError(message)
    return instance


def _require_rebuildable(optimizer: torch.optim.Optimizer) -> None:
    """Refuses an instance of which a new one would not be the same."""
    # A scheduler wraps the `step` of its optimizer, and would go on with that one.
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        message = (
            "the optimizer has a learning-rate scheduler, which would not follow the "
            "optimizer that is built in its place; pass an optimizer without one, and "
            "scheduler=function(optimizer)"
        )
        raise ProgramError(message)
    kind = type(optimizer)
    _, *options = inspect.signature(kind).parameters.values()
    unknown = [
        option.name
        for option in options
        if option.name not in optimizer.defaults and option.kind not in _VARIADIC
    ]
    if unknown:
        message = (
            f"{kind.__name__} does not record its argument {unknown[0]!r}, and cannot "
            "be built again as it was; pass a function from parameters to the optimizer"
        )
        raise ProgramError(message)


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _groups_by_name(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module
) -> tuple[ParameterGroup, ...]:
    names = {id(tensor): name for name, tensor in model.named_parameters()}
    groups = []
    for group in optimizer.param_groups:
        foreign = [p for p in group["params"] if id(p) not in names]
        if foreign:
            message = (
                f"the optimizer holds {len(foreign)} parameter(s) that are not the "
                f"model's, the first of shape {tuple(foreign[0].shape)}; build it from "
                "the parameters of the model that you hand over"
            )
            raise ProgramError(message)
        options = {key: value for key, value in group.items() if key != "params"}
        group_names = tuple(names[id(p)] for p in group["params"])
        groups.append(ParameterGroup(group_names, options))
    return tuple(groups)


def _call_factory(
    factory: OptimizerFactory, groups: Sequence[ParameterGroup]
) -> Callable[[Named], Any]:
    def construct(named: Named) -> torch.optim.Optimizer:
        optimizer = factory(list(named.values()))
        pairs = zip(groups, optimizer.param_groups, strict=False)
        for known, group in pairs if len(groups) == len(optimizer.param_groups) else ():
            for key, first in known.options.items():
                # What a device decides is true or false.
                if type(first) in _NUMBERS and group.get(key) != first:
                    message = (
                        f"the optimizer factory gives {key}={first!r} when it is called "
                        f"first, and {group.get(key)!r} when it is called again: let it "
                        "depend on its parameters alone, or pass the optimizer itself"
                    )
                    raise ProgramError(message)
        return optimizer

    return construct


_NUMBERS = (int, float, tuple)


def _rebuild(
    kind: type[torch.optim.Optimizer],
    groups: tuple[ParameterGroup, ...],
    defaults: Mapping[str, Any],
) -> Callable[[Named], Any]:
    def construct(named: Named) -> torch.optim.Optimizer:
        accepted = inspect.signature(kind).parameters
        options = {key: value for key, value in defaults.items() if key in accepted}
        return kind([group.of(named) for group in groups], **options)

    return construct
