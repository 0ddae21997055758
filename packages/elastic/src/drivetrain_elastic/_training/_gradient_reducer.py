"""Gradient all-reduce in buckets, while backward still runs, which can be aborted."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor
    from torch.distributed import ProcessGroup

_BUCKET_BYTES = 25 << 20
# Why nothing is taken between two steps.
_NO_STEP = RuntimeError("no step has begun")


def _do_nothing() -> None:
    pass


def _no() -> bool:
    return False


class _Bucket:
    """Gradients of one dtype and device that travel together, in one buffer.

    Behind them travel two more numbers: how many ranks have news, and how many a wish.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters
        first = _local(parameters[0])
        num = sum(_local(one).numel() for one in parameters)
        self.buffer = torch.zeros(num + 2, dtype=first.dtype, device=first.device)
        self.news = self.buffer[num:]
        self.num_missing = 0
        # Gradients are written through an alias, whose versions a group does not count up.
        self._written = self.buffer.data
        self._version: int | None = None
        views, at = [], 0
        for one in parameters:
            local = _local(one)
            view = self._written[at : at + local.numel()].view(local.shape)
            views.append(_like(one, view))
            at += local.numel()
        self.views = dict(zip(parameters, views, strict=True))

    def note(self) -> None:
        """Remembers what is in the buffer as that which a backward pass has made."""
        self._version = self._written._version

    def forget(self) -> None:
        """Leaves the buffer to whoever writes into it."""
        self._version = None

    @property
    def is_touched(self) -> bool:
        """Whether anything but a backward pass has written since `note`."""
        return self._version not in {None, self._written._version}

    @property
    def is_filled(self) -> bool:
        """Whether a backward pass has filled any of it since it was announced."""
        return self.num_missing < len(self.parameters)


class GradientReducer:
    """Adds up gradients over the ranks of whatever group it is given for a step.

    Gradients come to lie in buffers. A buffer is sent when backward has filled it, in the
    same order on all ranks; `finish` sends those that are left. Sums are not divided: each
    rank weights its loss by the part of the global batch that it has.

    Between `show` and `settle` the parameters have the sums as their gradients, and what
    is done to them there is done to the sums. What the buffers hold then stays until the
    backward pass of the next step begins: between two steps parameters have no gradients.

    Of sharded parameters (DTensors) the local parts are summed, over a group of ranks that
    hold the same parts.

    Args:
        parameters: Of the model, in the same order on all ranks. Those that need no
            gradient are left out.
        bucket_bytes: How much travels at once.

    Attributes:
        has_news: Whether any rank had news as it sent its gradients; the same on all ranks
            in which `finish` has returned.
        has_wish: Whether any rank had a wish then, likewise.
        num_entered: How many collectives were begun, in all steps.

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
        self._failed: RuntimeError | None = _NO_STEP
        self._let_go: Callable[[], None] = _do_nothing
        self._has_let_go = False
        self._look_for_news: Callable[[], bool] = _no
        self._look_for_wish: Callable[[], bool] = _no
        self.has_news = self.has_wish = False
        self.num_entered = 0
        # Autograd calls hooks from a thread for each device.
        self._lock = threading.RLock()

    @property
    def buffers(self) -> list[Tensor]:
        """All gradients, flat, in the order in which they travel."""
        return [bucket.buffer for bucket in self._buckets]

    @property
    def ends_early(self) -> bool:
        """Whether a work ends here before it is done, as on GPUs it does."""
        return any(bucket.buffer.device.type != "cpu" for bucket in self._buckets)

    def begin(
        self,
        let_go: Callable[[], None] = _do_nothing,
        look_for_news: Callable[[], bool] = _no,
        look_for_wish: Callable[[], bool] = _no,
    ) -> None:
        """Begins a step: backward passes add up gradients, and send nothing.

        Args:
            let_go: Called before the gradients of the last step are written over; with a
                RuntimeError it keeps them, and ends this step.
            look_for_news: Called as late as can be; returns whether this rank has news.
            look_for_wish: Likewise; returns whether it has a wish.
        """
        self._group = None
        self._works = []
        self._num_sent = 0
        self._failed = None
        self._let_go = let_go
        self._has_let_go = False
        self._look_for_news, self._look_for_wish = look_for_news, look_for_wish
        for bucket in self._buckets:
            bucket.forget()
        self._show_none()

    def send_with(self, group: ProcessGroup) -> None:
        """Lets the next backward pass, the last one of the step, send as it goes.

        Args:
            group: The ranks; each of them does the same.
        """
        self._group = group
        for bucket in self._buckets:
            bucket.num_missing = len(bucket.parameters)
            bucket.note()

    @property
    def awaits_backward(self) -> bool:
        """Whether the pass that `send_with` has announced has made no gradient yet."""
        is_announced = self._group is not None and not self._failed
        return is_announced and not any(b.is_filled for b in self._buckets)

    @torch.no_grad()
    def _take(self, parameter: Tensor) -> None:
        """Takes what a backward pass has made; it is no place to tell of failures."""
        bucket = self._home[parameter]
        view, gradient = bucket.views[parameter], parameter.grad
        assert gradient is not None
        is_elsewhere = gradient is not view
        if is_elsewhere:
            # Also where it is not wanted: ranks that share a copy do so together.
            gradient = parameter.grad = _as(gradient, view)
        with self._lock:
            if not self._may_write():
                return
            if is_elsewhere:
                _local(view).copy_(_local(gradient))
                parameter.grad = view
            if self._group is None:
                return
            if not bucket.num_missing:
                return  # A second pass, over what has been sent: `finish` refuses it.
            bucket.num_missing -= 1
            bucket.note()
            while self._num_sent < len(self._buckets) and not self._failed:
                if self._buckets[self._num_sent].num_missing > 0:
                    break
                try:
                    self._send()
                except RuntimeError as error:
                    self._failed = error

    def _may_write(self) -> bool:
        if not self._failed and not self._has_let_go:
            self._has_let_go = True
            try:
                self._let_go()
            except RuntimeError as error:
                self._failed = error
        return self._failed is None

    def _send(self) -> None:
        assert self._group is not None
        bucket = self._buckets[self._num_sent]
        self._num_sent += 1
        is_last = self._num_sent == len(self._buckets)
        bucket.news[0] = is_last and self._look_for_news()
        bucket.news[1] = is_last and self._look_for_wish()
        self.num_entered += 1
        self._works.append(self._group.allreduce([bucket.buffer]))

    def finish(self, group: ProcessGroup) -> None:
        """Sends what is left, and returns when all gradients are sums over the ranks.

        Args:
            group: The ranks, as given to `send_with` if that was called.

        Raises:
            ProgramError: Gradients were changed while they may have travelled.
            RuntimeError: A rank is gone; nothing travels any more, and the gradients are
                no sums.
        """
        self._group = group
        if self._may_write():
            self._require_untouched()
            for bucket in self._buckets[self._num_sent :]:
                bucket.forget()
                _take_over(bucket)
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
        self._close_step()
        if failed is not None:
            raise failed
        for device in {bucket.buffer.device for bucket in self._buckets}:
            # On a GPU the end of a work says only in which order things will happen.
            _synchronize(device)
        self.has_news, self.has_wish = (self._buckets[-1].news > 0).tolist()

    def _require_untouched(self) -> None:
        """Refuses what would be done to the gradients of this rank alone.

        Some travel already, and others do not: neither the sums nor the ranks would agree.
        """
        sent = self._buckets[: self._num_sent]
        is_replaced = any(
            one.grad is not view
            for bucket in sent
            for one, view in bucket.views.items()
        )
        if is_replaced or any(bucket.is_touched for bucket in self._buckets):
            message = (
                "gradients were changed while they were on their way to the other ranks; "
                "make one backward pass for each part, within the loop over the parts, and "
                "clip, scale or clear gradients after that loop and within the step, where "
                "they are the sums over all ranks; leave DistributedDataParallel away"
            )
            raise ProgramError(message)

    def show(self, *, as_copies: bool = False) -> None:
        """Gives the parameters what the buffers hold as their gradients, until `settle`.

        Args:
            as_copies: Whether what is done to them is lost, as where a step was aborted.
        """
        for bucket in self._buckets:
            bucket.forget()
            for one, view in bucket.views.items():
                one.grad = view.clone() if as_copies else view

    def settle(self) -> None:
        """Takes what has become of the gradients as the sums, and takes them away."""
        for bucket in self._buckets:
            with torch.no_grad():
                _take_over(bucket)
        self._show_none()

    def abandon(self) -> None:
        """Waits until nothing is under way, in a group that has been aborted."""
        for work in self._works:
            with contextlib.suppress(RuntimeError):
                work.wait()
        self._close_step()

    def _close_step(self) -> None:
        self._works = []
        self._group = None
        self._failed = _NO_STEP
        self._show_none()

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Gives the parameters what the buffers hold as their gradients, for a time."""
        self.show()
        try:
            yield
        finally:
            self._show_none()

    def _show_none(self) -> None:
        for one in self._home:
            one.grad = None

    def close(self) -> None:
        """Leaves the parameters alone."""
        for handle in self._handles:
            handle.remove()


def _take_over(bucket: _Bucket) -> None:
    """Puts the gradients of the parameters into a bucket; zeros where there are none."""
    for one, view in bucket.views.items():
        if one.grad is None:
            _local(view).zero_()
        elif one.grad is not view:
            _local(view).copy_(_local(_as(one.grad, view)))
            one.grad = view


def _as(gradient: Tensor, view: Tensor) -> Tensor:
    """Returns a gradient in the form in which it travels."""
    if isinstance(gradient, DTensor):
        assert isinstance(view, DTensor)
        if gradient.placements != view.placements:
            # A sum of which each rank has a part, as a rule.
            return gradient.redistribute(placements=view.placements)
        return gradient
    return gradient if gradient.layout == torch.strided else gradient.to_dense()


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.current_stream(device).synchronize()


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
