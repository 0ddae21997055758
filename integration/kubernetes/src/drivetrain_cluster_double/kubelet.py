"""The kubelets of all nodes: run what pods say, and tell what has become of it."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import queue
import selectors
import socket
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from drivetrain_cluster_double import pod_status, times
from drivetrain_cluster_double.api import WriteOptions
from drivetrain_cluster_double.container import Container
from drivetrain_cluster_double.environment import (
    LaunchError,
    empty_folders,
    plan_launch,
    service_variables,
)
from drivetrain_cluster_double.errors import StatusError
from drivetrain_cluster_double.launcher import NOT_STARTED
from drivetrain_cluster_double.pod_status import Ending
from drivetrain_cluster_double.probes import Prober
from drivetrain_cluster_double.removal import DeleteOptions
from drivetrain_cluster_double.store import Key

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from drivetrain_cluster_double.api import Api
    from drivetrain_cluster_double.store import Change

__all__ = ["Kubelet", "KubeletConfig"]

logger = logging.getLogger(__name__)

_Item = dict[str, Any]
_ENDED = frozenset({"Succeeded", "Failed"})
_RETRY_S = 0.2
_LOG = "log.txt"
_WRITER = WriteOptions(manager="kubelet")


@dataclass(frozen=True, kw_only=True, slots=True)
class KubeletConfig:
    """How pods are run.

    Args:
        folder: Where each pod gets a folder of its own.
        has_processes: Whether pods are processes; they only say that they run otherwise.
        backoff_s: How long a process that has ended waits to be started again, the first
            time; twice as long each time, up to thirty times that.
        variables: Returns what a pod's processes get in their environment, so that they
            reach the API.
    """

    folder: Path
    has_processes: bool = True
    backoff_s: float = 10.0
    variables: Callable[[_Item], dict[str, str]] = lambda _: {}


@dataclass(kw_only=True, slots=True)
class _Run:
    """A pod on a node."""

    key: Key
    pod: _Item
    address: str
    container: Container | None = None
    prober: Prober | None = None
    started: str = ""
    num_restarts: int = 0
    last: Ending | None = None
    reason: str = ""
    pod_reason: str = ""
    is_ending: bool = False
    is_over: bool = False
    log: Path | None = field(default=None)


class Kubelet:
    """Runs pods, in a thread of its own.

    Args:
        api: Of the cluster.
        config: How pods are run.
    """

    def __init__(self, api: Api, config: KubeletConfig) -> None:
        self._api, self._config = api, config
        self._kind = api.catalog.named("Pod")
        self._runs: dict[str, _Run] = {}
        self._logs: dict[Key, Path] = {}
        self._dead_nodes: set[str] = set()
        self._addresses = itertools.count()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._is_stopped = False
        self._unsubscribe = api.store.subscribe(self._note)
        self._thread = threading.Thread(
            target=self._run, name="kubernetes-double-kubelet", daemon=True
        )

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Kills all processes, and ends."""
        self._unsubscribe()
        self._call(self._end)
        self._thread.join()
        self._selector.close()
        self._waker.close()
        self._woken.close()

    def log(self, namespace: str, name: str) -> bytes:
        """Returns what a pod has written, also of one that is gone.

        One that has not begun has written nothing, whoever had its name before.
        """
        key = Key(namespace, name)
        path, there = self._logs.get(key), self._api.store.get(self._kind.table, key)
        if there and path != self._folder(there.item) / _LOG:
            return b""
        return path.read_bytes() if path and path.exists() else b""

    def finish(self, uid: str, code: int) -> None:
        """Lets a pod's main process end by itself, in a cluster without processes."""
        self._call(lambda: self._finish(uid, code))

    def kill(self, uid: str, reason: str) -> None:
        """Kills a pod's processes; the reason stands in its status."""
        self._call(lambda: self._kill(uid, reason))

    def kill_node(self, node: str) -> None:
        """Kills the processes of all pods of a node; nobody is told."""

        def act() -> None:
            self._dead_nodes.add(node)
            for run in list(self._runs.values()):
                if run.pod["spec"].get("nodeName") == node:
                    self._forget(run)

        self._call(act)

    def revive_node(self, node: str) -> None:
        """Runs pods on a node of this name again."""
        self._call(lambda: self._dead_nodes.discard(node))

    # The thread

    def _note(self, change: Change) -> None:
        if change.table == ("", "pods"):
            self._call(lambda: self._follow(change))

    def _call(self, act: Callable[[], None]) -> None:
        self._calls.put(act)
        # Full when it is awake anyway; closed when it has ended.
        with contextlib.suppress(BlockingIOError, OSError):
            self._waker.send(b"x")

    def _later(self, after_s: float, act: Callable[[], None]) -> None:
        entry = (time.monotonic() + after_s, next(self._numbers), act)
        heapq.heappush(self._timers, entry)

    def _run(self) -> None:
        while not self._is_stopped:
            wait_s = self._timers[0][0] - time.monotonic() if self._timers else None
            if not self._calls.empty():
                wait_s = 0.0
            for found, _ in self._selector.select(wait_s and max(wait_s, 0.0)):
                if found.fileobj is self._woken:
                    self._woken.recv(1 << 16)
                else:
                    self._attempt(partial(self._has_ended, found.data))
            while not self._calls.empty():
                self._attempt(self._calls.get())
            while self._timers and self._timers[0][0] <= time.monotonic():
                self._attempt(heapq.heappop(self._timers)[2])

    def _attempt(self, act: Callable[[], None]) -> None:
        try:
            act()
        except StatusError as error:
            # The pod is gone, or another one has its name.
            logger.debug("kubelet: %s", error)
        except Exception:
            # One pod that cannot be handled must not stop the others.
            logger.exception("kubelet")

    def _end(self) -> None:
        for run in list(self._runs.values()):
            self._forget(run)
        self._is_stopped = True

    # What happens to pods

    def _follow(self, change: Change) -> None:
        item, metadata = change.after.item, change.after.item["metadata"]
        run = self._runs.get(metadata["uid"])
        if change.is_deleted:
            if run is not None:
                self._forget(run)
            return
        node = item["spec"].get("nodeName")
        if node in self._dead_nodes:
            # Nobody is there to act; but without the node, the pod goes too.
            if self._api.store.get(("", "nodes"), Key("", node)) is None:
                self._let_go(change.key, metadata["uid"])
            return
        is_ended = item.get("status", {}).get("phase") in _ENDED
        is_deleted = "deletionTimestamp" in metadata
        if run is not None:
            run.pod = item
            if is_deleted and not run.is_ending:
                self._terminate(run, metadata.get("deletionGracePeriodSeconds") or 0)
        elif node:
            if is_deleted:
                self._let_go(change.key, metadata["uid"])
            elif not is_ended and self._is_latest(change):
                self._admit(change.key, item)

    def _is_latest(self, change: Change) -> bool:
        """Whether a pod is still as a change tells: it may have run and ended since."""
        there = self._api.store.get(self._kind.table, change.key)
        return there is not None and (
            there.item["metadata"]["resourceVersion"]
            == change.after.item["metadata"]["resourceVersion"]
        )

    def _admit(self, key: Key, pod: _Item) -> None:
        number = next(self._addresses)
        address = f"127.{10 + number // 62_500 % 200}.{number // 250 % 250}.{number % 250 + 1}"
        run = _Run(key=key, pod=pod, address=address)
        self._runs[pod["metadata"]["uid"]] = run
        limit_s = pod["spec"].get("activeDeadlineSeconds")
        if limit_s:
            self._later(limit_s, lambda: self._overdue(run))
        self._launch(run)

    def _launch(self, run: _Run) -> None:
        if run.is_over or run.is_ending:
            return
        run.started, run.reason = times.format_time(times.now()), ""
        has_probe = "readinessProbe" in run.pod["spec"]["containers"][0]
        if self._config.has_processes:
            # The pod learns its address before its process begins.
            status = {**run.pod.get("status", {}), "podIP": run.address}
            try:
                run.container = self._start({**run.pod, "status": status}, run)
            except (LaunchError, OSError) as error:
                self._wait(run, "CreateContainerConfigError", str(error))
                self._later(_RETRY_S, lambda: self._launch(run))
                return
            self._selector.register(run.container.handle, selectors.EVENT_READ, run)
        self._write(
            run,
            lambda item: pod_status.running(
                item,
                address=run.address,
                started=run.started,
                is_ready=not (has_probe and self._config.has_processes),
                num_restarts=run.num_restarts,
                last=run.last,
            ),
        )
        if has_probe and run.container is not None:
            probe = run.pod["spec"]["containers"][0]["readinessProbe"]
            run.prober = Prober(
                probe,
                run.address,
                lambda ready: self._call(lambda: self._judge(run, ready)),
            )

    def _folder(self, pod: _Item) -> Path:
        metadata = pod["metadata"]
        name = f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}"
        return self._config.folder / name

    def _start(self, pod: _Item, run: _Run) -> Container:
        namespace = run.key.namespace

        def find(kind: str, name: str) -> _Item | None:
            row = self._api.store.get(
                self._api.catalog.named(kind).table, Key(namespace, name)
            )
            return row.item if row else None

        with self._api.store.lock:
            rows = self._api.store.table(("", "services")).rows.items()
            there = [row.item for key, row in rows if key.namespace == namespace]
        has_links = pod["spec"].get("enableServiceLinks", True)
        known = service_variables(there) if has_links else {}
        launch = plan_launch(pod, known, find)
        folder = self._folder(pod)
        folder.mkdir(exist_ok=True)
        run.log = self._logs[run.key] = folder / _LOG
        variables = {
            **self._config.variables(pod),
            "HOSTNAME": pod["spec"].get("hostname", run.key.name),
            **launch.variables,
        }
        for path, place in empty_folders(pod, folder).items():
            place.mkdir(exist_ok=True)
            variables = {k: v.replace(path, str(place)) for k, v in variables.items()}
        where = pod["spec"]["containers"][0].get("workingDir")
        work = folder if where is None else type(folder)(where)
        return Container(launch.command, variables, folder=work, log=run.log)

    def _has_ended(self, run: _Run) -> None:
        container = run.container
        if container is None:
            return
        self._selector.unregister(container.handle)
        run.container = None
        self._conclude(run, container.close())

    def _conclude(self, run: _Run, code: int) -> None:
        """Tells how the main process has ended, and starts it again if it is to be."""
        if run.prober is not None:
            run.prober.stop()
        reason = run.reason or ("Error" if code else "Completed")
        if code == NOT_STARTED:
            reason = "StartError"
        now = times.format_time(times.now())
        run.last = Ending(code, reason, run.started, now)
        policy = run.pod["spec"].get("restartPolicy", "Always")
        is_last = run.is_ending or run.pod_reason
        if not is_last and pod_status.is_to_restart(policy, code):
            backoff_s = self._config.backoff_s * min(2**run.num_restarts, 30)
            run.num_restarts += 1
            text = f"back-off {backoff_s:g}s restarting failed container"
            self._wait(run, "CrashLoopBackOff", text)
            self._later(backoff_s, lambda: self._launch(run))
            return
        run.is_over = True
        last = run.last
        self._write(
            run,
            lambda item: pod_status.ended(
                item, last, num_restarts=run.num_restarts, reason=run.pod_reason
            ),
        )
        uid = run.pod["metadata"]["uid"]
        self._runs.pop(uid, None)
        if run.is_ending:
            self._let_go(run.key, uid)

    def _terminate(self, run: _Run, grace_s: float) -> None:
        run.is_ending = True
        if run.container is None:
            self._runs.pop(run.pod["metadata"]["uid"], None)
            self._let_go(run.key, run.pod["metadata"]["uid"])
            return
        container = run.container
        container.terminate()
        self._later(grace_s, lambda: self._kill_late(run, container))

    def _kill_late(self, run: _Run, container: Container) -> None:
        if run.container is container:
            container.kill()

    def _overdue(self, run: _Run) -> None:
        if run.is_over or run.is_ending:
            return
        run.pod_reason = "DeadlineExceeded"
        if run.container is not None:
            run.container.kill()
        else:
            self._conclude(run, 137)

    def _finish(self, uid: str, code: int) -> None:
        run = self._runs.get(uid)
        if run is not None and not self._config.has_processes:
            self._conclude(run, code)

    def _kill(self, uid: str, reason: str) -> None:
        run = self._runs.get(uid)
        if run is None:
            return
        run.reason = reason
        if run.container is not None:
            run.container.kill()
        elif not self._config.has_processes:
            self._conclude(run, 137)

    def _judge(self, run: _Run, is_ready: bool) -> None:
        if run.container is not None:
            self._write(
                run, lambda item: pod_status.with_readiness(item, is_ready=is_ready)
            )

    def _wait(self, run: _Run, reason: str, text: str) -> None:
        self._write(
            run,
            lambda item: pod_status.waiting(
                item, reason, text, num_restarts=run.num_restarts, last=run.last
            ),
        )

    def _forget(self, run: _Run) -> None:
        run.is_over = True
        self._runs.pop(run.pod["metadata"]["uid"], None)
        if run.prober is not None:
            run.prober.stop()
        if run.container is not None:
            self._selector.unregister(run.container.handle)
            run.container.close()
            run.container = None

    def _let_go(self, key: Key, uid: str) -> None:
        options = DeleteOptions(grace_s=0, uid=uid)
        self._api.delete(self._kind, key.namespace, key.name, options)

    def _write(self, run: _Run, edit: Callable[[_Item], _Item]) -> None:
        uid = run.pod["metadata"]["uid"]

        def checked(item: _Item) -> _Item:
            return edit(item) if item["metadata"]["uid"] == uid else item

        # Gone meanwhile, which the next change tells.
        with contextlib.suppress(StatusError):
            row = self._api.change(self._kind, *run.key, checked, _WRITER)
            if row.item["metadata"]["uid"] == uid:
                run.pod = row.item
