"""The operator: looks after all jobs of a cluster."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from typing import TYPE_CHECKING, Any

from drivetrain_cloud.kubernetes.control_loop import ControlLoop
from drivetrain_cloud.kubernetes.informer import Informer
from drivetrain_cloud.kubernetes.job_connections import connect_master
from drivetrain_cloud.kubernetes.job_status import is_finished
from drivetrain_cloud.kubernetes.observed import Memory, Observed
from drivetrain_cloud.kubernetes.operator_actions import CreateObject
from drivetrain_cloud.kubernetes.pod_templates import master_name
from drivetrain_cloud.kubernetes.pods import (
    JOB_LABEL,
    is_ready,
    role_of,
    waits_for_secret,
)
from drivetrain_cloud.kubernetes.pool_share import Share, count_present, share_pool
from drivetrain_cloud.kubernetes.reconcile import begin_anew, reconcile
from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drivetrain_cloud.kubernetes.api_client import ApiClient
    from drivetrain_cloud.kubernetes.job_connections import Connector, JobConnection
    from drivetrain_cloud.kubernetes.job_secret import JobSecret
    from drivetrain_cloud.kubernetes.operator_actions import OperatorAction
    from drivetrain_cloud.spot.job_control import JobView

logger = logging.getLogger(__name__)

_Item = dict[str, Any]
_Key = tuple[str, str]


class Operator(ControlLoop):
    """Looks after all jobs of a cluster, or of a namespace; of one event loop.

    It keeps nothing that a new one could not find out: it may be killed at any moment,
    and another one goes on.

    Args:
        client: Of the API server.
        namespace: Of the jobs; all by default.
        connect: Connects to the master of a job.
        num_workers: How many jobs are looked at together.
        poll_s: How often the master of a job is asked whose workers the operator decides.
        progress_s: How often another one is asked how far it is.
        pool_s: How often it is looked who grows into idle nodes, and who yields.
    """

    def __init__(
        self,
        client: ApiClient,
        *,
        namespace: str = "",
        connect: Connector = connect_master,
        num_workers: int = 16,
        poll_s: float = 0.5,
        progress_s: float = 10.0,
        pool_s: float = 1.0,
    ) -> None:
        super().__init__(
            client,
            "ElasticJob",
            num_workers=num_workers,
            num_threads=num_workers,
            tells_all=True,
        )
        self._connect_to = connect
        self._poll_s, self._progress_s, self._pool_s = poll_s, progress_s, pool_s
        self._nonce = secrets.token_hex(4)
        self._memories: dict[_Key, Memory] = {}
        self._connections: dict[_Key, tuple[str, JobConnection | None]] = {}
        self._secrets: dict[_Key, JobSecret] = {}
        self._shares: dict[_Key, Share] = {}
        self._jobs = Informer(client, "ElasticJob", self._note_job, namespace=namespace)
        self._pods, self._services = (
            Informer(
                client,
                kind,
                self._note_owned,
                namespace=namespace,
                selector=JOB_LABEL,
                index=_job_of,
            )
            for kind in ("Pod", "Service")
        )
        self._nodes = Informer(client, "Node", self._note_node)
        self._informers |= {
            "ElasticJob": self._jobs,
            "Pod": self._pods,
            "Service": self._services,
            "Node": self._nodes,
        }

    async def run(self) -> None:
        """Looks after jobs until it is cancelled."""
        try:
            await super().run()
        finally:
            for _, connection in self._connections.values():
                if connection is not None:
                    connection.close()

    def _begin(self, group: asyncio.TaskGroup) -> None:
        num_jobs = len(list(self._jobs.items()))
        logger.info("the operator looks after %d jobs", num_jobs)
        group.create_task(self._watch_pool())

    # ---- what has changed ----

    def _note_job(self, item: _Item) -> None:
        self.queue.add(_key(item))

    def _note_owned(self, item: _Item) -> None:
        data = item["metadata"]
        if name := (data.get("labels") or {}).get(JOB_LABEL):
            self.queue.add((data["namespace"], name))

    def _note_node(self, item: _Item) -> None:
        # Nodes say that they are alive all the time; only their end matters here.
        name = item["metadata"]["name"]
        if not (item.get("spec") or {}).get("taints"):
            return
        for pod in self._pods.items():
            if pod["spec"].get("nodeName") == name:
                self._note_owned(pod)

    async def _watch_pool(self) -> None:
        said = ""
        while True:
            try:
                shares = share_pool(
                    list(self._jobs.items()), self._pods, list(self._nodes.items())
                )
            except Exception as error:
                # Nobody grows meanwhile, and all jobs are looked after as before.
                if said != repr(error):
                    logger.exception("nobody can say who grows")
                said, shares = repr(error), {}
            for key in shares.keys() | self._shares.keys():
                if shares.get(key) != self._shares.get(key):
                    self.queue.add(key)
            self._shares = shares
            await asyncio.sleep(self._pool_s)

    # ---- one job ----

    async def _reconcile(self, key: _Key) -> float:
        """Looks at a job and does what is to be done; returns when to look again."""
        job = self._jobs.get(*key)
        if job is None:
            self._forget(key)
            return math.inf
        view, has_control, master_error = await self._look(key, job)
        now_s = time.monotonic()
        pods = self._pods.those("/".join(key))
        names = {pod["spec"].get("nodeName") or "" for pod in pods} - {""}
        nodes = {name: self._nodes.get("", name) for name in names}
        share = self._shares.get(key, Share()).after(count_present(pods))
        known = self._secrets.get(key)
        uid = self._connections.get(key, ("", None))[0]
        has_secret = known is not None and uid == job["metadata"]["uid"]
        observed = Observed(
            job=job,
            pods=tuple(pods),
            service=self._services.get(key[0], master_name(job)),
            nodes={name: node for name, node in nodes.items() if node is not None},
            has_secret=has_secret,
            address=known.address if known is not None and has_secret else "",
            view=view,
            has_control=has_control,
            master_error=master_error,
            memory=self._memories.get(key, Memory(nonce=self._nonce)),
            offered=share.offered,
            wanted_by_others=share.wanted,
            is_held=share.is_held,
            wall_s=self._client.server_time().timestamp(),
        )
        plan = reconcile(observed, now_s)
        connection = self._connections.get(key, ("", None))[1]
        control = (
            connection.control if connection is not None and view is not None else None
        )
        if known is not None and has_secret and _needs_secret(plan.actions, pods):
            await self._carrier.keep_secret(job, known)
        secret = await self._carrier.carry_out(job, plan.actions, control)
        if secret is not None:
            self._connect(key, job, secret)
            if secret.is_new:
                await self._carrier.carry_out(job, begin_anew(job, pods), None)
        self._memories[key] = plan.memory
        return min(plan.look_again_s, now_s + self._next_poll_s(job, has_control))

    def _next_poll_s(self, job: _Item, has_control: bool) -> float:
        if is_finished(job) or not has_control:
            return math.inf
        spec = job["spec"]
        decided = (spec.get("spot") or {}).get("enabled") or spec.get("nodeUnit", 1) > 1
        is_busy = (job.get("status") or {}).get("phase") in {"Scaling", "Waiting"}
        return self._poll_s if decided or is_busy else self._progress_s

    async def _look(self, key: _Key, job: _Item) -> tuple[JobView | None, bool, str]:
        """Asks the master of a job, if there is one; says why it does not answer."""
        uid, connection = self._connections.get(key, ("", None))
        if uid != job["metadata"]["uid"]:
            return None, True, ""
        if connection is None:
            return None, False, ""
        masters = [p for p in self._pods.those("/".join(key)) if role_of(p) == "master"]
        if not any(is_ready(pod) for pod in masters):
            return None, True, ""
        loop = asyncio.get_running_loop()
        try:
            view = await loop.run_in_executor(self._executor, connection.control.look)
        except DistributedError as error:
            logger.info("the master of %s/%s does not answer: %s", *key, error)
            return None, True, f"it does not answer: {error}"
        return view, True, ""

    def _connect(self, key: _Key, job: _Item, secret: JobSecret) -> None:
        self._disconnect(key)
        self._connections[key] = (job["metadata"]["uid"], self._connect_to(job, secret))
        self._secrets[key] = secret
        self.queue.add(key)

    def _disconnect(self, key: _Key) -> None:
        _, connection = self._connections.pop(key, ("", None))
        self._secrets.pop(key, None)
        if connection is not None:
            connection.close()

    def _forget(self, key: _Key) -> None:
        self._disconnect(key)
        self._memories.pop(key, None)
        self._shares.pop(key, None)
        self._told.pop(key, None)
        self.queue.forget(key)


def _key(item: _Item) -> _Key:
    return item["metadata"]["namespace"], item["metadata"]["name"]


def _needs_secret(actions: Iterable[OperatorAction], pods: Iterable[_Item]) -> bool:
    makes = any(isinstance(one, CreateObject) and one.kind == "Pod" for one in actions)
    return makes or any(waits_for_secret(pod) for pod in pods)


def _job_of(item: _Item) -> str:
    data = item["metadata"]
    return f"{data['namespace']}/{(data.get('labels') or {}).get(JOB_LABEL, '')}"
