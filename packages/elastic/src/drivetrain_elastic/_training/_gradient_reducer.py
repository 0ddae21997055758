"""Gradient all-reduce in buckets, while backward still runs, which can be aborted.

When a bucket may travel, and whose its gradients are:

- A pass leaves gradients where autograd puts them: they are the script's own. In the last
  part of a step those of a bucket are copied and sent once a pass has made all of them. If
  they change, by a second pass or since they were cleared, the bucket is sent again.
- The last bucket waits until the loop over the parts has ended. Behind it travels which
  parameters have a gradient, so that one that no rank has touched has none afterwards.
- After that loop the gradients are sums, and the script's to clip or to scale. A pass that
  would add to them what this rank alone has is refused.
- A rank without peers copies and sends nothing: its gradients are the sums.
"""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from drivetrain_elastic._membership._world_group import with_others
from drivetrain_elastic._training._gradient_bucket import as_placed, in_buckets
from drivetrain_elastic._training._parameter_hooks import GradientContents
from drivetrain_elastic._training._refusals import refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor
    from torch.distributed import ProcessGroup

_BUCKET_BYTES = 25 << 20
# Of a gradient that any part may make anew.
_ANY_PART = -1
# Why nothing is taken between two steps.
_NO_STEP = RuntimeError("no step has begun")


def _no() -> bool:
    return False


class GradientReducer:
    """Adds up gradients over the ranks of whatever group it is given for a step.

    Gradients are copied to buckets, which are sent in the same order on all ranks; `finish`
    sends those that are left. Sums are not divided: each rank weights its loss by the part
    of the global batch that it has.

    Between `show` and `settle` the parameters have the sums as their gradients, and what
    is done to them there is done to the sums. Between two steps parameters have no
    gradients.

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
            all of them for a step without an update, or while a step is summed.
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
        self._contents: GradientContents | None = None
        self._has_watched = False
        self.cover([one for one in parameters if one.requires_grad])
        self.part = 0
        self.sums: list[Tensor | None] | None = None
        self._group: ProcessGroup | None = None
        self._works: list[Any] = []
        self._num_sent = 0
        # Whether what is sent early was not to be sent again so far.
        self._sends_early = True
        self._failed: RuntimeError | None = _NO_STEP
        self._look_for_news: Callable[[], bool] = _no
        self._look_for_wish: Callable[[], bool] = _no
        self._is_shown = self._is_late = self._is_torn = False
        self.has_news = self.has_wish = False
        self.num_entered = 0
        # Autograd calls hooks from a thread for each device.
        self._lock = threading.RLock()

    def cover(self, parameters: list[Tensor]) -> None:
        """Takes other parameters from now on.

        Raises:
            ValueError: There are none.
        """
        if not parameters:
            message = "the model must have a parameter that needs a gradient"
            raise ValueError(message)
        self.close()
        self.parameters = parameters
        self._buckets = in_buckets(parameters, self._bucket_bytes)
        self._home = {at: b for b in self._buckets for at in b.places}
        # Where the end of a work says only in which order things will happen.
        self._accelerators = {b.device for b in self._buckets if b.device.type != "cpu"}
        # Of each: its gradient after the last pass, its version, and the part of the step.
        self._seen: list[tuple[Tensor, int, int] | None] = [None] * len(parameters)
        self._handles = [
            one.register_post_accumulate_grad_hook(partial(self._take, at))  # type: ignore[no-untyped-call]
            for at, one in enumerate(parameters)
        ]

    def covers(self, parameters: Sequence[Tensor]) -> bool:
        """Returns whether these are those that need a gradient here."""
        return [*map(id, parameters)] == [*map(id, self.parameters)]

    @property
    def device(self) -> torch.device:
        """Where gradients are; those that are made first, if they are at several places."""
        return self._buckets[0].device

    @property
    def ends_early(self) -> bool:
        """Whether a work ends here before it is done, as on GPUs it does."""
        return bool(self._accelerators)

    def begin(
        self,
        look_for_news: Callable[[], bool] = _no,
        look_for_wish: Callable[[], bool] = _no,
    ) -> None:
        """Begins a step: backward passes add up gradients, and send nothing.

        Args:
            look_for_news: Called as late as can be; returns whether this rank has news.
            look_for_wish: Likewise; returns whether it has a wish.
        """
        self._look_for_news, self._look_for_wish = look_for_news, look_for_wish
        self.abandon()
        self._failed = self.sums = None

    def send_with(self, group: ProcessGroup) -> None:
        """Lets the next backward pass, of the last part of the step, send as it goes.

        Args:
            group: The ranks; each of them does the same.
        """
        # The last bucket waits in any case.
        if self._sends_early and len(self._buckets) > 1 and group.size() > 1:
            self._group = group

    def watch(self, number: int) -> None:
        """Looks also at what gradients hold, in the first step here, and in some.

        It takes a pass over all gradients, in steps 1, 2, 4, 8 and so on.

        Args:
            number: Of the step, from 1.
        """
        if not self._has_watched or number & (number - 1) == 0:
            self._has_watched = True
            self._contents = GradientContents(self.parameters)

    def _take(self, at: int, parameter: Tensor) -> None:
        """Looks at what a pass has made; it is no place to tell of failures."""
        gradient = parameter.grad
        if gradient is None:
            # A hook that came before has taken it.
            self._is_torn = True
            return
        # Rows are added up as they are, and what is to be derived again keeps its graph.
        is_kept = gradient.is_sparse or gradient.requires_grad
        if isinstance(gradient, DTensor) and not is_kept:
            # Also where it is not wanted: ranks that share a copy do so together.
            with torch.no_grad():
                parameter.grad = gradient = as_placed(gradient, parameter)
        version, before = _version(gradient), self._seen[at]
        if before is not None and not isinstance(gradient, DTensor):
            # A pass that adds to a gradient writes to it once. Where it has made another
            # one, what an earlier part has left is lost. DTensors count otherwise.
            if before[0] is gradient:
                is_right = version == before[1] + 1
            else:
                is_right = is_kept or before[2] in {_ANY_PART, self.part}
            if not is_right:
                self._is_torn = True
        self._seen[at] = (gradient, version, _ANY_PART if is_kept else self.part)
        if self._contents is not None:
            self._contents.take(at, gradient)
        if self._is_shown:
            self._is_late = True
        if self._group is None:
            return
        with self._lock:
            if self._failed is None:
                self._send_early(at, is_kept=is_kept)

    @torch.no_grad()
    def _send_early(self, at: int, *, is_kept: bool) -> None:
        home = self._home[at]
        home.is_stale = bool(home.pieces)
        if not is_kept:
            home.missing.discard(at)
        while self._num_sent < len(self._buckets) - 1:
            bucket = self._buckets[self._num_sent]
            if bucket.missing:
                break
            try:
                self._num_sent += 1
                self._start(bucket.fill())
            except RuntimeError as error:
                self._failed = error
                break

    def _grads(self) -> list[Tensor | None]:
        return [one.grad for one in self.parameters]

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
        grads = self._grads()
        try:
            if self._failed is not None:
                raise self._failed
            self._require_untouched(grads)
            told = [self._look_for_news(), self._look_for_wish()]
            if group.size() == 1:
                self.has_news, self.has_wish = told
                self.sums = [*map(_without_graph, grads)]
            else:
                self.sums = self._reduce(grads, told)
        finally:
            self.abandon()
        for device in self._accelerators:
            torch.accelerator.current_stream(device).synchronize()

    def _reduce(
        self, grads: Sequence[Tensor | None], told: list[bool]
    ) -> list[Tensor | None]:
        """Sends what is left, and what is stale once more; returns the sums."""
        last = self._buckets[-1]
        told += [bucket.is_stale for bucket in self._buckets]
        told += [one is not None for one in grads]
        told += map(_has_rows, grads)
        for bucket in self._buckets[self._num_sent :]:
            self._start(bucket.fill(told if bucket is last else ()))
        self._wait()
        flags = last.told()
        self.has_news, self.has_wish = flags[0] > 0, flags[1] > 0
        for bucket, is_stale in zip(self._buckets, flags[2:], strict=False):
            if is_stale:
                self._sends_early = False
                self._start(bucket.fill())
        self._wait()
        return self._sums(flags[2 + len(self._buckets) :], grads)

    def _sums(
        self, flags: list[float], grads: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Returns the sums: rows where all ranks that have a gradient have rows."""
        sums: list[Tensor | None] = [None] * len(grads)
        for bucket in self._buckets:
            for at, total in zip(bucket.places, bucket.sums(), strict=True):
                num_ranks, num_with_rows = flags[at], flags[len(grads) + at]
                if 0 < num_ranks == num_with_rows:
                    total = self._rows_of(total, grads[at])
                if num_ranks > 0:
                    sums[at] = total
        return sums

    def _rows_of(self, total: Tensor, gradient: Tensor | None) -> Tensor:
        """Returns the rows of a sum that any rank has."""
        rows = torch.zeros(len(total), dtype=torch.int32, device=total.device)
        if gradient is not None:
            rows[gradient._indices()[0]] = 1
        self._start(rows)
        self._wait()
        at = rows.nonzero().T
        return torch.sparse_coo_tensor(
            at, total[at[0]], total.shape, check_invariants=False, is_coalesced=True
        )

    def _require_untouched(self, grads: Sequence[Tensor | None]) -> None:
        """Refuses what was done to the gradients of this rank alone."""
        for at, (gradient, seen) in enumerate(zip(grads, self._seen, strict=True)):
            if seen is None:
                continue
            if gradient is None:
                # Cleared since, perhaps after it was sent.
                home = self._home[at]
                home.is_stale = bool(home.pieces)
            elif gradient is not seen[0] or _version(gradient) != seen[1]:
                self._is_torn = True
        if self._is_torn or (self._contents and self._contents.has_changed(grads)):
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
        grads = self._grads()
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
        self._group, self._failed, self._num_sent = None, _NO_STEP, 0
        self._is_torn = False
        if self._contents is not None:
            self._contents.close()
            self._contents = None
        self._seen = [None] * len(self.parameters)
        for bucket in self._buckets:
            bucket.begin()
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

    def close(self) -> None:
        """Leaves the parameters alone."""
        for handle in self._handles:
            handle.remove()


def _version(gradient: Tensor) -> int:
    """Returns how often a gradient was written to."""
    if isinstance(gradient, DTensor):
        # DTensors count their versions themselves, and not as their parts do.
        return gradient._version + gradient.to_local()._version
    return gradient._version


def _without_graph(gradient: Tensor | None) -> Tensor | None:
    """Returns a gradient as the sum of a rank that has no peers."""
    if gradient is None or not (gradient.is_sparse or gradient.requires_grad):
        return gradient
    return gradient.coalesce() if gradient.is_sparse else gradient.detach()


def _has_rows(gradient: Tensor | None) -> bool:
    if gradient is None or not gradient.is_sparse:
        return False
    return gradient.sparse_dim() == 1
