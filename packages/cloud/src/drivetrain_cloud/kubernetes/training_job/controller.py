"""Looks after the TrainingJobs of a cluster, beside the operator of ElasticJobs."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from drivetrain_cloud.kubernetes.api_client import ApiError
from drivetrain_cloud.kubernetes.carry_out import Carrier, StrangerError
from drivetrain_cloud.kubernetes.informer import Informer
from drivetrain_cloud.kubernetes.operator_actions import SetStatus, TellEvent
from drivetrain_cloud.kubernetes.training_job.look_after import (
    TrainingObserved,
    look_after,
)
from drivetrain_cloud.kubernetes.training_job.scaling import (
    current_scaler,
    end_scaler,
)
from drivetrain_cloud.kubernetes.training_job.training_status import is_like
from drivetrain_cloud.kubernetes.training_job.translate import TRAINING_JOB_LABEL
from drivetrain_cloud.kubernetes.work_queue import WorkQueue
from drivetrain_core import DistributedError

if TYPE_CHECKING:
    from drivetrain_cloud.kubernetes.api_client import ApiClient

__all__ = ["TrainingJobController"]

logger = logging.getLogger(__name__)

_Item = dict[str, Any]
_Key = tuple[str, str]
_NOT_FOUND = 404


class TrainingJobController:
    """Makes ElasticJobs of TrainingJobs, and scales them; of one event loop.

    It keeps nothing that a new one could not find out, and touches no pod: an `Operator`
    runs beside it.

    Args:
        client: Of the API server.
        namespace: Of the jobs; all by default.
        num_workers: How many jobs are looked at together.

    Attributes:
        num_reconciled: How often a job was looked at.
    """

    def __init__(
        self, client: ApiClient, *, namespace: str = "", num_workers: int = 4
    ) -> None:
        self._client = client
        self._num_workers = num_workers
        self._queue: WorkQueue[_Key] = WorkQueue()
        self._told: dict[_Key, str] = {}
        self.num_reconciled = 0

        def informer(kind: str, changed: Any, **options: Any) -> Informer:
            return Informer(client, kind, changed, namespace=namespace, **options)

        label = {"selector": TRAINING_JOB_LABEL, "index": _job_of}
        scaled = {"index": _scaled_by}
        self._informers = {
            "TrainingJob": informer("TrainingJob", self._note_job),
            "ScaleIn": informer("ScaleIn", self._note_scaler, **scaled),
            "ScaleOut": informer("ScaleOut", self._note_scaler, **scaled),
            "ElasticJob": informer("ElasticJob", self._note_owned, **label),
            "Pod": informer("Pod", self._note_owned, **label),
        }
        self._executor = ThreadPoolExecutor(1, "training-jobs")
        self._carrier = Carrier(client, self._informers, self._executor)

    async def run(self) -> None:
        """Looks after jobs until it is cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for informer in self._informers.values():
                    group.create_task(informer.run())
                for informer in self._informers.values():
                    await informer.is_synced.wait()
                for _ in range(self._num_workers):
                    group.create_task(self._work())
        finally:
            self._executor.shutdown(wait=False, cancel_futures=True)

    # ---- what has changed ----

    def _note_job(self, item: _Item) -> None:
        self._queue.add((item["metadata"]["namespace"], item["metadata"]["name"]))

    def _note_scaler(self, item: _Item) -> None:
        self._queue.add(
            (item["metadata"]["namespace"], item["spec"]["selector"]["name"])
        )

    def _note_owned(self, item: _Item) -> None:
        data = item["metadata"]
        self._queue.add((data["namespace"], data["labels"][TRAINING_JOB_LABEL]))

    # ---- one job ----

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            try:
                await self._reconcile(key)
            except DistributedError as error:
                least_s = error.retry_after_s if isinstance(error, ApiError) else 0.0
                is_race = isinstance(error, ApiError) and error.reason == "Conflict"
                level = logging.DEBUG if is_race else logging.WARNING
                logger.log(level, "%s/%s is looked at again after: %s", *key, error)
                await self._tell(key, error)
                self._queue.retry(key, least_s)
            except Exception:
                # A job that nobody can make sense of must not end all others'.
                logger.exception("%s/%s cannot be looked after", *key)
                self._queue.retry(key, 1.0)
            else:
                self._queue.forget(key)
            finally:
                self._queue.done(key)

    async def _reconcile(self, key: _Key) -> None:
        self.num_reconciled += 1
        index = "/".join(key)
        scalers = [
            one
            for kind in ("ScaleIn", "ScaleOut")
            for one in self._informers[kind].those(index)
        ]
        job = self._informers["TrainingJob"].get(*key)
        if job is None:
            self._told.pop(key, None)
            job = await self._find(key, scalers)
        if job is None:
            return
        observed = TrainingObserved(
            job=job,
            elastic=self._informers["ElasticJob"].get(*key),
            pods=tuple(self._informers["Pod"].those(index)),
            scalers=tuple(scalers),
            now=self._client.server_time().strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        for subject, action in look_after(observed):
            await self._carrier.carry_out(subject, [action], None)

    async def _find(self, key: _Key, scalers: list[_Item]) -> _Item | None:
        """Returns a job that is not known here; ends what scales one that is not there.

        Of two kinds nobody knows what was told first: the job may have been there before
        what scales it.
        """
        left = [one for one in scalers if current_scaler([one])[0] is not None]
        if not left:
            return None
        try:
            return await self._client.get("TrainingJob", *key)
        except ApiError as error:
            if error.status != _NOT_FOUND:
                raise
        message = f"there is no TrainingJob {key[1]} in the namespace {key[0]}"
        for one in left:
            status = end_scaler(one, "NoSuchJob", message).status
            if not is_like(one.get("status") or {}, status):
                await self._carrier.carry_out(one, [SetStatus(status=status)], None)
        return None

    async def _tell(self, key: _Key, error: DistributedError) -> None:
        """Tells people once what the operator cannot get past without them."""
        job = self._informers["TrainingJob"].get(*key)
        needs_somebody = isinstance(error, StrangerError) or (
            isinstance(error, ApiError) and error.status in {400, 403, 422}
        )
        if job is None or not needs_somebody or self._told.get(key) == str(error):
            return
        self._told[key] = str(error)
        event = TellEvent(reason="CannotReconcile", note=str(error), is_warning=True)
        await self._carrier.carry_out(job, [event], None)


def _job_of(item: _Item) -> str:
    data = item["metadata"]
    label = (data.get("labels") or {}).get(TRAINING_JOB_LABEL, "")
    return f"{data['namespace']}/{label}"


def _scaled_by(item: _Item) -> str:
    return f"{item['metadata']['namespace']}/{item['spec']['selector']['name']}"
