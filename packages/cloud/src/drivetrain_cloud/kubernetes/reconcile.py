"""What is done now for a job, from all that belongs to it: no call is made here."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from drivetrain_cloud.kubernetes.job_end import clean_up, end_of, end_of_wait
from drivetrain_cloud.kubernetes.job_spec import Gang, parse_job
from drivetrain_cloud.kubernetes.job_status import (
    Verdict,
    count_failures,
    is_finished,
    is_like,
    next_status,
    status_of,
)
from drivetrain_cloud.kubernetes.observed import Memory, Plan, Seen
from drivetrain_cloud.kubernetes.operator_actions import (
    CreateObject,
    EnsureSecret,
    SaveState,
    SetStatus,
    StopTraining,
    TellEvent,
    delete_object,
    patch_object,
)
from drivetrain_cloud.kubernetes.plain_workers import (
    delete_pod,
    is_on_dead_node,
    plan_workers,
    those_of_role,
)
from drivetrain_cloud.kubernetes.pod_templates import (
    TEMPLATE_HASH,
    master_name,
    master_pod,
    master_service,
    owner_of,
    pod_group,
    refers_to_secret,
    template_hash,
)
from drivetrain_cloud.kubernetes.pods import (
    JOB_LABEL,
    ROLE_LABEL,
    condition,
    controller_of,
    controls,
    exit_words,
    has_ended,
    is_disrupted,
    is_leaving,
    is_terminating,
    role_of,
)
from drivetrain_cloud.kubernetes.role_pods import hold_s, plan_roles
from drivetrain_cloud.kubernetes.spot_workers import (
    notice_of,
    plan_spot_workers,
    worker_phase,
)
from drivetrain_cloud.kubernetes.worker_fit import fit_workers
from drivetrain_cloud.spot.job_control import JobView
from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drivetrain_cloud.kubernetes.job_spec import JobSpec
    from drivetrain_cloud.kubernetes.observed import Observed
    from drivetrain_cloud.kubernetes.operator_actions import OperatorAction, PatchObject

FINALIZER = "drivetrain.dev/stop"
"""Keeps a job until its pods are gone."""

_Item = dict[str, Any]


def reconcile(observed: Observed, now_s: float) -> Plan:
    """Decides what is done now; asks for nothing again once it has been carried out.

    It never touches what the job does not control: pods of others that carry its labels
    are left alone, and those of nobody become its own.

    Args:
        observed: The job and all that belongs to it.
        now_s: The time, on the clock of all times in its memory.
    """
    job = observed.job
    memory = _remember(observed, now_s)
    observed = replace(observed, memory=memory)
    if job["metadata"].get("deletionTimestamp"):
        return _plan(_delete(observed), memory)
    try:
        spec = parse_job(job)
    except ProgramError as error:
        return _plan(_refuse(observed, str(error)), memory)
    actions: list[OperatorAction] = []
    if FINALIZER not in (job["metadata"].get("finalizers") or ()):
        actions.append(_finalizers(job, [*_others(job), FINALIZER]))
    if is_finished(job):
        left = clean_up(observed, spec, now_s)
        return Plan(
            actions=(*actions, *left.actions),
            memory=memory,
            look_again_s=left.look_again_s,
        )
    actions += _adopt(observed)
    verdict = end_of(observed, spec)
    if verdict.phase:
        actions += _end(observed, spec, verdict)
        return _plan(actions, memory)
    if spec.is_suspended or _waits_for_somebody(job):
        verdict = _suspended(job, spec)
        return _suspend(observed, spec, verdict, actions, now_s)
    if changed := _new_template(observed):
        return _suspend(observed, spec, changed, actions, now_s)
    actions += _base(observed, spec)
    if observed.service is None or not observed.service["spec"].get("clusterIP"):
        # Its address is part of all that comes next.
        return _plan([*actions, *_told(observed, spec, Verdict())], memory)
    return _train(observed, spec, actions, now_s)


def begin_anew(job: _Item, pods: Iterable[_Item]) -> list[OperatorAction]:
    """Returns what is done about pods of a job whose secret was made just now.

    They were made with another one, which somebody has deleted while no operator knew it:
    nobody can talk to them.

    Args:
        job: The job.
        pods: All with its label.
    """
    ours = [
        pod
        for pod in pods
        if controls(job, pod)
        and not is_terminating(pod)
        # One that was adopted has never had any.
        and refers_to_secret(pod, master_name(job))
    ]
    reason = "its secret was lost: the job begins anew with another one"
    actions: list[OperatorAction] = [delete_pod(pod, reason) for pod in ours]
    if ours:
        event = TellEvent(reason="SecretDeleted", note=reason, is_warning=True)
        actions.append(event)
    return actions


def _train(
    observed: Observed, spec: JobSpec, actions: list[OperatorAction], now_s: float
) -> Plan:
    """Looks after the workers and the other roles of a job that goes on."""
    memory = observed.memory
    failures, _, words = count_failures(observed)
    num_new = failures - status_of(observed.job).get("failures", 0)
    # Somebody who fails again and again is not replaced at once for ever.
    stamp = status_of(observed.job).get("lastFailureTime")
    failed_s = now_s if num_new > 0 else observed.in_s(stamp, now_s)
    if failed_s is not None:
        observed = replace(observed, hold_until_s=failed_s + hold_s(failures))
    if num_new > 0:
        note = f"{num_new} workers have failed: {words}"
        actions.append(TellEvent(reason="WorkerFailed", note=note, is_warning=True))
    actions += _remove_ended(observed)
    fit = fit_workers(observed, spec, now_s)
    actions += fit.events
    memory = fit.memory
    observed = replace(observed, memory=memory)
    spec = replace(spec, template=fit.template, fitted=fit.status)
    verdict = Verdict()
    if spec.is_decided:
        spot = plan_spot_workers(observed, spec, now_s)
        actions += spot.actions
        memory, look_again_s = spot.memory, spot.look_again_s
        if spot.given_up:
            verdict = Verdict(
                phase="Failed", reason="MaxWaitExceeded", message=spot.given_up
            )
        elif spot.suspended:
            verdict = Verdict(
                phase="Suspended", reason="MaxWaitExceeded", message=spot.suspended
            )
    else:
        plain = plan_workers(observed, spec, now_s)
        actions += plain.actions
        verdict, due_s = end_of_wait(observed, spec, now_s)
        look_again_s = min(plain.look_again_s, due_s)
    if verdict.phase:
        said = {"reason": verdict.reason, "note": verdict.message}
        actions.append(TellEvent(**said, is_warning=True))
    roles = plan_roles(observed, spec, now_s)
    actions += roles.actions
    if spec.gang == Gang.VOLCANO and any(
        isinstance(one, CreateObject) and one.kind == "Pod" for one in actions
    ):
        # Its scheduler waits for it: one that somebody has deleted is made again.
        group = pod_group(observed.job, spec)
        actions.insert(0, CreateObject(kind="PodGroup", item=group, is_kept=True))
    memory = replace(memory, role_ends=roles.ends)
    look_again_s = min(look_again_s, roles.look_again_s)
    actions += _told(observed, spec, verdict)
    return Plan(actions=_events_last(actions), memory=memory, look_again_s=look_again_s)


def _events_last(actions: list[OperatorAction]) -> tuple[OperatorAction, ...]:
    """Tells what was done once it was: whoever begins again has told nothing."""
    events = [one for one in actions if isinstance(one, TellEvent)]
    return (*(one for one in actions if not isinstance(one, TellEvent)), *events)


def _plan(actions: list[OperatorAction], memory: Memory) -> Plan:
    return Plan(actions=_events_last(actions), memory=memory, look_again_s=math.inf)


# ---- memory ----


def _remember(observed: Observed, now_s: float) -> Memory:
    """Returns what is known of each worker now, and since when."""
    memory = observed.memory
    uid = observed.job["metadata"]["uid"]
    if memory.uid != uid:
        fresh = Memory(uid=uid, nonce=memory.nonce or uid[:8])
        memory = replace(fresh, phase_since_s=now_s, changed_s=now_s)
    try:
        spec = parse_job(observed.job)
    except ProgramError:
        return memory
    view = observed.view or JobView()
    watched = replace(observed, memory=memory)
    workers = {}
    for pod in those_of_role(observed, "worker"):
        if has_ended(pod):
            continue
        name = pod["metadata"]["name"]
        before = memory.workers.get(name)
        phase = worker_phase(pod, view, memory)
        if observed.view is None and before is not None and not is_leaving(pod):
            # Nothing was heard of it, which is no change.
            phase = before.phase
        since_s = before.since_s if before and before.phase == phase else now_s
        notice = notice_of(watched, spec, pod, view, now_s)
        workers[name] = Seen(phase=phase, since_s=since_s, notice=notice)
    return replace(memory, workers=workers)


# ---- the whole job ----


def _others(job: _Item) -> list[str]:
    return [one for one in job["metadata"].get("finalizers") or () if one != FINALIZER]


def _finalizers(job: _Item, finalizers: list[str]) -> PatchObject:
    # A list is replaced whole: only that of this version may be.
    version = job["metadata"]["resourceVersion"]
    patch = {"metadata": {"finalizers": finalizers, "resourceVersion": version}}
    return patch_object("ElasticJob", job, patch, "its pods go first")


def _delete(observed: Observed) -> list[OperatorAction]:
    """Deletes the pods of a job that is being deleted, then lets it go."""
    job = observed.job
    if FINALIZER not in (job["metadata"].get("finalizers") or ()):
        return []
    actions: list[OperatorAction] = []
    pods = [pod for pod in observed.pods if controls(job, pod)]
    if not pods:
        return [_finalizers(job, _others(job))]
    left = [pod for pod in pods if not is_terminating(pod)]
    if left and observed.view is not None and not observed.view.ended:
        actions.append(StopTraining(reason="the job was deleted", exit_code=1))
    actions += [delete_pod(pod, "the job was deleted") for pod in left]
    return actions + _set_status(observed, {**status_of(job), "phase": "Terminating"})


def _refuse(observed: Observed, message: str) -> list[OperatorAction]:
    """Tells that a job cannot be understood; what it has is left as it is."""
    status = dict(status_of(observed.job))
    status["observedGeneration"] = observed.job["metadata"].get("generation", 0)
    status.setdefault("phase", "Pending")
    kept = [c for c in status.get("conditions") or () if c["type"] != "Invalid"]
    status["conditions"] = [*kept, condition("Invalid", "InvalidSpec", message)]
    return _set_status(observed, status)


def _adopt(observed: Observed) -> list[OperatorAction]:
    """Makes pods its own that carry its labels and belong to nobody."""
    job = observed.job
    actions: list[OperatorAction] = []
    for pod in observed.pods:
        if controller_of(pod) is not None or is_terminating(pod):
            continue
        data = pod["metadata"]
        if (data.get("labels") or {}).get(JOB_LABEL) != job["metadata"]["name"]:
            continue
        if not (data.get("labels") or {}).get(ROLE_LABEL):
            continue
        owners = [*(data.get("ownerReferences") or ()), owner_of(job)]
        # Not another pod that has its name meanwhile.
        patch = {"metadata": {"uid": data["uid"], "ownerReferences": owners}}
        reason = "it carries the labels of the job, and belongs to nobody"
        actions.append(patch_object("Pod", pod, patch, reason))
    return actions


def _base(observed: Observed, spec: JobSpec) -> list[OperatorAction]:
    """Makes what all workers need: the service, the secret and the pod of the master."""
    job = observed.job
    actions: list[OperatorAction] = []
    if observed.service is None:
        return [
            CreateObject(kind="Service", item=master_service(job, observed.address))
        ]
    address = observed.service["spec"].get("clusterIP") or ""
    if observed.address not in {"", address}:
        # It was deleted while no operator ran: pods know the master by the one before.
        reason = f"the pods know the master by {observed.address}"
        return [delete_object("Service", observed.service, reason)]
    if not observed.has_secret:
        actions.append(
            EnsureSecret(name=master_name(job), address=address, owner=owner_of(job))
        )
    masters = [pod for pod in observed.pods if role_of(pod) == "master"]
    ours = [pod for pod in masters if controls(job, pod)]
    actions += [
        delete_pod(pod, "the master has ended")
        for pod in ours
        if has_ended(pod) and not is_terminating(pod)
    ]
    for pod in ours:
        # Where nobody is left to end it, it would stay for as long as its node is known.
        if is_terminating(pod) and is_on_dead_node(observed, pod):
            gone = delete_pod(pod, "the master's node does not answer")
            actions.append(replace(gone, is_forced=True))
    nobodys = [pod for pod in masters if controller_of(pod) is None]
    if not ours and not nobodys:
        actions.append(CreateObject(kind="Pod", item=master_pod(job, spec)))
    return actions


def _end(observed: Observed, spec: JobSpec, verdict: Verdict) -> list[OperatorAction]:
    actions: list[OperatorAction] = []
    failed = verdict.phase == "Failed"
    if failed and observed.view is not None and not observed.view.ended:
        actions.append(StopTraining(reason=verdict.message, exit_code=1))
    event = TellEvent(reason=verdict.reason, note=verdict.message, is_warning=failed)
    return [*actions, event, *_told(observed, spec, verdict)]


# ---- suspension ----


def _waits_for_somebody(job: _Item) -> bool:
    """Whether it was suspended for want of nodes, and nobody has touched it since."""
    status = status_of(job)
    if status.get("phase") != "Suspended":
        return False
    is_same = status.get("observedGeneration") == job["metadata"].get("generation", 0)
    return is_same and any(
        one["type"] == "Suspended" and one.get("reason") == "MaxWaitExceeded"
        for one in status.get("conditions") or ()
    )


def _new_template(observed: Observed) -> Verdict | None:
    """Returns that all workers are made anew: one training is of one program."""
    wanted = template_hash(observed.job)
    old = [
        pod["metadata"]["name"]
        for pod in those_of_role(observed, "worker")
        if (pod["metadata"].get("annotations") or {}).get(TEMPLATE_HASH, wanted)
        != wanted
        and not is_on_dead_node(observed, pod)
    ]
    if not old:
        return None
    message = f"spec.template has changed: {len(old)} workers are of the one before"
    return Verdict(phase="Suspended", reason="TemplateChanged", message=message)


def _suspended(job: _Item, spec: JobSpec) -> Verdict:
    if spec.is_suspended:
        return Verdict(
            phase="Suspended", reason="JobSuspended", message="suspend is true"
        )
    message = next(
        str(one.get("message") or "")
        for one in status_of(job)["conditions"]
        if one["type"] == "Suspended"
    )
    return Verdict(phase="Suspended", reason="MaxWaitExceeded", message=message)


def _suspend(
    observed: Observed,
    spec: JobSpec,
    verdict: Verdict,
    actions: list[OperatorAction],
    now_s: float,
) -> Plan:
    """Saves the state, then gives all pods back."""
    view, memory = observed.view, observed.memory
    pods = [pod for pod in observed.pods if controls(observed.job, pod)]
    pods = [pod for pod in pods if not is_terminating(pod)]
    generation = observed.job["metadata"].get("generation", 0)
    request = f"suspend-{observed.job['metadata']['uid'][:8]}-{generation}"
    look_again_s = math.inf
    if pods and view is not None and view.training:
        if view.requested != request:
            actions.append(
                SaveState(
                    request=request,
                    within_s=spec.leave_s,
                    reason="the job is suspended",
                )
            )
            memory = replace(memory, asked_s=now_s)
        is_saved = view.saved is not None and view.saved.request == request
        if not is_saved and now_s < memory.asked_s + spec.leave_s:
            told = _told(observed, spec, verdict)
            return Plan(
                actions=(*actions, *told), memory=memory, look_again_s=now_s + 0.5
            )
    fresh = replace(
        Memory(uid=memory.uid, nonce=memory.nonce, num_saves=memory.num_saves),
        phase_since_s=now_s,
        changed_s=now_s,
    )
    actions += [delete_pod(pod, "the job is suspended") for pod in pods]
    actions += _told(observed, spec, verdict)
    return Plan(actions=tuple(actions), memory=fresh, look_again_s=look_again_s)


# ---- pods ----


def _remove_ended(observed: Observed) -> list[OperatorAction]:
    """Deletes pods of workers that are gone, once their failures are counted."""
    counted = set(status_of(observed.job).get("countedPods") or ())
    actions: list[OperatorAction] = []
    for pod in those_of_role(observed, "worker"):
        if not has_ended(pod) or is_terminating(pod) or is_leaving(pod):
            continue
        if is_disrupted(pod):
            name = pod["metadata"]["name"]
            actions.append(delete_pod(pod, "its node was taken away"))
            note = f"{name} is replaced: its node was taken away"
            actions.append(TellEvent(reason="WorkerDisrupted", note=note))
        elif has_ended(pod, "Failed") and pod["metadata"]["uid"] in counted:
            actions.append(delete_pod(pod, exit_words(pod)))
    return actions


# ---- status ----


def _told(observed: Observed, spec: JobSpec, verdict: Verdict) -> list[OperatorAction]:
    return _set_status(observed, next_status(observed, spec, verdict))


def _set_status(observed: Observed, status: _Item) -> list[OperatorAction]:
    before = status_of(observed.job)
    kept: _Item = {
        key: before[key]
        for key in ("startTime", "completionTime")
        if key in before and key not in status
    }
    status = {**kept, **status}
    return [] if is_like(before, status) else [SetStatus(status=status)]
