"""Looks after the TrainingJobs of a cluster, beside the operator of ElasticJobs."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from drivetrain_cloud.kubernetes.api_client import ApiError
from drivetrain_cloud.kubernetes.carry_out import is_for_good
from drivetrain_cloud.kubernetes.control_loop import ControlLoop
from drivetrain_cloud.kubernetes.informer import Informer
from drivetrain_cloud.kubernetes.job_status import is_like
from drivetrain_cloud.kubernetes.operator_actions import SetStatus
from drivetrain_cloud.kubernetes.training_job.look_after import (
    TrainingObserved,
    look_after,
)
from drivetrain_cloud.kubernetes.training_job.scaling import (
    current_scaler,
    end_scaler,
    is_scaled,
)
from drivetrain_cloud.kubernetes.training_job.translate import TRAINING_JOB_LABEL

if TYPE_CHECKING:
    from drivetrain_cloud.kubernetes.api_client import ApiClient

_Item = dict[str, Any]
_Key = tuple[str, str]
_NOT_FOUND = 404


class TrainingJobController(ControlLoop):
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
        super().__init__(client, "TrainingJob", num_workers=num_workers)
        self.num_reconciled = 0

        def informer(kind: str, changed: Any, **options: Any) -> Informer:
            return Informer(client, kind, changed, namespace=namespace, **options)

        label = {"selector": TRAINING_JOB_LABEL, "index": _job_of}
        scaled = {"index": _scaled_by}
        self._informers |= {
            "TrainingJob": informer("TrainingJob", self._note_job),
            "ScaleIn": informer("ScaleIn", self._note_scaler, **scaled),
            "ScaleOut": informer("ScaleOut", self._note_scaler, **scaled),
            "ElasticJob": informer("ElasticJob", self._note_owned, **label),
            "Pod": informer("Pod", self._note_owned, **label),
        }

    # ---- what has changed ----

    def _note_job(self, item: _Item) -> None:
        self.queue.add((item["metadata"]["namespace"], item["metadata"]["name"]))

    def _note_scaler(self, item: _Item) -> None:
        self.queue.add(
            (item["metadata"]["namespace"], item["spec"]["selector"]["name"])
        )

    def _note_owned(self, item: _Item) -> None:
        data = item["metadata"]
        self.queue.add((data["namespace"], data["labels"][TRAINING_JOB_LABEL]))

    # ---- one job ----

    async def _reconcile(self, key: _Key) -> float:
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
            return math.inf
        observed = TrainingObserved(
            job=job,
            elastic=self._informers["ElasticJob"].get(*key),
            pods=tuple(self._informers["Pod"].those(index)),
            scalers=tuple(scalers),
            now=self._client.server_time().strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        refused = None
        for subject, action in look_after(observed):
            if refused is not None and not isinstance(action, SetStatus):
                continue
            try:
                await self._carrier.carry_out(subject, [action], None)
            except ApiError as error:
                if not is_for_good(error):
                    raise
                refused = refused or error
        if refused is not None:
            raise refused
        # What has a limit is looked at again, whatever happens meanwhile.
        limited = any(
            one["spec"].get("timeout") and not is_scaled(one) for one in scalers
        )
        return time.monotonic() + 1.0 if limited else math.inf

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


def _job_of(item: _Item) -> str:
    data = item["metadata"]
    label = (data.get("labels") or {}).get(TRAINING_JOB_LABEL, "")
    return f"{data['namespace']}/{label}"


def _scaled_by(item: _Item) -> str:
    return f"{item['metadata']['namespace']}/{item['spec']['selector']['name']}"
