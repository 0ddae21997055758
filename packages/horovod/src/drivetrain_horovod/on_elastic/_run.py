"""Runs a training in one world after the other."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from drivetrain_core import DistributedError
from drivetrain_horovod.on_elastic._errors import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
)
from drivetrain_horovod.on_elastic._runtime import end, options, runtime
from drivetrain_horovod.on_elastic._state import HostUpdateResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_elastic.extending import RankAssignment
    from drivetrain_horovod.on_elastic._runtime import Runtime
    from drivetrain_horovod.on_elastic._state import State

logger = logging.getLogger(__name__)

_ResultT = TypeVar("_ResultT")


def run(func: Callable[..., _ResultT]) -> Callable[..., _ResultT]:
    """Makes a function elastic: it is called anew in each world, with the state so far.

    When a rank is lost, the state goes back to the last commit. When ranks come or go,
    it stays as it is. Then all ranks take the state of one that has it, and the function
    is called again. It must be able to go on from any state.

    What comes after it does not run in a worker that leaves the job before the end: that
    one exits with 0.

    Args:
        func: Its first argument is the `State`.

    Example:
        >>> from drivetrain_horovod import on_elastic as hvd
        >>> hvd.init()
        >>> @hvd.elastic.run
        ... def train(state, most):
        ...     while state.epoch < most:
        ...         state.epoch += 1
        ...         state.commit()
        ...     return state.epoch
        >>> train(hvd.elastic.ObjectState(epoch=0), 3)
        3
        >>> hvd.shutdown()
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> _ResultT:
        one = runtime()

        def hear(assignment: RankAssignment) -> None:
            state.on_hosts_updated(assignment.epoch, _difference(one, assignment))

        end_hearing = one.listen(hear)
        try:
            return _run(one, state, functools.partial(func, state, *args, **kwargs))
        finally:
            end_hearing()

    return wrapper


def _run(one: Runtime, state: State, func: Callable[[], _ResultT]) -> _ResultT:
    results: list[_ResultT] = []
    num_resets = 0
    while True:
        try:
            if not (one.has_state and one.place.skips_sync):
                state.sync()
            one.has_state = True
            results = [func()]
            one.finish()
        except HorovodInternalError as error:
            failure, interrupt = error, None
        except HostsUpdatedInterrupt as error:
            failure, interrupt = None, error
        else:
            return results[0]
        num_resets += 1
        most = options.reset_limit
        if most is not None and num_resets > most:
            message = (
                f"the world has changed {num_resets} times, and the limit is {most}"
            )
            raise DistributedError(message) from failure
        if interrupt is not None:
            one.leave_world()
            goes_on = one.enter(is_live=True, may_skip=interrupt.skip_sync)
        else:
            one.break_world(str(failure))
            goes_on = one.enter(is_live=False, may_skip=False)
        if not goes_on:
            # Others were at the end, too, before one of them went.
            is_finished = bool(results) and one.is_finished()
            one.report_end(is_finished=is_finished)
            if is_finished:
                return results[0]
            end()
            raise SystemExit(0)
        results = []
        if failure is not None:
            logger.info("back to the last commit: %s", failure)
            state.restore()
        state.on_reset()


def _difference(one: Runtime, assignment: RankAssignment) -> HostUpdateResult:
    before, after = set(one.members), set(assignment.members)
    found = HostUpdateResult.no_update
    if before - after:
        found |= HostUpdateResult.removed
    if after - before:
        found |= HostUpdateResult.added
    return found
