"""Which workers there are and train, as decided for nodes that may be taken away."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from drivetrain_cloud.kubernetes.operator_actions import (
    AdmitWorkers,
    CreateObject,
    SaveState,
    StopTraining,
    TellEvent,
)
from drivetrain_cloud.kubernetes.plain_workers import (
    MOST_AT_ONCE,
    ask_to_leave,
    delete_pod,
    end_leavers,
    end_pending,
    has_finished,
    make_workers,
    next_number,
    offered_now,
    present_workers,
    those_of_role,
    withdraw,
)
from drivetrain_cloud.kubernetes.pod_templates import worker_pod
from drivetrain_cloud.kubernetes.pods import (
    has_condition,
    has_ended,
    is_leaving,
    is_on_demand,
    is_terminating,
)
from drivetrain_cloud.notices.kubernetes import sighting_of_node, sighting_of_pod
from drivetrain_cloud.notices.sighting import BadAnswerError
from drivetrain_cloud.spot import actions
from drivetrain_cloud.spot.capacity import (
    Capacity,
    JobPhase,
    Market,
    Node,
    NodePhase,
    Notice,
)
from drivetrain_cloud.spot.decision import decide
from drivetrain_cloud.spot.job_control import JobView

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_cloud.kubernetes.job_spec import JobSpec
    from drivetrain_cloud.kubernetes.observed import Memory, Observed
    from drivetrain_cloud.kubernetes.operator_actions import OperatorAction
    from drivetrain_cloud.notices.sighting import Sighting
    from drivetrain_cloud.spot.actions import Action

_Item = dict[str, Any]


class SpotPlan:
    """What becomes of the workers; it is built up action by action.

    Attributes:
        actions: To be carried out in this order.
        memory: For the next time.
        look_again_s: When to look again if nothing happens.
        given_up: Why the job has failed; empty if it has not.
        suspended: Why it gives all back; empty if it does not.
    """

    def __init__(self, memory: Memory) -> None:
        self.actions: list[OperatorAction] = []
        self.memory = memory
        self.look_again_s = math.inf
        self.given_up = ""
        self.suspended = ""

    def put(self, **fields: object) -> None:
        """Changes what is remembered."""
        self.memory = replace(self.memory, **fields)  # type: ignore[arg-type]


def plan_spot_workers(observed: Observed, spec: JobSpec, now_s: float) -> SpotPlan:
    """Decides what becomes of the workers, by the decisions of `drivetrain_cloud.spot`.

    While the master of a job that trains does not answer, workers that are gone are
    replaced, and nothing else is decided: training goes on without it.

    Args:
        observed: The job and what belongs to it.
        spec: What it says.
        now_s: The time.
    """
    plan = SpotPlan(observed.memory)
    view = observed.view
    workers = those_of_role(observed, "worker")
    if any(map(has_finished, workers)):
        here = [pod for pod in workers if not is_terminating(pod)]
        plan.actions += end_pending(here)
        return plan
    if view is not None and view.ended:
        # What is left ends too.
        return plan
    if view is None:
        if not _has_never_trained(observed):
            plan.actions, look_again_s = end_leavers(observed, spec, now_s)
            plan.look_again_s = min(look_again_s, now_s + 1.0)
            missing = spec.replicas - len(present_workers(observed))
            is_free = not observed.wanted_by_others and not observed.is_held
            if missing > 0 and is_free and now_s >= observed.hold_until_s:
                plan.actions += make_workers(observed, spec, missing)
            return plan
        view = JobView()
    elif observed.memory.admitted is None:
        _take_over(plan, view, now_s)
    _see_save(plan, view, now_s)
    nodes = _nodes(observed, spec, plan.memory, view, now_s)
    capacity = Capacity(
        nodes=nodes,
        phase=plan.memory.phase,
        phase_since_s=plan.memory.phase_since_s,
        changed_s=plan.memory.changed_s,
        offered=0 if observed.is_held else offered_now(observed),
        is_saving=plan.memory.order_s is not None,
        saved_s=plan.memory.saved_s,
        step_s=view.step_s or plan.memory.step_s,
        save_s=plan.memory.save_s,
    )
    config = spec.spot
    if observed.wanted_by_others:
        config = _yielding(observed, config, nodes)
    decision = decide(now_s, capacity, config)
    plan.actions, plan.look_again_s = end_leavers(observed, spec, now_s)
    withdrawn, due_s = withdraw(observed, spec, now_s)
    plan.actions += withdrawn
    plan.look_again_s = min(plan.look_again_s, due_s)
    deleted = {getattr(one, "name", "") for one in plan.actions}
    plan.look_again_s = min(plan.look_again_s, decision.look_again_s)
    for action in decision.actions:
        _translate(plan, action, observed, spec, now_s, deleted)
    plan.put(step_s=capacity.step_s)
    return plan


def _has_never_trained(observed: Observed) -> bool:
    phase = (observed.job.get("status") or {}).get("phase", "Pending")
    fresh = observed.memory.admitted is None
    return fresh and phase in {"Pending", "Suspended"}


def _take_over(plan: SpotPlan, view: JobView, now_s: float) -> None:
    """Goes on where an operator before this one has ended, if there was one."""
    if view.admitted is None:
        reason = "workers train when there are enough"
        plan.actions.append(AdmitWorkers(pods=(), reason=reason))
        plan.put(admitted=frozenset())
        return
    plan.put(admitted=view.admitted)
    if view.admitted:
        plan.put(phase=JobPhase.TRAINING, phase_since_s=now_s, changed_s=now_s)


def _see_save(plan: SpotPlan, view: JobView, now_s: float) -> None:
    """Sees what has become of the checkpoint that was asked for last."""
    memory = plan.memory
    if memory.order_s is None:
        return
    saved = view.saved
    if saved is not None and saved.request == memory.request:
        if not saved.failure:
            save_s = max(now_s - memory.asked_s, 0.8 * memory.save_s)
            plan.put(saved_s=memory.asked_s, save_s=save_s)
        plan.put(order_s=None)
    elif now_s > memory.order_s:
        plan.put(order_s=None)
    elif view.requested != memory.request and view.present:
        # The master was started again, and has forgotten it.
        within_s = memory.order_s - now_s
        plan.actions.append(
            SaveState(
                request=memory.request, within_s=within_s, reason="it was asked for"
            )
        )


def _nodes(
    observed: Observed, spec: JobSpec, memory: Memory, view: JobView, now_s: float
) -> tuple[Node, ...]:
    found = []
    for pod in those_of_role(observed, "worker"):
        if has_ended(pod) or is_terminating(pod):
            continue
        name = pod["metadata"]["name"]
        phase = worker_phase(pod, view, memory)
        seen = memory.workers.get(name)
        same = seen is not None and seen.phase == phase
        found.append(
            Node(
                name=name,
                market=Market.ON_DEMAND if is_on_demand(pod) else Market.SPOT,
                phase=phase,
                since_s=seen.since_s if seen is not None and same else now_s,
                notice=notice_of(observed, spec, pod, view, now_s),
            )
        )
    return tuple(found)


def worker_phase(pod: _Item, view: JobView, memory: Memory) -> NodePhase:
    """Returns what a worker does now.

    Args:
        pod: Of the worker.
        view: Of the job's master.
        memory: What is remembered of the job.
    """
    name = pod["metadata"]["name"]
    if is_leaving(pod):
        return NodePhase.LEAVING
    if name not in view.ready:
        return NodePhase.REQUESTED
    return NodePhase.TRAINING if name in (memory.admitted or ()) else NodePhase.READY


def notice_of(
    observed: Observed, spec: JobSpec, pod: _Item, view: JobView, now_s: float
) -> Notice | None:
    """Returns that a worker will be taken away, if its pod, its node or its agent says so.

    Args:
        observed: The job and what belongs to it.
        spec: What it says.
        pod: Of the worker.
        view: Of the job's master.
        now_s: The time.
    """
    if not spec.heeds_notices:
        return None
    name = pod["metadata"]["name"]
    seen = observed.memory.workers.get(name)
    known = seen.notice if seen is not None else None
    deadlines_s, seen_now = [], []
    heard = view.notices.get(name)
    if heard is not None:
        deadlines_s.append(now_s + heard.remaining_s)
    if has_condition(pod, "DisruptionTarget"):
        seen_now.append(_readable(sighting_of_pod, pod, observed.date))
    node = observed.nodes.get(pod["spec"].get("nodeName") or "")
    if node is not None:
        found = _readable(sighting_of_node, node, observed.date)
        seen_now.append(found if found and found.is_certain else None)
    for found in filter(None, seen_now):
        # A condition says no time: what was counted from its first sight stays.
        left_s = now_s + found.remaining_s
        deadlines_s.append(min(left_s, known.deadline_s) if known else left_s)
    if not deadlines_s:
        return None
    heard_s = known.heard_s if known is not None else now_s
    return Notice(heard_s=heard_s, deadline_s=min(deadlines_s))


def _readable(
    see: Callable[..., Sighting | None], item: _Item, date: str
) -> Sighting | None:
    # What nobody can read is no notice: agents hear of the end of their node, too.
    with contextlib.suppress(BadAnswerError):
        return see(item, date=date)
    return None


def _yielding(observed: Observed, config: Any, nodes: tuple[Node, ...]) -> Any:
    """Returns what the job wants while pods of higher priority find no node."""
    here = [node for node in nodes if node.phase != NodePhase.LEAVING]
    going = len(nodes) - len(here)
    left = len(here) - max(0, observed.wanted_by_others - going)
    most = max(config.least, left // config.unit * config.unit)
    return replace(config, nodes=min(config.nodes, most), max_nodes=most)


def _translate(
    plan: SpotPlan,
    action: Action,
    observed: Observed,
    spec: JobSpec,
    now_s: float,
    deleted: set[str],
) -> None:
    pods = {pod["metadata"]["name"]: pod for pod in observed.pods}
    match action:
        case actions.Request():
            if now_s < observed.hold_until_s:
                plan.look_again_s = min(plan.look_again_s, observed.hold_until_s)
                return
            _request(plan, action, observed, spec)
        case actions.Cancel() | actions.Release():
            if action.node not in deleted:
                plan.actions.append(delete_pod(pods[action.node], action.reason))
        case actions.Leave():
            if action.node not in deleted:
                pod = pods[action.node]
                plan.actions += ask_to_leave(observed, spec, pod, action.reason)
                plan.put(changed_s=now_s)
        case actions.Save():
            plan.put(
                num_saves=plan.memory.num_saves + 1,
                order_s=action.deadline_s,
                asked_s=now_s,
            )
            plan.actions.append(
                SaveState(
                    request=plan.memory.request,
                    within_s=max(0.0, action.deadline_s - now_s),
                    reason=action.reason,
                )
            )
            plan.actions.append(TellEvent(reason="Saving", note=action.reason))
        case actions.Train():
            plan.actions.append(
                AdmitWorkers(pods=tuple(sorted(action.nodes)), reason=action.reason)
            )
            plan.actions.append(TellEvent(reason="Training", note=action.reason))
            plan.put(admitted=frozenset(action.nodes), changed_s=now_s)
            _set_phase(plan, JobPhase.TRAINING, now_s)
        case actions.Pause():
            plan.actions.append(AdmitWorkers(pods=(), reason=action.reason))
            plan.actions.append(TellEvent(reason="Waiting", note=action.reason))
            plan.put(admitted=frozenset(), order_s=None)
            _set_phase(plan, JobPhase.WAITING, now_s)
        case actions.Suspend():
            plan.actions.append(AdmitWorkers(pods=(), reason=action.reason))
            plan.put(admitted=frozenset(), order_s=None)
            plan.suspended = action.reason
        case actions.Resume():
            _set_phase(plan, JobPhase.WAITING, now_s)
        case actions.GiveUp():
            plan.actions.append(StopTraining(reason=action.reason, exit_code=1))
            plan.given_up = action.reason


def _request(
    plan: SpotPlan, action: actions.Request, observed: Observed, spec: JobSpec
) -> None:
    assert observed.service is not None
    made = sum(isinstance(one, CreateObject) for one in plan.actions)
    first = next_number(observed) + made
    address = observed.service["spec"]["clusterIP"]
    for number in range(first, first + min(action.count, MOST_AT_ONCE - made)):
        item = worker_pod(observed.job, spec, number, action.market, address)
        plan.actions.append(CreateObject(kind="Pod", item=item))
    if action.market == Market.ON_DEMAND:
        note = f"{action.count} workers on demand are asked for: {action.reason}"
        plan.actions.append(TellEvent(reason="OnDemand", note=note))


def _set_phase(plan: SpotPlan, phase: JobPhase, now_s: float) -> None:
    if phase != plan.memory.phase:
        plan.put(phase=phase, phase_since_s=now_s)
