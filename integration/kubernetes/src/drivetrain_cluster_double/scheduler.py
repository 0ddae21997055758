"""The scheduler: gives pods that wait to nodes that have room."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from drivetrain_cloud.kubernetes.quantities import read_quantity
from drivetrain_cluster_double.api import Api, set_condition
from drivetrain_cluster_double.errors import StatusError
from drivetrain_cluster_double.loop_thread import LoopThread
from drivetrain_cluster_double.store import Change, Key
from drivetrain_cluster_double.times import format_time

logger = logging.getLogger(__name__)

_Item = dict[str, Any]


class Place(NamedTuple):
    """A node, and what is on it.

    Attributes:
        node: The node.
        allocatable: How much of what it has.
        used: How much of that is taken.
    """

    node: _Item
    allocatable: Mapping[str, float]
    used: Mapping[str, float]


def requests_of(pod: _Item) -> dict[str, float]:
    """Returns how much of what a pod takes."""
    found: dict[str, float] = {"pods": 1}
    for container in pod["spec"]["containers"]:
        requests = (container.get("resources") or {}).get("requests") or {}
        for name, amount in requests.items():
            found[name] = found.get(name, 0) + read_quantity(amount)
    return found


def shape_of(pod: _Item) -> str:
    """Returns what pods have in common that fit on the same nodes."""
    spec = pod["spec"]
    return repr((requests_of(pod), spec.get("nodeSelector"), spec.get("tolerations")))


def tolerates(pod: _Item, taint: Mapping[str, str]) -> bool:
    """Whether a pod tolerates a taint."""
    for one in pod["spec"].get("tolerations") or ():
        is_any = one.get("operator") == "Exists"
        if (
            one.get("effect") in {None, "", taint["effect"]}
            and (one.get("key", "") == taint["key"] or (is_any and not one.get("key")))
            and (is_any or one.get("value", "") == taint.get("value", ""))
        ):
            return True
    return False


def choose_node(pod: _Item, places: Sequence[Place]) -> tuple[str, str]:
    """Decides which node a pod goes to.

    Nodes that the pod's selector names, and whose taints it tolerates, are tried in the
    order in which they come.

    Args:
        pod: The pod.
        places: The nodes, the best first.

    Returns:
        The name of the node, or an empty one and the reason.
    """
    wanted, why = requests_of(pod), Counter[str]()
    for place in places:
        reasons = [_refusal(pod, place.node)]
        if not reasons[0]:
            reasons = [
                "Too many pods" if name == "pods" else f"Insufficient {name}"
                for name, amount in wanted.items()
                # Of sums of fractions, a little is lost.
                if amount + place.used.get(name, 0)
                > place.allocatable.get(name, 0) + 1e-9
            ]
        if not reasons:
            return str(place.node["metadata"]["name"]), ""
        why.update(reasons)
    listed = ", ".join(f"{number} {reason}" for reason, number in sorted(why.items()))
    return "", f"0/{len(places)} nodes are available: {listed or 'there are none'}."


def _refusal(pod: _Item, node: _Item) -> str:
    spec, node_spec = pod["spec"], node.get("spec") or {}
    if node_spec.get("unschedulable"):
        return "node(s) were unschedulable"
    labels = node["metadata"].get("labels") or {}
    selector = spec.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return "node(s) didn't match Pod's node affinity/selector"
    for taint in node_spec.get("taints") or ():
        if taint["effect"] != "PreferNoSchedule" and not tolerates(pod, taint):
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    return ""


class Scheduler:
    """Gives pods to nodes.

    Args:
        api: Of the cluster.
        thread: In which it works.
    """

    def __init__(self, api: Api, thread: LoopThread) -> None:
        self._api, self._thread = api, thread
        self._pods = api.catalog.named("Pod")
        self._places: dict[str, Place] = {}
        self._used: dict[str, dict[str, float]] = {}
        # Where pods are, and what they take there.
        self._loads: dict[Key, tuple[str, dict[str, float]]] = {}
        self._pending: dict[Key, _Item] = {}
        self._is_due = False
        self._turn = itertools.count()
        api.store.subscribe(self._note)

    def _note(self, change: Change) -> None:
        if change.table in {("", "pods"), ("", "nodes")}:
            self._thread.call(self._take_in, change)

    def _take_in(self, change: Change) -> None:
        """Notes a change, and schedules if it brings a pod that waits, or room."""
        if change.table == ("", "nodes"):
            has_news = self._take_in_node(change)
        else:
            has_news = self._take_in_pod(change)
        # All that has happened meanwhile is taken in before.
        if has_news and self._pending and not self._is_due:
            self._is_due = True
            self._thread.call(self._schedule)

    def _take_in_pod(self, change: Change) -> bool:
        key, item = change.key, change.after.item
        spec, is_ended = (
            item["spec"],
            item["status"]["phase"] in {"Succeeded", "Failed"},
        )
        node = "" if change.is_deleted or is_ended else spec.get("nodeName", "")
        had_place = self._unload(key)
        if node:
            self._load(key, node, item)
        was_pending = self._pending.pop(key, None)
        is_over = node or is_ended or "deletionTimestamp" in item["metadata"]
        is_ours = spec["schedulerName"] == "default-scheduler"
        if is_ours and not (
            is_over or spec.get("schedulingGates") or change.is_deleted
        ):
            self._pending[key] = item
        return (had_place and not node) or (key in self._pending and not was_pending)

    def _take_in_node(self, change: Change) -> bool:
        name, item = change.key.name, change.after.item
        if change.is_deleted:
            self._places.pop(name, None)
            return False
        given = item["status"].get("allocatable") or {}
        allocatable = {key: read_quantity(amount) for key, amount in given.items()}
        self._places[name] = Place(item, allocatable, self._used.setdefault(name, {}))
        return True

    def _load(self, key: Key, node: str, pod: _Item) -> None:
        used, requests = self._used.setdefault(node, {}), requests_of(pod)
        self._loads[key] = node, requests
        for name, amount in requests.items():
            used[name] = used.get(name, 0) + amount

    def _unload(self, key: Key) -> bool:
        node, requests = self._loads.pop(key, ("", {}))
        for name, amount in requests.items():
            self._used[node][name] -= amount
        return bool(node)

    def _schedule(self) -> None:
        """Tries all pods that wait, in the order in which they came."""
        self._is_due, failed = False, set[str]()
        for key, pod in list(self._pending.items()):
            shape, node, reason = shape_of(pod), "", ""
            # What has no room for one has none for the next.
            if shape not in failed:
                places = list(self._places.values())
                # Each time another one is first, so that pods spread.
                at = next(self._turn) % max(1, len(places))
                node, reason = choose_node(pod, places[at:] + places[:at])
            try:
                if node:
                    self._api.bind(*key, node)
                    del self._pending[key]
                    self._load(key, node, pod)
                else:
                    failed.add(shape)
                    self._tell_waiting(key, pod, reason)
            except StatusError as error:
                logger.debug("pod %s: %s", key.name, error)

    def _tell_waiting(self, key: Key, pod: _Item, reason: str) -> None:
        conditions = pod.get("status", {}).get("conditions") or ()
        there = [c.get("message") for c in conditions if c["type"] == "PodScheduled"]
        if there and reason in {"", there[0]}:
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": reason or "there is no room, as for others that want the same",
        }
        self._api.change(self._pods, *key, lambda item: set_condition(item, condition))
        if not there:
            _record_event(self._api, pod, "FailedScheduling", condition["message"])


def _record_event(api: Api, about: dict[str, Any], reason: str, text: str) -> None:
    """Records a warning of the scheduler; nothing if the object's namespace is gone.

    Args:
        api: Of the cluster.
        about: The object.
        reason: A word for programs.
        text: For people.
    """
    metadata, now = about["metadata"], format_time()
    names = {key: metadata[key] for key in ("name", "namespace", "uid")}
    item = {
        "metadata": {"generateName": f"{metadata['name'][:40]}."},
        "involvedObject": {key: about[key] for key in ("apiVersion", "kind")} | names,
        "reason": reason,
        "message": text,
        "type": "Warning",
        "count": 1,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "source": {"component": "default-scheduler"},
        "reportingComponent": "default-scheduler",
    }
    try:
        api.create(api.catalog.named("Event", "v1"), metadata["namespace"], item)
    except StatusError:
        return
