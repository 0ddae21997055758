"""The machines of a cluster: they come, fail, and are taken back."""

from __future__ import annotations

import contextlib
import itertools
import platform
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from drivetrain_cluster_double import times
from drivetrain_cluster_double.api import Api, DeleteOptions, set_condition
from drivetrain_cluster_double.errors import StatusError
from drivetrain_cluster_double.kubelet import Kubelet
from drivetrain_cluster_double.loop_thread import LoopThread
from drivetrain_cluster_double.selectors import Requirement, Selector
from drivetrain_cluster_double.store import Key

RECLAIM_TAINT = "cloud.google.com/impending-node-termination"
"""The taint of a node that its provider is going to take back."""

_Item = dict[str, Any]
_UNREACHABLE = "node.kubernetes.io/unreachable"


def _disruption(reason: str, message: str) -> _Item:
    found = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    return {**found, "message": message}


def describe_node(
    name: str,
    capacity: Mapping[str, str],
    labels: Mapping[str, str],
    taints: Sequence[Mapping[str, str]] = (),
) -> _Item:
    """Returns a node that is ready.

    Args:
        name: Of the node.
        capacity: How much of what it has.
        labels: Beside those that every node has.
        taints: What pods have to tolerate.
    """
    usual = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    # Clients refuse a node that lacks one of them.
    info = {
        **dict.fromkeys(("bootID", "machineID", "systemUUID"), name),
        **dict.fromkeys(("kubeProxyVersion", "kubeletVersion"), "v1.36.0"),
        **dict.fromkeys(("operatingSystem", "osImage"), "linux"),
        "architecture": platform.machine(),
        "containerRuntimeVersion": "double://1",
        "kernelVersion": platform.release(),
    }
    amounts = {"capacity": dict(capacity), "allocatable": dict(capacity)}
    addresses = [{"type": "InternalIP", "address": "127.0.0.1"}]
    spec = {"providerID": f"double://{name}", "taints": [dict(one) for one in taints]}
    item = {
        "metadata": {"name": name, "labels": {**usual, **labels}},
        "spec": spec if taints else {"providerID": spec["providerID"]},
        "status": {**amounts, "addresses": addresses, "nodeInfo": info},
    }
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    return set_condition(item, ready)


def _with_taints(item: _Item, key: str, *effects: str) -> _Item:
    now = times.format_time()
    taints = [{"key": key, "effect": one, "timeAdded": now} for one in effects]
    others = [one for one in item["spec"].get("taints") or () if one["key"] != key]
    return {**item, "spec": {**item["spec"], "taints": [*others, *taints]}}


class Machines:
    """The machines on which pods run; for any thread.

    Args:
        api: Of the cluster.
        kubelet: Runs the pods of all of them.
        thread: In which it does.
    """

    def __init__(self, api: Api, kubelet: Kubelet, thread: LoopThread) -> None:
        self._api, self._kubelet, self._thread = api, kubelet, thread
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

    def add_node(
        self,
        name: str = "",
        *,
        cpu: str = "8",
        memory: str = "32Gi",
        pods: int = 110,
        extended: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
    ) -> str:
        """Adds a node; returns its name.

        Args:
            name: Of the node; `node-0`, `node-1` ... by default.
            cpu: How many cores it says to have.
            memory: How much memory it says to have.
            pods: How many pods it takes.
            extended: What else it has, as `{"nvidia.com/gpu": "8"}`.
            labels: By which pods select it.
            taints: What pods have to tolerate.

        Raises:
            StatusError: There is a node of this name, or something is not valid.
        """
        capacity = {"cpu": cpu, "memory": memory, "pods": str(pods), **(extended or {})}
        name = name or f"node-{next(self._numbers)}"
        self._thread.call(self._kubelet.dead_nodes.discard, name)
        item = describe_node(name, capacity, labels or {}, taints)
        self._api.create(self._nodes, "", item)
        return name

    def remove_node(self, name: str) -> None:
        """Takes a node away, without notice: its processes die, its pods are deleted.

        Raises:
            StatusError: There is no such node.
        """
        self._forget(name)
        self._thread.call(self._kubelet.kill_node, name)
        gone = _disruption("DeletionByPodGC", "PodGC: node no longer exists")

        def edit(pod: _Item) -> _Item:
            if pod["status"]["phase"] in {"Succeeded", "Failed"}:
                return pod
            pod = set_condition(pod, gone)
            return {**pod, "status": {**pod["status"], "phase": "Failed"}}

        with self._api.store.lock:
            self._api.delete(self._nodes, "", name, DeleteOptions())
            for key in self._change_pods(name, edit):
                # It may have been the last change, after which a pod is gone.
                with contextlib.suppress(StatusError):
                    self._api.delete(self._pods, *key, DeleteOptions(grace_s=0))

    def fail_node(self, name: str) -> None:
        """Lets a node fail: its processes die, and nobody says so but the node's taint.

        Its pods go on to be shown as running, but not ready, until they are deleted by
        force or the node is removed, as in a real cluster.

        Raises:
            StatusError: There is no such node.
        """
        self._thread.call(self._kubelet.kill_node, name)
        unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}

        def edit(item: _Item) -> _Item:
            effects = ("NoSchedule", "NoExecute")
            return _with_taints(set_condition(item, unknown), _UNREACHABLE, *effects)

        self._api.change(self._nodes, "", name, edit)
        not_ready = {"type": "Ready", "status": "False", "reason": "NodeNotReady"}
        self._change_pods(name, lambda pod: set_condition(pod, not_ready))

    def reclaim(self, name: str, *, notice_s: float = 30.0) -> None:
        """Takes a node back as providers of spot machines do: with a notice.

        The node gets a taint, and its pods the condition `DisruptionTarget`; when the time
        is over, the node is gone.

        Args:
            name: Of the node.
            notice_s: How long it stays.

        Raises:
            StatusError: There is no such node.
        """
        message = f"the machine is taken back in {notice_s:g} s"
        told = _disruption("TerminationByKubelet", message)
        effect = (RECLAIM_TAINT, "NoSchedule")
        self._api.change(
            self._nodes, "", name, lambda item: _with_taints(item, *effect)
        )
        self._change_pods(name, lambda pod: set_condition(pod, told))
        self._forget(name)
        timer = threading.Timer(notice_s, self._take_back, [name])
        timer.daemon = True
        with self._lock:
            self._ends[name] = timer
        timer.start()

    def cancel_reclaim(self, name: str) -> None:
        """Leaves a node that was to be taken back where it is.

        Raises:
            StatusError: There is no such node.
        """
        self._forget(name)
        told = {**_disruption("ReclaimCancelled", ""), "status": "False"}
        self._api.change(
            self._nodes, "", name, lambda item: _with_taints(item, RECLAIM_TAINT)
        )
        self._change_pods(name, lambda pod: set_condition(pod, told))

    def _take_back(self, name: str) -> None:
        with self._lock:
            is_due = self._ends.get(name) is threading.current_thread()
        if is_due:
            with contextlib.suppress(StatusError):  # removed meanwhile
                self.remove_node(name)

    def _forget(self, name: str) -> None:
        with self._lock:
            timer = self._ends.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _change_pods(self, name: str, edit: Callable[[_Item], _Item]) -> list[Key]:
        selector = Selector(fields=(Requirement("spec.nodeName", "In", (name,)),))
        with self._api.store.lock:
            found = list(self._api.store.table(self._pods.table).find("", selector))
            for key, _ in found:
                self._api.change(self._pods, *key, edit)
        return [key for key, _ in found]
