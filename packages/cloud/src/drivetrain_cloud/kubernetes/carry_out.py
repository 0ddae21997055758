"""Carries out what a reconciliation asks for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from drivetrain_cloud.kubernetes.api_client import ApiError
from drivetrain_cloud.kubernetes.job_secret import make_secret, read_secret, secret_item
from drivetrain_cloud.kubernetes.job_status import is_like
from drivetrain_cloud.kubernetes.operator_actions import (
    AdmitWorkers,
    CreateObject,
    DeleteObject,
    EnsureSecret,
    LetLeave,
    PatchObject,
    SaveState,
    SetStatus,
    StopTraining,
    TellEvent,
    TrainingRequest,
)
from drivetrain_cloud.kubernetes.pod_templates import master_name, owner_of
from drivetrain_cloud.kubernetes.pods import JOB_LABEL, ROLE_LABEL, condition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from concurrent.futures import Executor

    from drivetrain_cloud.kubernetes.api_client import ApiClient
    from drivetrain_cloud.kubernetes.informer import Informer
    from drivetrain_cloud.kubernetes.job_secret import JobSecret
    from drivetrain_cloud.kubernetes.operator_actions import OperatorAction
    from drivetrain_cloud.spot.job_control import JobControl

logger = logging.getLogger(__name__)

_NOT_FOUND, _CONFLICT, _INVALID = 404, 409, 422
_COMPONENT = "drivetrain-operator"
_Item = dict[str, Any]


class StrangerError(ApiError):
    """An object that a job needs is there, and is not the job's."""


class Carrier:
    """Carries out actions, one after the other; of one event loop.

    Args:
        client: Of the API server.
        informers: Copies of objects, by kind, which are told of what is written.
        executor: Where calls of masters wait.
    """

    def __init__(
        self,
        client: ApiClient,
        informers: Mapping[str, Informer],
        executor: Executor,
    ) -> None:
        self._client = client
        self._informers = informers
        self._executor = executor

    async def carry_out(
        self,
        job: _Item,
        actions: Iterable[OperatorAction],
        control: JobControl | None,
    ) -> JobSecret | None:
        """Carries out what is asked for a job; every action may be repeated.

        Args:
            job: The job.
            actions: What is asked for, in this order.
            control: Of its training; None where that does not answer.

        Returns:
            Its secret, if that was asked for.

        Raises:
            ApiError: A call was refused. If that is for good, the job's status was
                written all the same, with a condition `Reconciled` that says why;
                else what comes after it was not done.
            DistributedError: The job's master does not answer.
        """
        secret, status = None, None
        refused: dict[str, ApiError] = {}
        for action in actions:
            what = type(action).__name__ + getattr(action, "kind", "")
            if what in refused or (refused and isinstance(action, TellEvent)):
                continue
            try:
                match action:
                    case EnsureSecret():
                        secret = await self._ensure_secret(job, action)
                    case CreateObject():
                        await self._create(job, action)
                    case DeleteObject():
                        await self._delete(action)
                    case PatchObject():
                        await self._patch(action)
                    case SetStatus():
                        status = action.status
                        if not refused:
                            await self._set_status(job, status)
                    case TellEvent():
                        await self._tell(job, action)
                    case TrainingRequest() if control is not None:
                        logger.info("%s: %s", type(action).__name__, action.reason)
                        loop = asyncio.get_running_loop()
                        await loop.run_in_executor(
                            self._executor, _ask, control, action
                        )
            except ApiError as error:
                if not is_for_good(error):
                    raise
                refused[what] = error
        if not refused:
            return secret
        refusal = next(iter(refused.values()))
        if job["kind"] == "ElasticJob":
            before = job.get("status") or {}
            status = refused_status(before if status is None else status, refusal)
            if not is_like(before, status):
                await self._set_status(job, status)
        raise refusal

    async def _create(self, job: _Item, action: CreateObject) -> None:
        name = action.item["metadata"]["name"]
        made, is_new = await self._make(action.kind, action.item)
        spec = action.item.get("spec")
        if action.is_kept and not is_new and made.get("spec") != spec:
            where = (action.kind, action.item["metadata"]["namespace"], name)
            made = await self._client.patch(*where, {"spec": spec})
        owners = made["metadata"].get("ownerReferences") or ()
        if is_new:
            logger.info("made %s %s", action.kind, name)
        elif all(one["uid"] != job["metadata"]["uid"] for one in owners):
            message = (
                f"{action.kind} {name} is there and does not belong to the job: delete "
                "it, or name the job differently"
            )
            raise StrangerError(message, status=_CONFLICT)
        self._put(action.kind, made)

    async def _make(self, kind: str, item: _Item) -> tuple[_Item, bool]:
        """Makes an object; returns it, or that of its name, and whether it is new."""
        try:
            return await self._client.create(kind, item), True
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
        data = item["metadata"]
        return await self._client.get(kind, data["namespace"], data["name"]), False

    async def _delete(self, action: DeleteObject) -> None:
        try:
            answer = await self._client.delete(
                action.kind,
                action.namespace,
                action.name,
                uid=action.uid,
                is_forced=action.is_forced,
            )
        except ApiError as error:
            if error.status not in {_NOT_FOUND, _CONFLICT}:
                raise
            if error.status == _CONFLICT and await self._is_there(action):
                raise
            informer = self._informers.get(action.kind)
            known = informer.get(action.namespace, action.name) if informer else None
            if informer and known and known["metadata"]["uid"] == action.uid:
                informer.forget(known)
            return
        logger.info("deleted %s %s: %s", action.kind, action.name, action.reason)
        if answer.get("metadata", {}).get("deletionTimestamp"):
            self._put(action.kind, answer)

    async def _is_there(self, action: DeleteObject) -> bool:
        """Whether a refusal means anything else than that another one has its name."""
        with _AllowMissing():
            item = await self._client.get(action.kind, action.namespace, action.name)
            return bool(item["metadata"]["uid"] == action.uid)
        return False

    async def _patch(self, action: PatchObject) -> None:
        with _AllowMissing():
            item = await self._client.patch(
                action.kind, action.namespace, action.name, action.patch, action.sub
            )
            self._put(action.kind, item)

    async def _set_status(self, job: _Item, status: _Item) -> None:
        before, data = job.get("status") or {}, job["metadata"]
        status = _with_times(before, status, self._now(), data)
        data = {
            key: job["metadata"][key]
            for key in ("name", "namespace", "resourceVersion")
        }
        item = {
            "apiVersion": job["apiVersion"],
            "kind": job["kind"],
            "metadata": data,
            "spec": job["spec"],
            "status": status,
        }
        with _AllowMissing():
            item = await self._client.update(job["kind"], item, "status")
            self._put(job["kind"], item)

    async def _tell(self, job: _Item, action: TellEvent) -> None:
        data = job["metadata"]
        now = self._client.server_time().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        logger.info("%s/%s: %s", data["namespace"], data["name"], action.note)
        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": f"{data['name']}.{secrets.token_hex(8)}",
                "namespace": data["namespace"],
            },
            "eventTime": now,
            "type": "Warning" if action.is_warning else "Normal",
            "reason": action.reason,
            "note": action.note[:1024],
            "action": action.reason,
            "reportingController": f"drivetrain.dev/{_COMPONENT}",
            "reportingInstance": _COMPONENT,
            "regarding": {
                "apiVersion": job["apiVersion"],
                "kind": job["kind"],
                "name": data["name"],
                "namespace": data["namespace"],
                "uid": data["uid"],
            },
        }
        try:
            await self._client.create("Event", event)
        except ApiError as error:
            # Nothing depends on what people are told.
            logger.info("an event was not taken: %s", error)

    async def _ensure_secret(self, job: _Item, action: EnsureSecret) -> JobSecret:
        namespace = job["metadata"]["namespace"]
        wanted = make_secret(action.name, namespace, action.address, action.owner)
        item, is_new = await self._make("Secret", wanted)
        owners = item["metadata"].get("ownerReferences") or ()
        found = None
        if any(one["uid"] == action.owner["uid"] for one in owners):
            # Somebody may have written into it.
            with contextlib.suppress(KeyError, ValueError):
                found = read_secret(item)
        if found is None:
            message = (
                f"the secret {action.name} is there and is not for this job: delete it"
            )
            raise StrangerError(message, status=_CONFLICT)
        return replace(found, is_new=is_new)

    async def keep_secret(self, job: _Item, secret: JobSecret) -> None:
        """Writes a job's secret again if it was deleted: pods do not begin without it.

        Args:
            job: The job.
            secret: As it was.

        Raises:
            ApiError: A call was refused.
        """
        namespace, name = job["metadata"]["namespace"], master_name(job)
        with _AllowMissing():
            await self._client.get("Secret", namespace, name)
            return
        item = secret_item(name, namespace, secret.data, owner_of(job))
        await self._client.create("Secret", item)
        note = f"the secret {name} was deleted: it is there again, as it was"
        event = TellEvent(reason="SecretDeleted", note=note, is_warning=True)
        await self._tell(job, event)

    def _put(self, kind: str, item: _Item) -> None:
        informer = self._informers.get(kind)
        labels = item["metadata"].get("labels") or {}
        is_watched = kind not in {"Pod", "Service"} or {JOB_LABEL, ROLE_LABEL} <= set(
            labels
        )
        if informer is not None and is_watched:
            informer.put(item)

    def _now(self) -> str:
        return self._client.server_time().strftime("%Y-%m-%dT%H:%M:%SZ")


class _AllowMissing:
    """Ends a block, and nothing else, if what it calls for is not there."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> bool:
        return isinstance(error, ApiError) and error.status == _NOT_FOUND


def is_for_good(error: ApiError) -> bool:
    """Whether another call gets the same answer, until somebody changes something."""
    return error.status in {400, 403, 404, 409, 422} and error.reason != "Conflict"


def refused_status(status: _Item, error: ApiError) -> _Item:
    """Returns a status that says what the API server has refused.

    Args:
        status: As it would be without that.
        error: What the server says.
    """
    kept = [c for c in status.get("conditions") or () if c["type"] != "Reconciled"]
    reason = error.reason or "Refused"
    row = condition("Reconciled", reason, str(error)[:1024], holds=False)
    return {"phase": "Pending", **status, "conditions": [*kept, row]}


def _ask(control: JobControl, action: TrainingRequest) -> None:
    match action:
        case AdmitWorkers():
            control.admit(action.pods, action.reason)
        case SaveState():
            control.save(action.request, action.within_s, action.reason)
        case LetLeave():
            control.leave(action.pod, action.within_s, action.reason)
        case StopTraining():
            control.stop(action.reason, action.exit_code)


def _with_times(before: _Item, status: _Item, now: str, data: _Item) -> _Item:
    """Returns a status with the times at which what it says became so."""
    known = {one["type"]: one for one in before.get("conditions") or ()}
    rows = []
    for one in status.get("conditions") or ():
        was = known.get(one["type"])
        same = was is not None and was["status"] == one["status"]
        rows.append(
            {
                **one,
                "observedGeneration": data.get("generation", 0),
                "lastTransitionTime": (was.get("lastTransitionTime") if same else now)
                if was
                else now,
            }
        )
    status = {**status, "conditions": rows}
    if status.get("phase") == "Running":
        status.setdefault("startTime", now)
    if status.get("phase") in {"Succeeded", "Failed"}:
        status.setdefault("completionTime", now)
    if status.get("trainerStatus"):
        status["trainerStatus"] = {**status["trainerStatus"], "lastUpdatedTime": now}
    return status
