"""Sums gradients over ranks while backward still runs, in a way that can be broken off."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor
    from torch.distributed import ProcessGroup

__all__ = ["GradientReducer"]

_BUCKET_BYTES = 25 << 20


class _Bucket:
    """Gradients of one dtype and device that travel together, in one buffer."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters
        first = _local(parameters[0])
        num = sum(_local(one).numel() for one in parameters)
        self.buffer = torch.zeros(num, dtype=first.dtype, device=first.device)
        self.num_missing = 0
        views, at = [], 0
        for one in parameters:
            local = _local(one)
            view = self.buffer[at : at + local.numel()].view(local.shape)
            views.append(_like(one, view))
            at += local.numel()
        self.views = dict(zip(parameters, views, strict=True))


class GradientReducer:
    """Adds up gradients over the ranks of whatever group it is given for a step.

    Gradients come to lie in buffers. A buffer is sent when backward has filled it, in the
    same order on all ranks; `finish` sends those that are left. Sums are not divided: each
    rank weights its loss by the part of the global batch that it has.

    What the buffers hold stays until the backward pass of the next step begins.

    Of sharded parameters (DTensors) the local parts are summed, over a group of ranks that
    hold the same parts.

    Args:
        parameters: Of the model, in the same order on all ranks. Those that need no
            gradient are left out.
        bucket_bytes: How much travels at once.

    Raises:
        ValueError: No parameter needs a gradient.
    """

    def __init__(
        self, parameters: Iterable[Tensor], *, bucket_bytes: int = _BUCKET_BYTES
    ) -> None:
        # Backward reaches the last ones first.
        wanted = [one for one in parameters if one.requires_grad][::-1]
        if not wanted:
            message = "the model must have a parameter that needs a gradient"
            raise ValueError(message)
        self._buckets = [_Bucket(group) for group in _groups(wanted, bucket_bytes)]
        self._home = {one: b for b in self._buckets for one in b.parameters}
        self._handles = [
            one.register_post_accumulate_grad_hook(self._take)  # type: ignore[no-untyped-call]
            for one in wanted
        ]
        self._group: ProcessGroup | None = None
        self._works: list[Any] = []
        self._num_sent = 0
        self._failed: RuntimeError | None = None
        self._let_go: Callable[[], None] | None = None

    @property
    def buffers(self) -> list[Tensor]:
        """All gradients, flat, in the order in which they travel."""
        return [bucket.buffer for bucket in self._buckets]

    def begin(self, let_go: Callable[[], None] | None = None) -> None:
        """Begins a step: backward passes add up gradients, and send nothing.

        Args:
            let_go: Called before the gradients of the last step are written over; with a
                RuntimeError it keeps them, and ends this step.
        """
        self._group = None
        self._works = []
        self._num_sent = 0
        self._failed = None
        self._let_go = let_go
        for one in self._home:
            one.grad = None

    def send_with(self, group: ProcessGroup) -> None:
        """Lets the next backward pass, the last one of the step, send as it goes.

        Args:
            group: The ranks; each of them does the same.
        """
        self._group = group
        for bucket in self._buckets:
            bucket.num_missing = len(bucket.parameters)

    def _take(self, parameter: Tensor) -> None:
        """Takes what a backward pass has made; it is no place to tell of failures."""
        if not self._may_write():
            return
        bucket = self._home[parameter]
        view = bucket.views[parameter]
        if parameter.grad is not view:
            assert parameter.grad is not None
            _local(view).copy_(_local(parameter.grad))
            parameter.grad = view
        if self._group is None:
            return
        bucket.num_missing -= 1
        while self._num_sent < len(self._buckets) and not self._failed:
            if self._buckets[self._num_sent].num_missing > 0:
                break
            try:
                self._send()
            except RuntimeError as error:
                self._failed = error

    def _may_write(self) -> bool:
        if self._let_go is not None and not self._failed:
            try:
                self._let_go()
            except RuntimeError as error:
                self._failed = error
            self._let_go = None
        return self._failed is None

    def bind(self) -> None:
        """Gives the parameters what the buffers hold as their gradients."""
        for bucket in self._buckets:
            for one, view in bucket.views.items():
                one.grad = view

    def _send(self) -> None:
        assert self._group is not None
        bucket = self._buckets[self._num_sent]
        self._num_sent += 1
        self._works.append(self._group.allreduce([bucket.buffer]))

    def finish(self, group: ProcessGroup) -> None:
        """Sends what is left, and returns when all gradients are sums over the ranks.

        Args:
            group: The ranks, as given to `send_with` if that was called.

        Raises:
            RuntimeError: A rank is gone; nothing travels any more, and the gradients are
                no sums.
        """
        self._group = group
        if self._may_write():
            for bucket in self._buckets[self._num_sent :]:
                for one, view in bucket.views.items():
                    if one.grad is not view:
                        _local(view).zero_()
        failed = self._failed
        try:
            while not failed and self._num_sent < len(self._buckets):
                self._send()
        except RuntimeError as error:
            failed = error
        for work in self._works:
            try:
                work.wait()
            except RuntimeError as error:
                # The others are waited for, since they may still write to the buffers.
                failed = failed or error
        self._works = []
        if failed is not None:
            raise failed
        self.bind()

    def abandon(self) -> None:
        """Waits until nothing is under way, in a group that has been broken off."""
        for work in self._works:
            with contextlib.suppress(RuntimeError):
                work.wait()
        self._works = []
        self._group = None

    def close(self) -> None:
        """Leaves the parameters alone."""
        for handle in self._handles:
            handle.remove()


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _like(parameter: Tensor, view: Tensor) -> Tensor:
    if not isinstance(parameter, DTensor):
        return view
    return DTensor.from_local(
        view,
        parameter.device_mesh,
        parameter.placements,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _groups(parameters: Sequence[Tensor], most_bytes: int) -> list[list[Tensor]]:
    """Returns neighbours of one dtype and device, together not too large."""
    found: list[list[Tensor]] = []
    size, kind = 0, None
    for one in parameters:
        local = _local(one)
        if found and kind == (local.dtype, local.device) and size < most_bytes:
            found[-1].append(one)
        else:
            found.append([one])
            size, kind = 0, (local.dtype, local.device)
        size += local.nbytes
    return found
