"""The scheduler: gives pods that wait to nodes that have room."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from drivetrain_cloud.kubernetes.quantities import read_quantity
from drivetrain_cluster_double.errors import StatusError
from drivetrain_cluster_double.recorder import record_event
from drivetrain_cluster_double.removal import DeleteOptions
from drivetrain_cluster_double.scheduling import (
    Choice,
    Load,
    Place,
    choose_node,
    requests_of,
    shape_of,
)
from drivetrain_cluster_double.subresources import bind, set_condition

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_cluster_double.api import Api
    from drivetrain_cluster_double.store import Change, Key

__all__ = ["Scheduler"]

logger = logging.getLogger(__name__)

_ENDED = frozenset({"Succeeded", "Failed"})
_Item = dict[str, Any]


class Scheduler:
    """Gives pods to nodes, in a thread of its own.

    Args:
        api: Of the cluster.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._pods = api.catalog.named("Pod")
        self._changes: queue.SimpleQueue[Change | None] = queue.SimpleQueue()
        self._places: dict[str, Place] = {}
        self._used: dict[str, dict[str, float]] = {}
        self._loads: dict[str, dict[Key, Load]] = {}
        self._node_of: dict[Key, str] = {}
        self._pending: dict[Key, _Item] = {}
        self._has_room = False
        self._turn = itertools.count()
        self._unsubscribe = api.store.subscribe(self._note)
        self._thread = threading.Thread(
            target=self._run, name="kubernetes-double-scheduler", daemon=True
        )

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Ends."""
        self._unsubscribe()
        self._changes.put(None)
        self._thread.join()

    def _note(self, change: Change) -> None:
        if change.table in {("", "pods"), ("", "nodes")}:
            self._changes.put(change)

    def _run(self) -> None:
        while True:
            waiting = [self._changes.get()]
            while not self._changes.empty():
                waiting.append(self._changes.get())
            is_new = False
            for change in waiting:
                if change is None:
                    return
                is_new |= self._attempt(self._take_in, change)
            if (is_new or self._has_room) and self._pending:
                self._has_room = False
                self._attempt(self._schedule)

    def _attempt(self, act: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return act(*arguments)
        except Exception:
            # One pod that cannot be handled must not stop the others.
            logger.exception("scheduler: %s", arguments)
            return False

    def _take_in(self, change: Change) -> bool:
        """Notes a change; returns whether it brings a pod that waits."""
        item = change.after.item
        if change.table == ("", "nodes"):
            self._take_in_node(change, item)
            return False
        key, spec = change.key, item["spec"]
        is_over = change.is_deleted or item.get("status", {}).get("phase") in _ENDED
        node = "" if is_over else spec.get("nodeName", "")
        if node:
            load = Load(
                key,
                spec.get("priority", 0),
                requests_of(item),
                "deletionTimestamp" in item["metadata"],
            )
            self._unload(key)
            self._load(node, load)
        else:
            self._has_room |= self._unload(key)
        is_waiting = not (node or is_over or "deletionTimestamp" in item["metadata"])
        is_waiting &= spec.get("schedulerName") == "default-scheduler"
        is_waiting &= not spec.get("schedulingGates")
        is_new = is_waiting and key not in self._pending
        if is_waiting:
            self._pending[key] = item
        else:
            self._pending.pop(key, None)
        return is_new

    def _take_in_node(self, change: Change, item: _Item) -> None:
        name = change.key.name
        if change.is_deleted:
            self._places.pop(name, None)
            return
        self._has_room = True
        used = self._used.setdefault(name, {})
        loads = self._loads.setdefault(name, {})
        given = item.get("status", {}).get("allocatable") or {}
        allocatable = {key: read_quantity(amount) for key, amount in given.items()}
        self._places[name] = Place(item, allocatable, used, loads)

    def _load(self, node: str, load: Load) -> None:
        used = self._used.setdefault(node, {})
        self._loads.setdefault(node, {})[load.key] = load
        self._node_of[load.key] = node
        for name, amount in load.requests.items():
            used[name] = used.get(name, 0) + amount

    def _unload(self, key: Key) -> bool:
        node = self._node_of.pop(key, None)
        if node is None:
            return False
        used = self._used[node]
        for name, amount in self._loads[node].pop(key).requests.items():
            used[name] -= amount
        return True

    def _schedule(self) -> None:
        """Tries all pods that wait, those of a high priority first."""
        failed: set[str] = set()
        order = sorted(
            self._pending.items(), key=lambda e: -e[1]["spec"].get("priority", 0)
        )
        for key, pod in order:
            shape = shape_of(pod)
            # What has no room for one has none for the next.
            if shape in failed and not pod.get("status", {}).get("nominatedNodeName"):
                self._tell_waiting(key, pod, "")
                continue
            choice = choose_node(pod, self._in_turn())
            try:
                if choice.node and not choice.victims:
                    self._bind(key, pod, choice.node)
                    continue
                failed.add(shape)
                self._make_room(key, pod, choice)
            except StatusError as error:
                logger.debug("pod %s: %s", key.name, error)

    def _in_turn(self) -> list[Place]:
        """Returns the nodes, each time another one first, so that pods spread."""
        places = list(self._places.values())
        at = next(self._turn) % max(1, len(places))
        return places[at:] + places[:at]

    def _bind(self, key: Key, pod: _Item, node: str) -> None:
        bind(self._api, self._pods, *key, {"target": {"name": node}})
        del self._pending[key]
        self._load(node, Load(key, pod["spec"].get("priority", 0), requests_of(pod)))

    def _make_room(self, key: Key, pod: _Item, choice: Choice) -> None:
        self._tell_waiting(key, pod, choice.reason)
        if not choice.victims:
            return
        loads = self._loads[choice.node]
        victims = [loads[one] for one in choice.victims if one in loads]
        nominated = {"nominatedNodeName": choice.node}
        if pod.get("status", {}).get("nominatedNodeName") != choice.node:
            self._api.change(
                self._pods,
                *key,
                lambda item: {**item, "status": {**item["status"], **nominated}},
            )
        for victim in victims:
            if victim.is_ending:
                continue
            condition = {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "PreemptionByScheduler",
                "message": f"default-scheduler: preempting to accommodate {key.name}",
            }
            self._api.change(
                self._pods,
                *victim.key,
                partial(set_condition, condition=condition),
            )
            self._api.delete(self._pods, *victim.key, DeleteOptions())

    def _tell_waiting(self, key: Key, pod: _Item, reason: str) -> None:
        conditions = pod.get("status", {}).get("conditions") or ()
        there = next((c for c in conditions if c["type"] == "PodScheduled"), None)
        if there is not None and there.get("message") == (
            reason or there.get("message")
        ):
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": reason or "there is no room, as for others that want the same",
        }
        self._api.change(self._pods, *key, lambda item: set_condition(item, condition))
        if there is None:
            record_event(
                self._api, pod, "FailedScheduling", condition["message"], "Warning"
            )
