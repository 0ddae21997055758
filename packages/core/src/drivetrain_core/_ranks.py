"""Ranks of one job decide together: one plan for all, or one error for all.

Words go through a store of their own, not through collectives: a search may take longer
than a collective may wait, and must leave the user's process group alone.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from drivetrain_core._errors import Code, DistributedError, PlanError
from drivetrain_core._plan import Plan
from drivetrain_core._rendezvous_store import rendezvous_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import Store  # type: ignore[attr-defined]

    from drivetrain_core._context import WorldFacts

_T = TypeVar("_T")

_SLACK_S = 120.0
_AGREE_S = 600.0


def decide(find_plan: Callable[[], Plan], world: WorldFacts, limit_s: float) -> Plan:
    """Returns the plan that rank 0 finds, on every rank.

    Args:
        find_plan: Called on rank 0 alone.
        world: The ranks.
        limit_s: How long rank 0 may take.

    Raises:
        DistributedError: Ranks were launched, but no process group stands; or rank 0
            did not answer, or it failed, and this is another rank.
    """
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    # Elastic workers have a rank and no place to meet: their loop makes the group.
    is_elastic = "DRIVETRAIN_ELASTIC_WORKER" in os.environ
    if launched > 1 and world.size == 1 and not is_elastic:
        message = (
            f"WORLD_SIZE is {launched}, but no process group stands; call "
            "drivetrain_core.init_process_group() before accelerate"
        )
        raise DistributedError(message)
    plan: Plan | None = None

    def find() -> dict[str, Any]:
        nonlocal plan
        plan = find_plan()
        return plan.to_dict()

    found = share(find, world, limit_s + _SLACK_S, "decide on a plan")
    return Plan.from_dict(found) if plan is None else plan


def share(
    find: Callable[[], dict[str, Any]], world: WorldFacts, limit_s: float, what: str
) -> dict[str, Any]:
    """Returns what rank 0 finds, on every rank.

    Args:
        find: Called on rank 0 alone; returns what JSON can hold.
        world: The ranks.
        limit_s: How long the others wait for it.
        what: What rank 0 does meanwhile, for the message.

    Raises:
        DistributedError: Rank 0 did not answer, or it failed, and this is another rank.
    """
    if world.size == 1:
        return find()
    store, key = rendezvous_store("share")
    if world.rank == 0:
        try:
            found = find()
        except BaseException as error:
            store.set(key, json.dumps({"error": describe_error(error)}))
            raise
        store.set(key, json.dumps({"found": found}))
        return found
    answer = _wait(store, key, limit_s, f"rank 0 to {what}")
    if "error" in answer:
        raise rebuild_error(answer["error"], "rank 0")
    shared: dict[str, Any] = answer["found"]
    return shared


def agree(action: Callable[[], _T], world: WorldFacts, name: str) -> _T:
    """Runs an action on every rank, and raises on all if it fails on one.

    Raises:
        PlanError: It failed with one here; or on another rank, which is named unless
            this one failed with the same.
        DistributedError: It failed on another rank with another error.
    """
    if world.size == 1:
        return action()
    store, key = rendezvous_store(name)
    result: _T | None = None
    mine: BaseException | None = None
    try:
        result = action()
    except BaseException as error:  # noqa: BLE001
        # Reported to the others first, then raised.
        mine = error
    verdict: dict[str, Any] = {}
    if mine is not None:
        # The first to fail is the cause; what peers raise after it is its echo.
        verdict = {"error": describe_error(mine), "turn": store.add(f"{key}/failed", 1)}
    store.set(f"{key}/{world.rank}", json.dumps(verdict))
    if mine is not None and (verdict["turn"] == 1 or not isinstance(mine, Exception)):
        raise mine
    failed = {}
    for rank in range(world.size):
        answer = _wait(store, f"{key}/{rank}", _AGREE_S, f"rank {rank} to {name}")
        if "error" in answer:
            failed[answer["turn"]] = rank, answer["error"]
        if 1 in failed:
            break
    if failed:
        rank, cause = failed[min(failed)]
        if isinstance(mine, PlanError) and describe_error(mine) == cause:
            raise mine
        raise rebuild_error(cause, f"rank {rank}") from mine
    return result  # type: ignore[return-value]


def require_same(value: str, world: WorldFacts, what: str) -> None:
    """Raises on every rank unless all ranks hold the same value.

    Args:
        value: This rank's value.
        world: The ranks.
        what: What it is, for the message.

    Raises:
        DistributedError: Two ranks differ; the first that differs from rank 0 is named.
    """
    if world.size == 1:
        return
    store, key = rendezvous_store("same")
    store.set(f"{key}/{world.rank}", json.dumps({"value": value}))
    found = [
        _wait(store, f"{key}/{rank}", _AGREE_S, f"rank {rank} to tell its {what}")
        for rank in range(world.size)
    ]
    for rank, answer in enumerate(found):
        if answer != found[0]:
            message = (
                f"ranks must have the same {what}; rank 0 has {found[0]['value']}, "
                f"rank {rank} has {answer['value']}"
            )
            raise DistributedError(message)


def _wait(store: Store, key: str, seconds: float, what: str) -> dict[str, Any]:
    try:
        store.wait([key], timedelta(seconds=seconds))
    except RuntimeError as error:
        message = f"waited {seconds:.0f} s for {what}: {error}"
        raise DistributedError(message) from error
    answer: dict[str, Any] = json.loads(store.get(key))
    return answer


def describe_error(error: BaseException) -> dict[str, str]:
    """Returns what an error says, for JSON.

    Example:
        >>> describe_error(OSError("no room"))
        {'type': 'OSError', 'message': 'no room'}
    """
    parts = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, PlanError):
        parts |= {
            "code": error.code.value,
            "optimization": error.optimization,
            "because": error.because,
            "fix": error.fix,
        }
    return parts


def rebuild_error(parts: dict[str, str], who: str) -> Exception:
    """Returns the error to raise where another process has failed.

    Args:
        parts: What `describe_error` has returned there.
        who: That process.

    Example:
        >>> rebuild_error({"type": "OSError", "message": "no room"}, "rank 1")
        DistributedError('rank 1 failed with OSError: no room')
    """
    if "code" in parts:
        return PlanError(
            Code(parts["code"]),
            parts["optimization"],
            because=f"on {who}: {parts['because']}",
            fix=parts["fix"],
        )
    message = f"{who} failed with {parts['type']}: {parts['message']}"
    return DistributedError(message)
