"""The kubelets of all nodes: run what pods say, and tell what has become of it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from drivetrain_cluster_double import environment, launcher, pod_status, times
from drivetrain_cluster_double.api import Api, DeleteOptions
from drivetrain_cluster_double.errors import StatusError
from drivetrain_cluster_double.loop_thread import LoopThread
from drivetrain_cluster_double.pod_status import Ending
from drivetrain_cluster_double.store import Change, Key
from drivetrain_core import processes

logger = logging.getLogger(__name__)

_Item = dict[str, Any]
_RETRY_S, _MOST_BACKOFFS = 0.2, 30


@dataclass(kw_only=True, slots=True, eq=False)
class _Run:
    """A pod on a node."""

    key: Key
    pod: _Item
    address: str
    task: asyncio.Task[None] | None = None
    process: asyncio.subprocess.Process | None = None
    # Of a pod that only says that it runs: what it ends with.
    code: asyncio.Future[int] | None = None
    num_restarts: int = 0
    last: Ending | None = None
    reason: str = ""
    is_ending: bool = False


class Kubelet:
    """Runs pods; all but `log` is used in its thread.

    Args:
        api: Of the cluster.
        thread: In which it works.
        folder: Where each pod gets a folder of its own.
        has_processes: Whether pods are processes; they only say that they run otherwise.
        backoff_s: How long a process that has ended waits to be started again, the first
            time; twice as long each time, up to thirty times that.
        variables: Returns what a pod's processes get in their environment, so that they
            reach the API.

    Attributes:
        dead_nodes: Those on which nothing runs.
    """

    def __init__(
        self,
        api: Api,
        thread: LoopThread,
        *,
        folder: Path,
        has_processes: bool = True,
        backoff_s: float = 10.0,
        variables: Callable[[_Item], dict[str, str]] = lambda _: {},
    ) -> None:
        self._api, self._thread, self._folder = api, thread, folder
        self._has_processes, self._backoff_s = has_processes, backoff_s
        self._variables = variables
        self._kind = api.catalog.named("Pod")
        self._runs: dict[str, _Run] = {}
        self._logs: dict[Key, Path] = {}
        self.dead_nodes: set[str] = set()
        self._addresses = itertools.count()
        self.stop = api.store.subscribe(self._note)

    def log(self, namespace: str, name: str) -> bytes:
        """Returns what a pod has written, also of one that is gone.

        One that has not begun has written nothing, whoever had its name before.
        """
        key = Key(namespace, name)
        path, there = self._logs.get(key), self._api.store.get(self._kind.table, key)
        if there and path != self._log_of(there.item):
            return b""
        return path.read_bytes() if path and path.exists() else b""

    def _note(self, change: Change) -> None:
        if change.table == ("", "pods"):
            self._thread.call(self._follow, change)

    # In the thread

    def _follow(self, change: Change) -> None:
        item, metadata = change.after.item, change.after.item["metadata"]
        run, node = self._runs.get(metadata["uid"]), item["spec"].get("nodeName")
        is_dead = node in self.dead_nodes
        if change.is_deleted:
            self._forget(run)
        elif is_dead and self._api.store.get(("", "nodes"), Key("", node)) is not None:
            # Nobody is there to act; but without the node, the pod goes too.
            return
        elif run is not None:
            run.pod = item
            if "deletionTimestamp" in metadata and not run.is_ending:
                self._terminate(run, metadata["deletionGracePeriodSeconds"])
        elif is_dead or (node and "deletionTimestamp" in metadata):
            self._let_go(change.key, metadata["uid"])
        elif node and item["status"]["phase"] not in {"Succeeded", "Failed"}:
            # It may have run and ended since.
            there = self._api.store.get(self._kind.table, change.key)
            if there is not None and there.revision == change.revision:
                self._admit(change.key, item)

    def _admit(self, key: Key, pod: _Item) -> None:
        number = next(self._addresses)
        address = f"127.{10 + number // 62_500 % 200}.{number // 250 % 250}.{number % 250 + 1}"
        run = self._runs[pod["metadata"]["uid"]] = _Run(
            key=key, pod=pod, address=address
        )
        run.task = self._thread.run(self._live(run))

    async def _live(self, run: _Run) -> None:
        """Runs a pod until it has ended for good."""
        while True:
            started, run.reason = times.format_time(), ""
            once = self._run_process if self._has_processes else self._pretend
            code = await once(run, started)
            reason = run.reason or ("Error" if code else "Completed")
            reason = "StartError" if code == launcher.NOT_STARTED else reason
            run.last = Ending(code, reason, started, times.format_time())
            policy = run.pod["spec"]["restartPolicy"]
            if run.is_ending or not pod_status.is_to_restart(policy, code):
                break
            wait_s = self._backoff_s * min(2**run.num_restarts, _MOST_BACKOFFS)
            run.num_restarts += 1
            text = f"back-off {wait_s:g}s restarting failed container"
            self._write(run, pod_status.waiting, "CrashLoopBackOff", text)
            await asyncio.sleep(wait_s)
        self._write(run, pod_status.ended)
        self._runs.pop(run.pod["metadata"]["uid"], None)
        if run.is_ending:
            self._let_go(run.key, run.pod["metadata"]["uid"])

    async def _pretend(self, run: _Run, started: str) -> int:
        run.code = asyncio.get_running_loop().create_future()
        self._write(run, pod_status.running, run.address, started, is_ready=True)
        return await run.code

    async def _run_process(self, run: _Run, started: str) -> int:
        """Runs the main process of a pod once; returns what it ended with."""
        while run.process is None:
            try:
                run.process = await self._start(run)
            except (environment.LaunchError, OSError) as error:
                self._write(
                    run, pod_status.waiting, "CreateContainerConfigError", str(error)
                )
                await asyncio.sleep(_RETRY_S)
        probe = run.pod["spec"]["containers"][0].get("readinessProbe")
        self._write(run, pod_status.running, run.address, started, is_ready=not probe)
        asking = self._thread.run(self._ask(run, probe)) if probe else None
        try:
            code = await run.process.wait()
        finally:
            if asking is not None:
                asking.cancel()
            if run.process.returncode is None:
                run.process.send_signal(launcher.KILL)
                await run.process.wait()
            run.process = None
        # It was killed before it could do anything itself.
        code = -signal.SIGKILL if code == -launcher.KILL else code
        return 128 - code if code < 0 else code

    async def _start(self, run: _Run) -> asyncio.subprocess.Process:
        """Starts a command that leaves nothing behind when it, or this process, ends."""
        namespace, store = run.key.namespace, self._api.store

        def find(name: str) -> _Item | None:
            row = store.get(("", "secrets"), Key(namespace, name))
            return row.item if row else None

        with store.lock:
            rows = store.table(("", "services")).rows.items()
            services = [row.item for key, row in rows if key.namespace == namespace]
        # The pod learns its address before its process begins.
        pod = {**run.pod, "status": {**run.pod["status"], "podIP": run.address}}
        has_links = pod["spec"]["enableServiceLinks"]
        launch = environment.plan_launch(
            pod, environment.service_variables(services) if has_links else {}, find
        )
        log = self._logs[run.key] = self._log_of(pod)
        log.parent.mkdir(exist_ok=True)
        programs = [
            str(Path(sys.executable).parent),
            os.environ.get("PATH", os.defpath),
        ]
        variables = {
            "PATH": os.pathsep.join(programs),
            **self._variables(pod),
            "HOSTNAME": pod["spec"].get("hostname", run.key.name),
            **launch.variables,
        }
        container = pod["spec"]["containers"][0]
        empty = {v["name"] for v in pod["spec"].get("volumes") or () if "emptyDir" in v}
        for one in container.get("volumeMounts") or ():
            # An empty volume is a folder, of which the variables are told in its place.
            if one["name"] in empty:
                place = log.parent / f"volume-{one['name']}"
                place.mkdir(exist_ok=True)
                path = one["mountPath"]
                variables = {
                    k: v.replace(path, str(place)) for k, v in variables.items()
                }
        # Isolated, and without what site-packages start, since it has to be quick.
        starter = [sys.executable, "-I", "-S", launcher.__file__, processes.__file__]
        libraries = Path(psutil.__file__).parents[1]
        with log.open("ab") as output:
            return await asyncio.create_subprocess_exec(
                *(*starter, str(libraries), str(os.getpid()), *launch.command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=container.get("workingDir", log.parent),
                env={**os.environ, **variables},
                start_new_session=True,
            )

    async def _ask(self, run: _Run, probe: _Item) -> None:
        """Asks again and again whether somebody listens on a pod's port."""
        is_ready, num_same = False, 0
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        while True:
            line = asyncio.open_connection(run.address, int(probe["tcpSocket"]["port"]))
            try:
                _, writer = await asyncio.wait_for(line, probe.get("timeoutSeconds", 1))
                writer.transport.abort()
                found = True
            except OSError:
                found = False
            num_same = num_same + 1 if found != is_ready else 0
            limit = ("failureThreshold", 3) if is_ready else ("successThreshold", 1)
            if num_same >= probe.get(*limit):
                is_ready, num_same = found, 0
                self._write(run, pod_status.with_readiness, is_ready=is_ready)
            await asyncio.sleep(probe.get("periodSeconds", 10))

    def _terminate(self, run: _Run, grace_s: float) -> None:
        run.is_ending = True
        if run.process is None:
            self._forget(run)
            self._let_go(run.key, run.pod["metadata"]["uid"])
            return
        run.process.send_signal(signal.SIGTERM)
        self._thread.loop.call_later(grace_s, self.kill, run.pod["metadata"]["uid"], "")

    def finish(self, uid: str, code: int) -> None:
        """Lets a pod's main process end by itself, in a cluster without processes."""
        run = self._runs.get(uid)
        if run is not None and run.code is not None and not run.code.done():
            run.code.set_result(code)

    def kill(self, uid: str, reason: str) -> None:
        """Kills a pod's processes; the reason stands in its status."""
        run = self._runs.get(uid)
        if run is None:
            return
        run.reason = reason
        if run.process is not None:
            run.process.send_signal(launcher.KILL)
        self.finish(uid, 128 + signal.SIGKILL)

    def kill_node(self, node: str) -> None:
        """Kills the processes of all pods of a node; nobody is told."""
        self.dead_nodes.add(node)
        for run in list(self._runs.values()):
            if run.pod["spec"]["nodeName"] == node:
                self._forget(run)

    def _forget(self, run: _Run | None) -> None:
        """Kills what runs of a pod, and writes nothing of it any more."""
        if run is not None and run.task is not None:
            self._runs.pop(run.pod["metadata"]["uid"])
            run.task.cancel()

    def _log_of(self, pod: _Item) -> Path:
        names = (pod["metadata"][key] for key in ("namespace", "name", "uid"))
        return self._folder / "_".join(names) / "log.txt"

    def _let_go(self, key: Key, uid: str) -> None:
        options = DeleteOptions(grace_s=0, uid=uid)
        # It is gone, or another one has its name.
        with contextlib.suppress(StatusError):
            self._api.delete(self._kind, key.namespace, key.name, options)

    def _write(
        self, run: _Run, edit: Callable[..., _Item], *what: str, **more: bool
    ) -> None:
        uid = run.pod["metadata"]["uid"]

        def checked(item: _Item) -> _Item:
            if item["metadata"]["uid"] != uid:
                return item
            return edit(item, *what, run.num_restarts, run.last, **more)

        # Gone meanwhile, which the next change tells.
        with contextlib.suppress(StatusError):
            row = self._api.change(self._kind, *run.key, checked)
            if row.item["metadata"]["uid"] == uid:
                run.pod = row.item
