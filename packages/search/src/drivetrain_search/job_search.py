"""One search for all processes of a job: one claims it, the others wait for its plan.

The job's store has one value for a search, replaced only by a process that knows what
stands there: a claim, then the plan or an error. A number beside the claim is counted up
as long as its process lives; where that stands still, another one claims the search.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed import DistStoreError

from drivetrain_core import DistributedError, Plan
from drivetrain_core.extending import describe_error, rebuild_error
from drivetrain_search.report.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.distributed import Store  # type: ignore[attr-defined]

logger = logging.getLogger(__name__)

_BEAT_S, _LEASE_S, _SLACK_S, _LOOK_S = 1.0, 10.0, 120.0, 2.0
_WHO = "another process of this job"
_THERE = f"{_WHO} has searched"


def search_once(
    store: Store, key: str, search: Callable[[], tuple[Plan, Report]], limit_s: float
) -> tuple[Plan, Report]:
    """Returns the one plan of a job, on every process that asks for it.

    The first to ask finds it, or the next one where that has died; what it finds stays in
    the store for those that come later, and comes with a report of no trials. An error is
    raised by all that wait for the search, since the same script would meet it again; who
    comes later searches anew, as a worker that was started again because of that error.

    Args:
        store: Of the job.
        key: The same on every process that wants this plan, and of no other one.
        search: Called in one process, unless that is taken for dead.
        limit_s: How long a search may take; it is waited for a little longer.

    Raises:
        PlanError: The search has failed with it in another process.
        DistributedError: It has failed there with another error, or exceeded its limit.
    """
    expected, is_new = "", True
    while True:
        claim = json.dumps({"claim": uuid.uuid4().hex})
        found = store.compare_set(key, expected, claim).decode()
        state = json.loads(found)
        if "plan" in state:
            plan = Plan.from_dict(state["plan"])
            return plan, Report(
                trials=(), chosen=plan.choices, seconds=0.0, stopped=_THERE, plan=plan
            )
        if "error" in state and not is_new:
            raise rebuild_error(state["error"], _WHO)
        if found == claim:
            with _beating(store, f"{key}/{state['claim']}"):
                try:
                    plan, report = search()
                except Exception as error:
                    answer = json.dumps({"error": describe_error(error)})
                    store.compare_set(key, claim, answer)
                    raise
                answer = json.dumps({"plan": plan.to_dict()})
                if store.compare_set(key, claim, answer).decode() == answer:
                    return plan, report
        elif "claim" in state:
            _await_end(store, f"{key}/{state['claim']}", limit_s + _SLACK_S)
        expected, is_new = found, False


@contextlib.contextmanager
def _beating(store: Store, place: str) -> Iterator[None]:
    """Counts up a number, from a thread, until it says that this claim has ended."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(_BEAT_S):
            # A store that is away is met again, or by who searches.
            with contextlib.suppress(RuntimeError):
                store.add(f"{place}/beats", 1)

    thread = threading.Thread(target=beat, name="drivetrain-search-beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        # Who waits finds the beats ended, where the store is away.
        with contextlib.suppress(RuntimeError):
            store.add(f"{place}/end", 1)


def _await_end(store: Store, place: str, limit_s: float) -> None:
    """Returns when a claim has ended, or the process that has it is dead.

    Raises:
        DistributedError: It lives, and has not ended in time.
    """
    logger.info("%s searches; this one waits for its plan", _WHO)
    beats, beat_s, end_s = -1, 0.0, time.monotonic() + limit_s
    while (now_s := time.monotonic()) < end_s:
        count = store.add(f"{place}/beats", 0)
        if count != beats:
            beats, beat_s = count, now_s
        elif now_s - beat_s > _LEASE_S:
            return
        with contextlib.suppress(DistStoreError):
            store.wait([f"{place}/end"], timedelta(seconds=_LOOK_S))
            return
    message = (
        f"waited {limit_s:.0f} s for {_WHO} to find a plan; give accelerate a longer "
        "budget=, or a plan as strategy="
    )
    raise DistributedError(message)
