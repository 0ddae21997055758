"""What AGD and LAMB have in common: torch's optimizer protocol, over batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from operator import is_
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch._compile import _disable_dynamo
from torch.optim import Optimizer

from drivetrain_optim._errors import (
    HyperparameterError,
    StateDictError,
    UnsupportedTensorError,
)
from drivetrain_optim.batched._layout import (
    choice_for,
    make_layout,
    shards_of,
    step_device,
)
from drivetrain_optim.batched._norms import ShardSlots, grad_norm, grad_scale
from drivetrain_optim.batched._state import load_moments
from drivetrain_optim.batched._work import Work
from drivetrain_optim.checks._option_checks import (
    check_changed_options,
    check_combination,
    check_names,
    check_not_capturing,
    check_not_scaled,
    check_options,
    learning_rate,
)
from drivetrain_optim.checks._state_checks import check_saved_groups, check_saved_state
from drivetrain_optim.checks._tensor_checks import (
    check_finite,
    check_parameters,
    check_whole,
    params_with_gradients,
    sharding_owner,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor
    from torch.optim.optimizer import ParamsT

    from drivetrain_optim.batched._layout import Layout, Part
    from drivetrain_optim.batched._scalars import Number
    from drivetrain_optim.checks._options import Rule


class BatchedOptimizer(Optimizer, ABC):
    """An optimizer that steps its parameters in batches; a subclass has the equations.

    A subclass names its options, its moments and what tells its checkpoints apart, and
    updates batches in `_update`.
    """

    _rules: ClassVar[Mapping[str, Rule]]
    _moments: ClassVar[tuple[str, ...]]
    _own_options: ClassVar[tuple[str, ...]]
    # The optimizer that made this one for a part of its parameters.
    _owner: str | None = None
    _known_whole: bool

    def __init__(self, params: ParamsT, options: dict[str, Any]) -> None:
        """Checks the options and builds the parameter groups."""
        name = type(self).__name__
        if not isinstance(params, torch.Tensor):
            listed: list[Any] = list(params)
            if not listed:
                message = (
                    f"{name}: params must hold at least one parameter or group, got 0"
                )
                raise HyperparameterError(message)
            params = listed
        self._forget()
        self._owner = sharding_owner(self)
        super().__init__(params, check_options(name, self._rules, options))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores a copy, also of a version that lacked an option.

        It finds the addresses of its own tensors.
        """
        self._forget()
        super().__setstate__(state)
        for group in self.param_groups:
            for name, rule in self._rules.items():
                group.setdefault(name, rule.default)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a parameter group; nothing is added when this raises.

        Args:
            param_group: `params` and the options that differ from the defaults.

        Raises:
            HyperparameterError: An option is not allowed, or a fused kernel is asked
                for that does not exist here.
            UnsupportedTensorError: A parameter is complex or integer.
        """
        name = type(self).__name__
        if isinstance(param_group, dict):
            check_names(name, self._rules, param_group)
            options = {**self.defaults, **param_group}
            param_group = check_options(name, self._rules, options)
            check_combination(name, param_group)
        self._forget()
        super().add_param_group(param_group)
        index = len(self.param_groups) - 1
        try:
            check_parameters(name, index, self.param_groups[index])
            for param in self.param_groups[index]["params"]:
                if self.param_groups[index]["fused"]:
                    choice_for(name, self.param_groups[index], param)
        except BaseException:
            self.param_groups.pop()
            raise

    @_disable_dynamo
    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Performs one step on every parameter that has a gradient.

        Args:
            closure: Evaluates the model again and returns the loss.

        Returns:
            What the closure returned, or None.

        Raises:
            UnsupportedTensorError: A gradient is sparse or complex, or a norm is needed of
                a parameter of which this rank has a part that is no DTensor.
            HyperparameterError: A learning rate is not a finite number >= 0, or
                `found_inf` or `grad_scale` was set on the optimizer.
            NonFiniteGradientError: A gradient is not finite, with `check_finite`.
            GraphCaptureError: A CUDA graph is being captured without `capturable`.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # Everything is looked at before the first weight changes.
        check_not_scaled(self)
        works = self._works()
        slots = self._find_slots() if self._slots is None else self._slots
        self._require_whole(works)
        if any(group["check_finite"] for group in self.param_groups):
            check_finite(type(self).__name__, self.param_groups, slots.any_rank)
        self._update(works, self._grad_scales(works, slots), slots)
        for work in works:
            work.batch.steps.add_(1)
            if work.table is not None:
                # A kernel's writes count as writes, too: autograd refuses a backward
                # through weights that have changed, and a checkpoint sees that they have.
                torch.autograd.graph.increment_version(work.batch.params)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what `state_dict` returned, with the dtype of the moments kept.

        Args:
            state_dict: The state of this kind of optimizer with groups of the same
                sizes. As in torch, tensors that need no cast are taken over, not
                copied.

        Raises:
            StateDictError: It was saved by another optimizer.
            ValueError: Its groups do not match.
        """
        loaded: list[dict[str, Any]] = []

        def keep(_: Optimizer, state_dict: dict[str, Any]) -> None:
            name = type(self).__name__
            if not state_dict.keys() >= {"state", "param_groups"}:
                message = (
                    f"{name}: a state dict has 'state' and 'param_groups', got "
                    f"{', '.join(map(repr, state_dict)) or 'nothing'}; is it the one of "
                    "the whole checkpoint?"
                )
                raise StateDictError(message)
            groups = state_dict["param_groups"]
            check_saved_groups(name, groups, self._own_options)
            check_saved_state(name, self.param_groups, state_dict, self._moments_of)
            loaded.append(state_dict)

        def restore(_: Optimizer) -> None:
            self._load_moments(loaded[-1])
            self._forget()

        # torch casts moments to the parameter's dtype while it loads; these hooks see
        # the state dict after every other pre-hook and mend it before any post-hook.
        before = self.register_load_state_dict_pre_hook(keep)
        after = self.register_load_state_dict_post_hook(restore, prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()

    @abstractmethod
    def _update(
        self, works: Sequence[Work], scales: Mapping[int, Number], slots: ShardSlots
    ) -> None:
        """Updates all batches.

        Args:
            works: The batches.
            scales: The factor on the gradients of each group, by the group's id.
            slots: The sharded parameters.
        """

    def _require_whole(self, works: Sequence[Work]) -> None:
        """Raises if a norm is needed of what is not known whole."""
        name = type(self).__name__
        clips = any(group["max_grad_norm"] is not None for group in self.param_groups)
        if clips and self._owner is not None:
            message = (
                f"{name}: max_grad_norm bounds the norm of all gradients, but "
                f"{self._owner} gave this rank a part of the parameters; leave it out "
                "and call torch.nn.utils.clip_grad_norm_ before the step. Nothing was "
                "stepped"
            )
            raise UnsupportedTensorError(message)
        takes_norms = clips or any(work.batch.kind.adapts for work in works)
        if takes_norms and not self._known_whole:
            for index, group in enumerate(self.param_groups):
                check_whole(name, index, group)
            self._known_whole = True

    def _moments_of(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """Returns the names of the moments that a group's options ask for."""
        del group
        return self._moments

    def _forget(self) -> None:
        """Drops what is known about where tensors lie."""
        self._layouts: dict[int, Layout] = {}
        self._known_state: list[dict[str, Any]] = []
        self._known_options: dict[int, dict[str, Any]] = {}
        self._known_sizes: list[int] = []
        self._slots: ShardSlots | None = None
        self._known_whole = False

    def _works(self) -> list[Work]:
        """Returns what the step will do; no weight and no moment changes."""
        name = type(self).__name__
        check_not_capturing(name, self.param_groups)
        state_holds = len(self.state) == len(self._known_state) and all(
            map(is_, self.state.values(), self._known_state)
        )
        sizes = [len(group["params"]) for group in self.param_groups]
        if not state_holds or sizes != self._known_sizes:
            # Entries know their position among the parameters of all groups.
            self._forget()
        self._known_sizes = sizes
        checked = []
        for index, group in enumerate(self.param_groups):
            self._known_options[index] = check_changed_options(
                name, self._rules, group, self._known_options.get(index, {})
            )
            lr = learning_rate(name, self._rules, group)
            grads = [param.grad for param in group["params"]]
            fetched = self._fetch(index, group, grads)
            if fetched is None:
                params_with_gradients(name, index, group)
            checked.append((index, group, lr, grads, fetched))
        works = []
        for index, group, lr, grads, fetched in checked:
            if fetched is None:
                self._lay_out(index, group)
                fetched = self._fetch(index, group, grads)
                assert fetched is not None
            for part, local in fetched:
                pointed = local
                if part.table is not None:
                    pointed = part.table.point_to(part.batch, local)
                works.append(Work(group, lr, part.batch, pointed, part.table))
        return works

    def _fetch(
        self, index: int, group: Mapping[str, Any], grads: list[Tensor | None]
    ) -> list[tuple[Part, list[Tensor]]] | None:
        """Returns the parts of a group with their gradients; None if they changed."""
        layout = self._layouts.get(index)
        present = [grad is not None for grad in grads]
        if layout is None or not layout.holds(group, present):
            return None
        fetched = []
        for part in layout.parts:
            local = part.batch.local_grads(grads)
            if local is None:
                return None
            fetched.append((part, local))
        return fetched

    def _lay_out(self, index: int, group: Mapping[str, Any]) -> None:
        self._layouts[index] = make_layout(
            type(self).__name__,
            group,
            state=self.state,
            moments=self._moments_of(group),
            index=index,
            first_index=sum(len(g["params"]) for g in self.param_groups[:index]),
        )
        self._known_state = list(self.state.values())
        self._slots = self._find_slots()

    def _find_slots(self) -> ShardSlots:
        self._slots = found = ShardSlots(
            (shards_of(param), param.device)
            for group in self.param_groups
            for param in group["params"]
        )
        return found

    def _grad_scales(
        self, works: Sequence[Work], slots: ShardSlots
    ) -> dict[int, Number]:
        """Returns the factor that clipping puts on the gradients of each group."""
        bounds = {id(g): g["max_grad_norm"] for g in self.param_groups}
        if all(bound is None for bound in bounds.values()):
            return dict.fromkeys(bounds, 1.0)
        norm = grad_norm(works, slots)
        return {
            key: 1.0 if bound is None else grad_scale(norm, bound)
            for key, bound in bounds.items()
        }

    def _load_moments(self, state_dict: dict[str, Any]) -> None:
        saved_groups = state_dict["param_groups"]
        for group, saved_group in zip(self.param_groups, saved_groups, strict=True):
            for param, key in zip(group["params"], saved_group["params"], strict=True):
                saved = state_dict["state"].get(key)
                if saved:
                    self.state[param] |= load_moments(
                        saved,
                        param=param,
                        names=self._moments,
                        state_dtype=group["state_dtype"],
                        step_device=step_device(param, group),
                    )
