"""The machines of a cluster: they come, fail, and are taken back."""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import TYPE_CHECKING, Any

from drivetrain_cluster_double import nodes, times
from drivetrain_cluster_double.api import WriteOptions
from drivetrain_cluster_double.errors import StatusError
from drivetrain_cluster_double.removal import DeleteOptions
from drivetrain_cluster_double.selectors import Requirement, Selector
from drivetrain_cluster_double.subresources import set_condition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from drivetrain_cluster_double.api import Api
    from drivetrain_cluster_double.kubelet import Kubelet
    from drivetrain_cluster_double.store import Key

__all__ = ["Machines"]

_Item = dict[str, Any]
_PROVIDER = WriteOptions(manager="cloud-provider")
_UNREACHABLE = "node.kubernetes.io/unreachable"


class Machines:
    """The machines on which pods run; for any thread.

    Args:
        api: Of the cluster.
        kubelet: Runs the pods of all of them.
    """

    def __init__(self, api: Api, kubelet: Kubelet) -> None:
        self._api, self._kubelet = api, kubelet
        self._nodes, self._pods = (api.catalog.named(n) for n in ("Node", "Pod"))
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._ends: dict[str, threading.Timer] = {}

    def stop(self) -> None:
        """Takes nothing back any more."""
        with self._lock:
            ends, self._ends = self._ends, {}
        for timer in ends.values():
            timer.cancel()
            timer.join()

    def add(
        self,
        name: str,
        capacity: Mapping[str, str],
        labels: Mapping[str, str],
        taints: Sequence[Mapping[str, str]],
    ) -> str:
        """Adds a machine; returns its name."""
        name = name or f"node-{next(self._numbers)}"
        item = nodes.describe_node(name, capacity, labels, taints)
        self._kubelet.revive_node(name)
        self._api.create(self._nodes, "", item, WriteOptions(manager="kubelet"))
        return name

    def remove(self, name: str) -> None:
        """Takes a machine away, with all that runs on it."""
        self._forget(name)
        self._kubelet.kill_node(name)
        with self._api.store.lock:
            self._api.delete(self._nodes, "", name, DeleteOptions())
            for key, item in self._on(name):
                condition = {
                    "type": "DisruptionTarget",
                    "status": "True",
                    "reason": "DeletionByPodGC",
                    "message": "PodGC: node no longer exists",
                }
                phase = item.get("status", {}).get("phase")
                is_over = phase in {"Succeeded", "Failed"}

                def edit(pod: _Item, c: _Item = condition) -> _Item:
                    pod = set_condition(pod, c)
                    return {**pod, "status": {**pod["status"], "phase": "Failed"}}

                # It may be the last change, after which a pod is gone.
                with contextlib.suppress(StatusError):
                    if not is_over:
                        self._api.change(self._pods, *key, edit, _PROVIDER)
                    self._api.delete(self._pods, *key, DeleteOptions(grace_s=0))

    def fail(self, name: str) -> None:
        """Lets a machine stop, so that nobody hears of it."""
        self._kubelet.kill_node(name)
        unknown = {
            "type": "Ready",
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "message": "Kubelet stopped posting node status.",
        }
        taints = [
            {
                "key": _UNREACHABLE,
                "effect": effect,
                "timeAdded": times.format_time(times.now()),
            }
            for effect in ("NoSchedule", "NoExecute")
        ]

        def edit(item: _Item) -> _Item:
            item = set_condition(item, unknown)
            there = item["spec"].get("taints") or []
            return {**item, "spec": {**item["spec"], "taints": [*there, *taints]}}

        self._api.change(self._nodes, "", name, edit, _PROVIDER)
        not_ready = {"type": "Ready", "status": "False", "reason": "NodeNotReady"}
        self._change_pods(name, lambda pod: set_condition(pod, not_ready))

    def reclaim(self, name: str, notice_s: float) -> None:
        """Announces that a machine goes, and lets it go."""
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "TerminationByKubelet",
            "message": f"the machine is taken back in {notice_s:g} s",
        }
        self._api.change(self._nodes, "", name, nodes.with_reclaim, _PROVIDER)
        self._change_pods(name, lambda pod: set_condition(pod, condition))
        self._forget(name)
        timer = threading.Timer(notice_s, self._take_back, [name])
        timer.daemon = True
        with self._lock:
            self._ends[name] = timer
        timer.start()

    def cancel_reclaim(self, name: str) -> None:
        """Lets a machine stay that was announced to go."""
        self._forget(name)
        condition = {
            "type": "DisruptionTarget",
            "status": "False",
            "reason": "ReclaimCancelled",
        }
        self._api.change(self._nodes, "", name, nodes.without_reclaim, _PROVIDER)
        self._change_pods(name, lambda pod: set_condition(pod, condition))

    def _take_back(self, name: str) -> None:
        with self._lock:
            is_due = self._ends.get(name) is threading.current_thread()
            self._ends.pop(name, None) if is_due else None
        if is_due:
            with contextlib.suppress(StatusError):  # removed meanwhile
                self.remove(name)

    def _forget(self, name: str) -> None:
        with self._lock:
            timer = self._ends.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _on(self, name: str) -> list[tuple[Key, _Item]]:
        selector = Selector(fields=(Requirement("spec.nodeName", "In", (name,)),))
        with self._api.store.lock:
            found = self._api.store.table(self._pods.table).find("", selector)
            return [(key, row.item) for key, row in found]

    def _change_pods(self, name: str, edit: Callable[[_Item], _Item]) -> None:
        with self._api.store.lock:
            for key, _ in self._on(name):
                self._api.change(self._pods, *key, edit, _PROVIDER)
