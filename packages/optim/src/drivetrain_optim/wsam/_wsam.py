"""WSAM: a base optimizer that also weighs how sharp the loss is around the weights."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch._compile import _disable_dynamo
from torch.optim import Optimizer

from drivetrain_optim._errors import StepOrderError
from drivetrain_optim.checks._option_checks import check_not_scaled
from drivetrain_optim.checks._options import WSAM_OPTIONS
from drivetrain_optim.wsam._batch_norm import RunningStatistics
from drivetrain_optim.wsam._groups import GroupOptions, check_base, check_model
from drivetrain_optim.wsam._pass import Pass, begin, check_scaler, check_stepped_by
from drivetrain_optim.wsam._update import (
    make_empty_state,
    step_from_both,
    step_from_one,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Literal

    from torch import nn
    from torch.amp import GradScaler

# The attribute of a gradient that a step has used: its identity and its version then. No
# weak reference, since torch swaps no tensor that has one.
_USED = "_wsam_used"


class WSAM(Optimizer):
    """Minimizes the loss and, with a weight, its sharpness, by any base optimizer.

        L_WSAM(w) = L(w) + a * (L(w + e) - L(w))    a = gamma / (1 - gamma)
        e  = rho * g / ||g||                        adaptive: rho * w^2 * g / || w * g ||
        g  = grad L(w),  gs = grad L(w + e)
        w <- Base(w, g) - lr * a * (gs - g)         decouple=True
        w <- Base(w, g + a * (gs - g))              decouple=False

    `w` are the weights, `L` is the loss of the batch, `e` the perturbation, `Base` a
    step of the base optimizer with the gradient given, and `lr` its learning rate
    before the step. Products and powers are elementwise; the norm is over all
    parameters of all groups, and `eps` is added to it before the division. At
    `gamma = 0` this is the base optimizer (to the bit), at 0.5 without decoupling SAM.

    WSAM with and without "weight decouple", of Yue et al., "Sharpness-Aware
    Minimization Revisited: Weighted Sharpness as a Regularization Term", KDD 2023,
    https://arxiv.org/abs/2305.15817; adaptive: ASAM, https://arxiv.org/abs/2102.11600.

    A step takes two backward passes over the same batch, or the same micro-batches,
    driven in one of three ways that give the same bits:

        loss.backward()
        with wsam.perturb():        # or wsam.first_step()
            compute_loss().backward()
        wsam.step()                 # or wsam.second_step(), without the block

    or `wsam.step(closure)`. Weights are saved and copied back, never recomputed, so
    they return to the bit, also after an exception. Until then the model is at `w + e`:
    save or copy it after the block, or `restore` first. After a step, `p.grad` holds the
    second gradient as backward made it (the only one if there was one pass). A
    parameter with a first gradient only is stepped with it, without sharpness; one
    with a second gradient only is not stepped.

    Memory beyond the base optimizer's: the saved weights and a copy of the first
    gradient, from the first pass to the step, then freed. `every_k > 1` keeps a
    direction as large as the weights; the next first gradient is copied into it, so
    the peak is the same (unless a pass is made that was not due).

    `every_k > 1` follows LookSAM (Liu et al. 2022, https://arxiv.org/abs/2203.02714):
    on the steps between, `gs - g` is taken to be `||g|| / ||g_k|| * v`, with `v` the
    part of `gs` orthogonal to `g` at the last full step and `g_k` its `g`. The paper
    takes `||g|| / ||v|| * v` times a factor to be tuned: as long as `g` itself.

    Weights narrower than float32 are perturbed, and stepped by the decoupled term, in
    float32 and rounded at random without bias, seeded by the step count alone; rounding
    to the nearest would lose most of both. Where the base keeps a float32 copy
    (`state[p]["master"]`), the term goes into it.

    Data parallelism: with "global" and DDP, both gradients are averages over ranks, and
    all ranks step as one process with the whole batch. With "local", run the first of
    two passes under `model.no_sync()`, forward too, as `step(closure)` does: each rank
    perturbs along its own gradient, which is then averaged in one all-reduce for each
    dtype. A first gradient that is missing counts as zero there, and what has a second
    one is stepped. DTensor parameters (FSDP2, tensor parallelism) work with "global";
    a norm costs one all-reduce of a scalar for each sharded dimension of the mesh. Give
    `model` if FSDP2 was told not to reshard after backward, since the second forward
    would not see the perturbation.

    With a `GradScaler`, pass it to `perturb` or `first_step` and end with
    `scaler.step(wsam)` (or `second_step()`, which calls it): an overflow in either
    pass skips the step. Do not call `scaler.unscale_(wsam)` before the first pass has
    ended; before `scaler.step` it is allowed.

    Do not clip `p.grad` between the second pass and the step only: it then holds the
    second gradient alone, and the difference of a clipped and an unclipped gradient
    points uphill. Use `max_grad_norm`, or clip before both.

    Norms are in float32 for parameters that are not float64: a gradient beyond 1.8e19
    has an infinite one, and is neither followed (`e` is 0) nor kept by `max_grad_norm`.

    Nothing waits for the device, except under a scaler, which does so itself. Step
    hooks of `WSAM` run once a step, those of the base when it steps. Not thread-safe,
    like every torch optimizer.

    Args:
        base: The base optimizer. Its `param_groups`, `state` and schedules are shared;
            a group's `rho` and `gamma` override those given here ("wsam_rho" or
            "wsam_gamma" if the base has an option of that name). A group's `maximize`
            is respected.
        model: The model, DDP or compiled or not. With it, BatchNorm and InstanceNorm
            layers count each batch once; without it nothing is frozen, and they count
            both passes.
        rho: Radius of the neighbourhood, >= 0.
        gamma: Weight of sharpness, in [0, 1); the authors advise 0.8 to 0.95. If it is
            0 in all groups no second pass is due.
        adaptive: Whether the neighbourhood scales with the weights, as in ASAM.
        decouple: Whether the sharpness term stays out of the base's moments.
        eps: Added to the norm, > 0.
        max_grad_norm: Bound on the norm of `g` and of `gs`, each by itself, where they
            enter the update (`e` depends on neither norm); None for no bound.
        every_k: How many steps share a second pass, >= 1.
        gradient: "global" or "local", see above.

    Raises:
        HyperparameterError: An option is not allowed, or `base` is not an optimizer
            that steps without a closure.
        UnsupportedTensorError: A parameter is complex or integer, or a DTensor with
            gradient="local".

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
        >>> wsam = WSAM(torch.optim.SGD([weight], lr=0.1), rho=0.01)
        >>> for _ in range(50):
        ...     wsam.zero_grad()
        ...     weight.square().sum().backward()
        ...     with wsam.perturb():
        ...         weight.square().sum().backward()
        ...     wsam.step()
        >>> bool(weight.abs().max() < 0.1)
        True
    """

    _base: Optimizer
    _model: nn.Module | None
    _options: GroupOptions
    _pending: Pass | None
    _unscaled: list[object]

    def __init__(
        self,
        base: Optimizer,
        *,
        model: nn.Module | None = None,
        rho: float = 0.05,
        gamma: float = 0.9,
        adaptive: bool = False,
        decouple: bool = True,
        eps: float = 1e-12,
        max_grad_norm: float | None = None,
        every_k: int = 1,
        gradient: Literal["global", "local"] = "global",
    ) -> None:
        """Checks the options and adds them to the base's groups."""
        given = locals()
        check_base(base, wrapper=WSAM)
        check_model(model)
        options = {name: given[name] for name in WSAM_OPTIONS}
        group_options = GroupOptions(base, options)
        # What `Optimizer.__init__` would make anew is the base's; this makes the rest.
        super().__setstate__(
            {
                "defaults": {**base.defaults, **group_options.defaults},
                "_base": base,
                "_model": model,
                "_options": group_options,
                "_pending": None,
                "_unscaled": [],
            }
        )

    @property
    def base(self) -> Optimizer:
        """The base optimizer."""
        return self._base

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The base's parameter groups, with WSAM's options in them."""
        return self._base.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The base's state; `every_k > 1` keeps "wsam_direction" in it."""
        return self._base.state

    @property
    def needs_second_pass(self) -> bool:
        """Whether the next step must have a second pass.

        Example:
            >>> weight = torch.nn.Parameter(torch.ones(2))
            >>> wsam = WSAM(torch.optim.SGD([weight], lr=0.1), every_k=3)
            >>> due = []
            >>> for _ in range(5):
            ...     wsam.zero_grad()
            ...     weight.square().sum().backward()
            ...     due.append(wsam.needs_second_pass)
            ...     if wsam.needs_second_pass:
            ...         with wsam.perturb():
            ...             weight.square().sum().backward()
            ...     wsam.step()
            >>> due
            [True, False, False, True, False]
        """
        return self._options.second_pass_is_due

    @contextmanager
    def perturb(self, *, scaler: GradScaler | None = None) -> Iterator[None]:
        """Holds the weights at `w + e` for the second pass, as a context manager.

        On entry, takes the first gradient out of `p.grad` and clears it; on exit puts
        weights and running statistics back. If the block raises, the pass is dropped
        and gradients are cleared; nothing else has changed.

        Args:
            scaler: The scaler that scaled both losses.

        Raises:
            StepOrderError: The weights are perturbed already.
            UnsupportedTensorError: A gradient is sparse or complex.
            HyperparameterError: A group's `rho` or `gamma` is not allowed.
        """
        self._begin(scaler, in_block=True)
        try:
            yield
        except BaseException:
            self.restore()
            raise
        self._put_back()

    def first_step(self, *, scaler: GradScaler | None = None) -> None:
        """Perturbs the weights and clears gradients; `second_step` puts them back.

        Args:
            scaler: The scaler that scaled the loss; `second_step` steps through it.

        Raises:
            StepOrderError: The weights are perturbed already.
            UnsupportedTensorError: A gradient is sparse or complex.
            HyperparameterError: A group's `rho` or `gamma` is not allowed.
        """
        self._begin(scaler, in_block=False)

    def second_step(self) -> None:
        """Puts the weights back and steps, through the scaler if there is one.

        Raises:
            StepOrderError: There was no `first_step`, or no second backward.
            UnsupportedTensorError: A gradient is sparse or complex; the weights are
                back, and `step()` can be called when that is mended.
        """
        pending = self._pending
        if pending is None or pending.saved is None or pending.in_block:
            found = "the block of perturb()" if self._perturbed else "no first_step()"
            message = (
                f"WSAM: second_step() must follow first_step(), got {found} before it; "
                "call first_step() after the first backward, or use perturb() and step()"
            )
            raise StepOrderError(message)
        self._put_back()
        if pending.scaler is None:
            self.step()
        else:
            pending.scaler.step(self)

    @torch.no_grad()
    def restore(self) -> None:
        """Puts the weights back and drops the pass and its gradients, if there is one.

        Example:
            >>> weight = torch.nn.Parameter(torch.ones(2))
            >>> wsam = WSAM(torch.optim.SGD([weight], lr=0.1), rho=1.0)
            >>> weight.sum().backward()
            >>> wsam.first_step()
            >>> wsam.restore()
            >>> weight.tolist(), weight.grad
            ([1.0, 1.0], None)
        """
        if self._pending is not None:
            self._put_back()
            self._pending = None
            self.zero_grad()

    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Performs one step, from the gradients of the two passes.

        Args:
            closure: Computes the loss, runs backward, and returns the loss. Called
                twice (once if no second pass is due). Gradients that a step has used
                are cleared before it, so that it may do so itself or not; those that
                were accumulated since count where there is one pass, and are dropped
                with a warning where there are two: replay micro-batches in `perturb`.
                At `gamma = 0` nothing is cleared, as by the base.

        Returns:
            What the first call of the closure returned, or None.

        Raises:
            StepOrderError: A second pass is due and there was none, its gradients are
                missing, or it has not ended.
            UnsupportedTensorError: A gradient is sparse or complex.
            HyperparameterError: A group's `rho` or `gamma` is not allowed, or
                `found_inf` or `grad_scale` was set on the optimizer.
        """
        check_not_scaled(self)
        if self._perturbed:
            message = (
                "WSAM: step() must come when the weights are back, got it while they "
                "are perturbed; leave the block of perturb(), or call second_step()"
            )
            raise StepOrderError(message)
        loss = None
        if closure is not None:
            self._clear_for_closure()
            with torch.enable_grad(), self._options.no_sync(self._model):
                loss = closure()
            if self.needs_second_pass:
                with self.perturb(), torch.enable_grad():
                    closure()
        if self._pending is not None:
            check_stepped_by(self._pending.scaler, self)
            self._step_full(self._pending)
        elif not self.needs_second_pass:
            step_from_one(self._options.plan(self._model))
            self._options.count_step(full=False)
        elif self._is_asked_for_empty_state():
            make_empty_state(self._options.plan(self._model))
        else:
            message = (
                "WSAM: step() needs a second backward at perturbed weights, got none; "
                "run it within `with wsam.perturb():`, or pass a closure"
            )
            raise StepOrderError(message)
        self._forget_copies()
        for grad in self._grads():
            setattr(grad, _USED, (id(grad), grad._version))
        return loss

    def _grads(self) -> list[torch.Tensor]:
        params = (param for group in self.param_groups for param in group["params"])
        return [param.grad for param in params if param.grad is not None]

    def _clear_for_closure(self) -> None:
        """Clears what a step has used; what was accumulated since only if it must."""
        self._pending = None
        if not self._options.weighs:
            return
        used = ((getattr(g, _USED, None), (id(g), g._version)) for g in self._grads())
        if all(known == now for known, now in used):
            self.zero_grad()
        elif self.needs_second_pass:
            message = (
                "WSAM: step(closure) drops the gradients that were accumulated before "
                "it, since its second pass cannot make them again; clear them, or run "
                "all micro-batches again within `with wsam.perturb():`"
            )
            warnings.warn(message, stacklevel=4)
            self.zero_grad()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears gradients, and drops a pass whose second gradient they are."""
        if not self._perturbed:
            self._pending = None
        super().zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a parameter group to the base; nothing is added when this raises.

        Args:
            param_group: `params`, options of the base, and `rho` and `gamma`.

        Raises:
            HyperparameterError: An option is not allowed.
            UnsupportedTensorError: A parameter is not supported.
        """
        self._base.add_param_group(param_group)
        index = len(self.param_groups) - 1
        try:
            self._options.check_group(index)
        except BaseException:
            self.param_groups.pop()
            raise
        self._options.adopt()

    def state_dict(self) -> dict[str, Any]:
        """Returns the base's state dict, whose groups carry WSAM's options and counts.

        Example:
            >>> weight = torch.nn.Parameter(torch.ones(2))
            >>> wsam = WSAM(torch.optim.SGD([weight], lr=0.1), gamma=0.8)
            >>> group = wsam.state_dict()["param_groups"][0]
            >>> group["wsam_base"], group["gamma"], group["wsam_step"]
            ('SGD', 0.8, 0)
        """
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        self._options.adopt()
        state_dict = self._base.state_dict()
        for after in self._optimizer_state_dict_post_hooks.values():
            result = after(self, state_dict)
            state_dict = state_dict if result is None else result
        return state_dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what `state_dict` returned, into the base too; drops a pass, if any.

        Args:
            state_dict: The state of a `WSAM` on the same kind of base. Its options
                replace the present ones, as in torch.

        Raises:
            StateDictError: It was saved by another optimizer, or on another base.
            StepOrderError: The weights are perturbed.
            ValueError: Its groups do not match.
        """
        if self._perturbed:
            message = (
                "WSAM: load_state_dict() must come when the weights are back, got it "
                "while they are perturbed; call restore() before"
            )
            raise StepOrderError(message)
        state_dict = state_dict.copy()
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            result = before(self, state_dict)
            state_dict = state_dict if result is None else result
        self._options.check_saved(state_dict["param_groups"])
        self._base.load_state_dict(state_dict)
        self._pending = None
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def __getstate__(self) -> dict[str, Any]:
        """Returns what a copy needs; like torch's, it has no hooks and no pass."""
        kept = ("defaults", "_base", "_model", "_options")
        state = {name: self.__dict__[name] for name in kept}
        return {**state, "_pending": None, "_unscaled": []}

    @property
    def _perturbed(self) -> bool:
        return self._pending is not None and self._pending.saved is not None

    @_disable_dynamo
    @torch.no_grad()
    def _begin(self, scaler: GradScaler | None, *, in_block: bool) -> None:
        if self._perturbed:
            message = (
                "WSAM: a first pass must begin at the weights themselves, got one "
                "while they are perturbed; end the one before with second_step() or "
                "the block of perturb(), or drop it with restore()"
            )
            raise StepOrderError(message)
        if scaler is not None and not scaler.is_enabled():
            scaler = None
        if scaler is not None:
            check_scaler(scaler, self)
        current, key = begin(self._options.plan(self._model), scaler)
        if scaler is not None:
            self._unscaled.append(key)
        current.scaler, current.in_block = scaler, in_block
        if self._model is not None:
            current.statistics = RunningStatistics(self._model)
        self._pending = current
        super().zero_grad()
        self._forget_copies()

    @_disable_dynamo
    @torch.no_grad()
    def _put_back(self) -> None:
        if self._pending is not None:
            self._pending.put_back()
            self._forget_copies()

    def _forget_copies(self) -> None:
        """Drops copies of the weights that autocast and FSDP2 may hold."""
        torch.clear_autocast_cache()
        for module in () if self._model is None else self._model.modules():
            if hasattr(module, "set_reshard_after_backward"):  # an FSDPModule
                module.reshard()  # type: ignore[operator]

    def _step_full(self, current: Pass) -> None:
        plan = self._options.plan(self._model)
        seconds = plan.gradients()
        if current.firsts and not seconds.keys() & current.firsts.keys():
            message = (
                "WSAM: step() needs the gradients of the second pass, but none of the "
                f"{len(current.firsts)} parameters of the first has one; call backward "
                "within perturb() and keep the gradients until step()"
            )
            raise StepOrderError(message)
        # Reading waits for the device, as the scaler that called this has just done.
        overflowed = current.finite is not None and not current.finite.item()
        self._pending = None
        if not overflowed:
            step_from_both(plan, current.firsts, seconds)
            self._options.count_step(full=True)
        self._unscaled.clear()

    def _is_asked_for_empty_state(self) -> bool:
        """Whether this is a step of torch's checkpoint helpers, which is to make state.

        They set all learning rates to 0 and all gradients to zeros.
        """
        rates = [float(group.get("lr", 1)) for group in self.param_groups]
        return not self.state and not any(rates)
