"""What the container of a worker asks for: what workers use, within bounds."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from drivetrain_cloud.kubernetes.job_spec import read_resources
from drivetrain_cloud.kubernetes.operator_actions import TellEvent
from drivetrain_cloud.kubernetes.plain_workers import those_of_role
from drivetrain_cloud.kubernetes.pods import has_ended, is_killed_for_memory
from drivetrain_cloud.kubernetes.quantities import read_quantity
from drivetrain_cloud.spot.worker_resources import (
    ResourceBounds,
    Resources,
    UseWindow,
    advise_resources,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drivetrain_cloud.kubernetes.job_spec import JobSpec
    from drivetrain_cloud.kubernetes.observed import Memory, Observed

_WINDOW_S = 60.0
_MOST_WINDOWS = 32
_Item = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerFit:
    """What is asked for from the next start of a worker on.

    Args:
        template: Of a worker's pod.
        status: For the status of the job; None where requests follow nothing.
        memory: For the next time.
        events: What changes, and why.
    """

    template: Mapping[str, Any]
    status: _Item | None
    memory: Memory
    events: tuple[TellEvent, ...] = ()


def fit_workers(observed: Observed, spec: JobSpec, now_s: float) -> WorkerFit:
    """Decides what the next worker asks for.

    What was decided stands in the status, with what the template said then: when its
    author changes that, it begins from there. Workers that run are left as they are.

    Args:
        observed: The job and what belongs to it.
        spec: What it says.
        now_s: The time.
    """
    memory = observed.memory
    if spec.fit is None:
        return WorkerFit(template=spec.template, status=None, memory=memory)
    given = _given(spec)
    told = (observed.job.get("status") or {}).get("workerResources") or {}
    base = _item(given)
    is_known = told.get("template") == base
    current = _within(read_resources(told) if is_known else given, spec.fit)
    reason = told.get("reason", "") if is_known else ""
    killed = _killed(observed)
    windows, memory = _windows(observed, memory, now_s)
    advice = advise_resources(current, [*windows, *killed], spec.fit)
    has_changed = _item(advice.resources) != _item(current)
    if has_changed:
        reason = "; ".join(advice.reasons)
        memory = replace(memory, use_since_s=now_s, use_samples=(), use_windows=())
    note = f"for workers that start now: {'; '.join(advice.reasons)}"
    events = (
        (TellEvent(reason="WorkerResources", note=note),)
        if advice.reasons and (has_changed or killed)
        else ()
    )
    status = {**_item(advice.resources), "template": base, "reason": reason}
    return WorkerFit(
        template=with_resources(spec.template, advice.resources),
        status=status,
        memory=memory,
        events=events,
    )


def with_resources(template: Mapping[str, Any], resources: Resources) -> _Item:
    """Returns a template whose first container asks for so much.

    Limits stay as many times the request as they were, since the kernel ends a container
    at its limit and not at its request.

    Args:
        template: Of a pod.
        resources: What to ask for.

    Example:
        >>> of = {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}}
        >>> template = {"spec": {"containers": [{"name": "a", "resources": of}]}}
        >>> made = with_resources(template, Resources(cpus=0.5, memory_bytes=3 << 30))
        >>> made["spec"]["containers"][0]["resources"]
        {'requests': {'memory': '3072Mi', 'cpu': '500m'}, 'limits': {'memory': '6144Mi'}}
    """
    made = copy.deepcopy(dict(template))
    container = made["spec"]["containers"][0]
    own = container.setdefault("resources", {})
    requests, limits = own.setdefault("requests", {}), own.get("limits") or {}
    for name, text in _item(resources).items():
        if name in limits:
            limit = read_quantity(limits[name])
            times = limit / (read_quantity(requests.get(name, limits[name])) or limit)
            limits[name] = _texts[name](read_quantity(text) * max(1.0, times))
        requests[name] = text
    return made


def _given(spec: JobSpec) -> Resources:
    """Returns what the template asks for, as Kubernetes reads it."""
    assert spec.fit is not None
    resources = spec.template["spec"]["containers"][0].get("resources") or {}
    found = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    least = spec.fit.least
    return Resources(
        cpus=read_quantity(found.get("cpu", least.cpus)) or least.cpus,
        memory_bytes=int(read_quantity(found.get("memory", least.memory_bytes)))
        or least.memory_bytes,
    )


def _within(resources: Resources, bounds: ResourceBounds) -> Resources:
    least, most = bounds.least, bounds.most
    return Resources(
        cpus=min(max(resources.cpus, least.cpus), most.cpus),
        memory_bytes=min(
            max(resources.memory_bytes, least.memory_bytes), most.memory_bytes
        ),
    )


def _cpu_text(cpus: float) -> str:
    return f"{math.ceil(cpus * 1000 - 1e-6)}m"


def _memory_text(number: float) -> str:
    return f"{math.ceil(number / (1 << 20) - 1e-6)}Mi"


_texts = {"cpu": _cpu_text, "memory": _memory_text}


def _item(resources: Resources) -> _Item:
    return {
        "cpu": _cpu_text(resources.cpus),
        "memory": _memory_text(resources.memory_bytes),
    }


def _killed(observed: Observed) -> list[UseWindow]:
    """Returns those that the kernel has ended for want of memory, each once."""
    status = observed.job.get("status") or {}
    counted = set(status.get("countedPods") or ())
    return [
        UseWindow(cpus=0.0, memory_bytes=0, killed_for_memory=True)
        for pod in those_of_role(observed, "worker")
        if has_ended(pod, "Failed")
        and is_killed_for_memory(pod)
        and pod["metadata"]["uid"] not in counted
    ]


def _windows(
    observed: Observed, memory: Memory, now_s: float
) -> tuple[tuple[UseWindow, ...], Memory]:
    """Adds what is used now, and closes a window when it has lasted long enough."""
    uses = list(observed.view.uses.values()) if observed.view is not None else []
    samples = memory.use_samples
    if uses:
        # The worker that needs most says what all of them ask for.
        most = max(use.cpus for use in uses), max(use.memory_bytes for use in uses)
        samples = (*samples, most)
    since_s = memory.use_since_s if memory.use_samples else now_s
    windows = memory.use_windows
    if samples and now_s - since_s >= _WINDOW_S:
        cpus = sorted(cpus for cpus, _ in samples)
        at = min(len(cpus) - 1, math.ceil(0.95 * len(cpus)) - 1)
        peak = max(memory_bytes for _, memory_bytes in samples)
        closed = UseWindow(cpus=cpus[at], memory_bytes=peak)
        windows, samples, since_s = (*windows, closed)[-_MOST_WINDOWS:], (), now_s
    memory = replace(
        memory, use_since_s=since_s, use_samples=samples, use_windows=windows
    )
    return windows, memory
