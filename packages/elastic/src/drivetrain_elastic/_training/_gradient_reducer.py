"""Gradient all-reduce in buckets, while backward still runs, which can be aborted.

When a bucket may travel, and whose its gradients are:

- In the last part of a step a bucket is copied and sent once a pass has filled it. The
  script still has its own gradients. If they change, by a second pass or since they were
  cleared, the bucket is sent again.
- The last bucket waits until the loop over the parts has ended. Behind it travels which
  parameters have a gradient, so that one that no rank has touched has none afterwards.
- After that loop the gradients are sums, and the script's to clip or to scale. A pass that
  would add to them what this rank alone has is refused.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_elastic._membership._world_group import with_others
from drivetrain_elastic._training._gradient_bucket import as_it_travels, in_buckets
from drivetrain_elastic._training._refusals import refuse

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


class GradientReducer:
    """Adds up gradients over the ranks of whatever group it is given for a step.

    Gradients come to lie in buckets, which are sent in the same order on all ranks;
    `finish` sends those that are left. Sums are not divided: each rank weights its loss by
    the part of the global batch that it has.

    Between `show` and `settle` the parameters have the sums as their gradients, and what
    is done to them there is done to the sums. What the buckets hold then stays until the
    backward pass of the next step begins: between two steps parameters have no gradients.

    Of sharded parameters (DTensors) the local parts are summed, over a group of ranks that
    hold the same parts. Rows of sparse gradients are those that any rank has.

    Args:
        parameters: In the same order on all ranks. Those that need no gradient are left
            out.
        bucket_bytes: How much travels at once.

    Attributes:
        parameters: Those that need a gradient.
        part: Which part of the step a pass is made for.
        sums: The gradients of each parameter, None where no rank has any; None in place of
            all of them for a step without an update.
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
        self._bucket_bytes = bucket_bytes
        self._handles: list[Any] = []
        self.cover([one for one in parameters if one.requires_grad])
        self.part = 0
        self.sums: list[Tensor | None] | None = None
        self._group: ProcessGroup | None = None
        self._works: list[Any] = []
        self._num_sent = 0
        # Whether what is sent early was not to be sent again so far.
        self._sends_early = True
        self._failed: RuntimeError | None = _NO_STEP
        self._let_go: Callable[[], None] = _do_nothing
        self._has_let_go = False
        self._look_for_news: Callable[[], bool] = _no
        self._look_for_wish: Callable[[], bool] = _no
        # In which part a parameter got its view; which ones autograd keeps elsewhere.
        self._filled: dict[Tensor, int] = {}
        self._elsewhere: set[Tensor] = set()
        self._is_shown = self._is_late = False
        self.has_news = self.has_wish = False
        self.num_entered = 0
        # Autograd calls hooks from a thread for each device.
        self._lock = threading.RLock()

    def cover(self, parameters: list[Tensor]) -> None:
        """Takes other parameters from now on, when nobody lacks the sums of a step.

        Raises:
            ValueError: There are none.
        """
        if not parameters:
            message = "the model must have a parameter that needs a gradient"
            raise ValueError(message)
        self.close()
        self.parameters = parameters
        # Backward reaches the last ones first.
        self._buckets = in_buckets(parameters[::-1], self._bucket_bytes)
        self._home = {one: b for b in self._buckets for one in b.parameters}
        self._handles = [
            one.register_post_accumulate_grad_hook(self._take)  # type: ignore[no-untyped-call]
            for one in parameters
        ]

    def covers(self, parameters: Iterable[Tensor]) -> bool:
        """Returns whether these are those that need a gradient here."""
        wanted = [id(one) for one in parameters if one.requires_grad]
        return wanted == [*map(id, self.parameters)]

    @property
    def device(self) -> torch.device:
        """Where gradients are; those that are made first, if they are at several places."""
        return self._buckets[0].buffer.device

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
        self._let_go = let_go
        self._has_let_go = False
        self._look_for_news, self._look_for_wish = look_for_news, look_for_wish
        self.hide()
        self._group, self._failed = None, None
        self._works, self._num_sent = [], 0
        self._filled, self._elsewhere = {}, set()
        for bucket in self._buckets:
            bucket.begin()

    def send_with(self, group: ProcessGroup) -> None:
        """Lets the next backward pass, of the last part of the step, send as it goes.

        Args:
            group: The ranks; each of them does the same.
        """
        for bucket in self._buckets:
            bucket.missing = set(bucket.parameters)
        self._group = group if self._sends_early else None

    @torch.no_grad()
    def _take(self, parameter: Tensor) -> None:
        """Takes what a backward pass has made; it is no place to tell of failures."""
        bucket = self._home[parameter]
        view, gradient = bucket.views[parameter], parameter.grad
        assert gradient is not None
        # Rows are added up as they are, and what is to be derived again keeps its graph.
        is_kept = gradient.is_sparse or gradient.requires_grad
        if gradient is not view and not is_kept:
            # Also where it is not wanted: ranks that share a copy do so together.
            parameter.grad = as_it_travels(gradient, view)
        with self._lock:
            self._is_late |= self._is_shown
            if is_kept:
                self._elsewhere.add(parameter)
            if not self._may_write() or is_kept:
                return
            # Cleared since: what an earlier part has left here would be lost.
            is_lost = self._filled.setdefault(parameter, self.part) != self.part
            bucket.is_torn |= is_lost and gradient is not view
            bucket.take(parameter)
            if self._group is None:
                return
            while self._num_sent < len(self._buckets) - 1 and not self._failed:
                bucket = self._buckets[self._num_sent]
                if bucket.missing:
                    break
                try:
                    self._num_sent += 1
                    self._start(bucket.start())
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

    def _start(self, buffer: Tensor) -> None:
        assert self._group is not None
        self.num_entered += 1
        with with_others():
            self._works.append(self._group.allreduce([buffer]))

    def _wait(self) -> None:
        """Waits for all that is under way, also if some of it fails."""
        failed, works, self._works = None, self._works, []
        for work in works:
            try:
                with with_others():
                    work.wait()
            except RuntimeError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    @torch.no_grad()
    def finish(self, group: ProcessGroup) -> None:
        """Sends what is left, and returns when all gradients are sums over the ranks.

        Args:
            group: The ranks, as given to `send_with` if that was called.

        Raises:
            ProgramError: Gradients were changed before they were sums.
            RuntimeError: A rank is gone; nothing travels any more, and the gradients are
                no sums.
        """
        self._group = group
        grads = [one.grad for one in self.parameters]
        try:
            if not self._may_write():
                assert self._failed is not None
                raise self._failed
            self._require_untouched()
            self._fill(grads)
            # Copies of these too: another rank may have to send one of them again.
            for bucket in self._buckets[self._num_sent : -1]:
                self._start(bucket.start())
            self._start(self._buckets[-1].buffer)
            self._wait()
            flags = self._buckets[-1].flags.tolist()
            self.has_news, self.has_wish = flags[0] > 0, flags[1] > 0
            for bucket, is_stale in zip(self._buckets, flags[2:], strict=False):
                if is_stale:
                    self._sends_early = False
                    self._start(bucket.buffer)
                elif bucket.wire is not None:
                    bucket.buffer.copy_(bucket.wire)
                bucket.wire = None
            self._wait()
            self.sums = self._sums(flags[2 + len(self._buckets) :], grads)
        finally:
            self.abandon()
        for device in {bucket.buffer.device for bucket in self._buckets}:
            # On a GPU the end of a work says only in which order things will happen.
            _synchronize(device)

    def _fill(self, grads: Sequence[Tensor | None]) -> None:
        """Makes the buckets ready to be sent, and notes what is told with the last one."""
        is_stale = [bucket.is_stale for bucket in self._buckets]
        told = [self._look_for_news(), self._look_for_wish(), *is_stale]
        told += [one is not None for one in grads]
        told += [_has_rows(one) for one in grads]
        for bucket, is_again in zip(self._buckets, is_stale, strict=True):
            if is_again or bucket.wire is None:
                bucket.fill()
        flags = self._buckets[-1].flags
        flags.copy_(torch.tensor(told, dtype=flags.dtype))

    def _sums(
        self, flags: list[float], grads: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Returns the sums: rows where all ranks that have a gradient have rows."""
        sums: list[Tensor | None] = []
        for at, (one, grad) in enumerate(zip(self.parameters, grads, strict=True)):
            num_ranks, num_with_rows = flags[at], flags[len(grads) + at]
            total = self._home[one].views[one]
            if 0 < num_ranks == num_with_rows:
                rows = torch.zeros(len(one), dtype=torch.int32, device=one.device)
                if grad is not None:
                    rows[grad._indices()[0]] = 1
                self._start(rows)
                self._wait()
                places = rows.nonzero().T
                total = torch.sparse_coo_tensor(
                    places,
                    total[places[0]],
                    total.shape,
                    check_invariants=False,
                    is_coalesced=True,
                )
            sums.append(total if num_ranks > 0 else None)
        return sums

    def _require_untouched(self) -> None:
        """Refuses what was done to the gradients of this rank alone."""
        is_replaced = any(
            one.grad is not None and one.grad is not self._home[one].views[one]
            for one in self._filled.keys() - self._elsewhere
        )
        if is_replaced or any(bucket.is_touched for bucket in self._buckets):
            refuse("changed")

    def show(self) -> None:
        """Gives the parameters the sums as their gradients, until `settle`."""
        assert self.sums is not None
        self._is_shown, self._is_late = True, False
        for one, total in zip(self.parameters, self.sums, strict=True):
            one.grad = total

    def settle(self) -> None:
        """Takes what has become of the gradients as the sums, and takes them away.

        Raises:
            ProgramError: A backward pass has added to the sums what this rank alone has.
        """
        assert self.sums is not None
        grads = [one.grad for one in self.parameters]
        is_new = any(
            total is None and grad is not None
            for total, grad in zip(self.sums, grads, strict=True)
        )
        if self._is_late or is_new:
            refuse("late")
        self.sums = grads
        self.hide()

    def abandon(self) -> None:
        """Ends a step, and waits until nothing is under way."""
        with contextlib.suppress(RuntimeError):
            self._wait()
        self._group, self._failed = None, _NO_STEP
        self.hide()

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Gives the parameters the sums as their gradients, for a time."""
        self.show()
        try:
            yield
        finally:
            self.hide()

    def hide(self) -> None:
        """Leaves the parameters without gradients."""
        self._is_shown = False
        for one in self.parameters:
            one.grad = None

    def views(self) -> list[Tensor]:
        """Returns where the sums of another rank may be put."""
        return [self._home[one].views[one] for one in self.parameters]

    def close(self) -> None:
        """Leaves the parameters alone."""
        for handle in self._handles:
            handle.remove()


def _has_rows(gradient: Tensor | None) -> bool:
    if gradient is None or not gradient.is_sparse:
        return False
    return gradient.sparse_dim() == 1


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.current_stream(device).synchronize()
