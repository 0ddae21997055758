"""An optimizer that steps on gradients reduced over all ranks."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any

from drivetrain_core import DistributedError
from drivetrain_horovod.compression import Compression
from drivetrain_horovod.on_comm._allreduce import Average, check_op
from drivetrain_horovod.on_comm._buckets import Buckets
from drivetrain_horovod.on_comm._process_sets import check_process_set
from drivetrain_horovod.on_comm._state import world
from drivetrain_horovod.on_comm._wire import check_same

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch


class _Distributed:
    """What is added to the class of the user's optimizer."""

    _buckets: Buckets
    _steps_without: bool
    _is_synchronized: bool

    def synchronize(self) -> None:
        """Waits until all gradients are reduced.

        Call it before gradients are clipped, and step within `skip_synchronize()`.
        """
        self._buckets.finish()
        self._is_synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Lets `step` use the gradients as they are."""
        self._steps_without = True
        try:
            yield
        finally:
            self._steps_without = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets after how many backward passes gradients are reduced."""
        self._buckets.num_passes = _positive(passes)

    def step(self, closure: Any = None) -> Any:
        """Steps on the reduced gradients; a closure's are reduced after each call."""
        step = super().step  # type: ignore[misc]
        if self._steps_without:
            result = step(closure)
        elif closure is not None:

            def with_reduction() -> Any:
                loss = closure()
                self._buckets.finish()
                return loss

            result = step(with_reduction)
        else:
            if self._is_synchronized:
                # Averages stay, but sums would be summed again.
                warnings.warn(
                    "step() after synchronize() reduces the gradients again: step "
                    "within skip_synchronize()",
                    stacklevel=2,
                )
            self._buckets.finish()
            result = step()
        self._is_synchronized = False
        return result

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clears the gradients, none of which may be under way."""
        if self._buckets.is_under_way:
            message = (
                "zero_grad() was called after backward() and before step() or "
                "synchronize(), while gradients are being reduced"
            )
            raise DistributedError(message)
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = None,
    backward_passes_per_step: int = 1,
    op: Any = None,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: Any = None,
) -> Any:
    """Returns an optimizer of the same class that reduces gradients before it steps.

    Gradients are reduced in buckets while the backward pass goes on. Parameters without
    a gradient count as zeros. The returned optimizer shares the state and the groups of
    the given one, and has `synchronize()` and `skip_synchronize()` besides.

    Args:
        optimizer: What to wrap.
        named_parameters: The model's `named_parameters()`, for messages; by default
            names are made up.
        compression: One of `Compression`; by default the process group's setting.
        backward_passes_per_step: Over so many passes gradients are added up before they
            are reduced; they are not divided by it.
        op: `Average` (the default), `Sum`, `Min`, `Max` or `Product`.
        gradient_predivide_factor: An average is divided by it before, and by the rest
            after the sum.
        num_groups: Into how many buckets the gradients are cut; 0 goes by size.
        groups: Must be None.
        sparse_as_dense: Whether sparse gradients become dense ones; otherwise they are
            an error.
        process_set: None or `global_process_set`.

    Raises:
        NotInitializedError: `init` was not called.
        DistributedError: An argument is wrong, or the parameters are not alike on all
            ranks.

    Example:
        >>> import torch
        >>> from drivetrain_horovod import on_comm as hvd
        >>> hvd.init()
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = hvd.DistributedOptimizer(
        ...     torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        >>> model(torch.ones(1, 2)).sum().backward()
        >>> optimizer.step()
        >>> isinstance(optimizer, torch.optim.SGD)
        True
        >>> hvd.shutdown()
    """
    check_process_set(process_set)
    if groups is not None:
        message = "groups of parameters are not available here: use num_groups"
        raise DistributedError(message)
    operation = check_op(op)
    if gradient_predivide_factor != 1.0 and operation != Average:
        message = f"gradient_predivide_factor goes with op=Average only, got {op!r}"
        raise DistributedError(message)
    if hasattr(optimizer, "_buckets"):
        message = "the optimizer is a DistributedOptimizer already"
        raise DistributedError(message)
    named = _named(optimizer, named_parameters)
    layout = [f"{name} {tuple(p.shape)} {p.dtype}" for name, p in named]
    check_same("the parameters of the optimizer", "; ".join(layout))
    kind = type(optimizer)
    wrapped: Any = object.__new__(type(kind.__name__, (_Distributed, kind), {}))
    # Schedulers replace `step` of the one object that they know.
    wrapped.__dict__.update(
        {key: value for key, value in vars(optimizer).items() if key != "step"}
    )
    wrapped._steps_without = wrapped._is_synchronized = False
    wrapped._buckets = buckets = Buckets(
        [parameter for _, parameter in named],
        [name for name, _ in named],
        num_passes=_positive(backward_passes_per_step),
        compression=_of_settings() if compression is None else compression,
        reduction={
            "op": operation,
            "prescale_factor": 1 / gradient_predivide_factor,
            "postscale_factor": gradient_predivide_factor,
        },
        sparse_as_dense=sparse_as_dense,
        num_buckets=num_groups,
    )
    if world().group.size() > 1:
        for _, parameter in named:
            parameter.register_post_accumulate_grad_hook(buckets.take)  # type: ignore[no-untyped-call]
    return wrapped


def _named(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
) -> list[tuple[str, torch.Tensor]]:
    """Returns the optimizer's parameters in the order of the model, with names."""
    own = [p for group in optimizer.param_groups for p in group["params"]]
    if named_parameters is None:
        return [(f"parameter {i}", p) for i, p in enumerate(own) if p.requires_grad]
    named: list[Any] = list(named_parameters)
    if any(not isinstance(one, tuple) or len(one) != 2 for one in named):
        message = "named_parameters must be pairs, as model.named_parameters() gives"
        raise DistributedError(message)
    names = [name for name, _ in named]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        message = f"names of parameters must differ; there are more of {twice}"
        raise DistributedError(message)
    known, ids = {p for _, p in named}, set(own)
    if any(p not in known for p in own):
        missing = [tuple(p.shape) for p in own if p not in known]
        message = (
            f"named_parameters lacks {len(missing)} of the {len(own)} parameters of the "
            f"optimizer, of the shapes {missing[:3]}"
        )
        raise DistributedError(message)
    return [(name, p) for name, p in named if p in ids and p.requires_grad]


def _of_settings() -> Any:
    name = world().group.settings.compression
    if not hasattr(Compression, name):
        message = f"{name} compresses DistributedDataParallel only: use fp16 or bf16"
        raise DistributedError(message)
    return getattr(Compression, name)


def _positive(passes: Any) -> int:
    if not isinstance(passes, int) or passes < 1:
        message = f"backward_passes_per_step must be 1 or more, got {passes!r}"
        raise DistributedError(message)
    return passes
