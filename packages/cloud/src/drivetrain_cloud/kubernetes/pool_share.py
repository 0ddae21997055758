"""Who grows into idle nodes, and who yields to jobs of higher priority."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_cloud.kubernetes.job_status import is_finished
from drivetrain_cloud.kubernetes.pod_templates import requests_of
from drivetrain_cloud.kubernetes.pods import (
    has_ended,
    has_gone,
    is_leaving,
    is_pending_unscheduled,
    is_terminating,
    role_of,
)
from drivetrain_cloud.kubernetes.quantities import read_quantity
from drivetrain_cloud.kubernetes.template_form import check_template
from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from drivetrain_cloud.kubernetes.informer import Informer

_Item = dict[str, Any]
_Key = tuple[str, str]


class Share(NamedTuple):
    """What a job may take of the pool, and what it shall give.

    Attributes:
        offered: Workers that idle nodes have room for.
        wanted: Pods of jobs of higher priority, for which it shall give as many up.
        is_held: Whether pods of jobs of higher priority find no node.
        num_present: How many workers of the job there were when this was found.
    """

    offered: int = 0
    wanted: int = 0
    is_held: bool = False
    num_present: int = 0

    def after(self, num_present: int) -> Share:
        """Returns what is left of it, now that there are so many workers.

        A job is looked at more often than the pool: what it has made or given up since
        then is not taken, or given, again.

        Example:
            >>> Share(offered=2, num_present=3).after(4).offered
            1
            >>> Share(wanted=2, num_present=3).after(1).wanted
            0
        """
        made = num_present - self.num_present
        return Share(
            offered=max(0, self.offered - max(0, made)),
            wanted=max(0, self.wanted - max(0, -made)),
            is_held=self.is_held,
            num_present=num_present,
        )


def count_present(pods: Iterable[_Item]) -> int:
    """Returns how many workers of a job have not ended, wherever they are.

    Args:
        pods: Of the job.
    """
    return sum(role_of(pod) == "worker" and not has_ended(pod) for pod in pods)


def share_pool(
    jobs: Sequence[_Item], pods: Informer, nodes: Iterable[_Item]
) -> dict[_Key, Share]:
    """Shares idle nodes among jobs that could grow, and what is wanted among the others.

    Jobs of higher priority come first to grow and last to yield. Nobody grows while a pod
    of the same or a higher priority finds no node.

    Args:
        jobs: All of them.
        pods: Of jobs, found by `namespace/job`.
        nodes: All of them.

    Returns:
        By namespace and name, of those that are concerned.
    """
    live = [
        job
        for job in jobs
        if not is_finished(job) and not job["metadata"].get("deletionTimestamp")
    ]
    waiting: Counter[int] = Counter()
    growers: list[tuple[int, _Key, _Item, int]] = []
    for job in live:
        spec, key = job["spec"], _key(job)
        priority = spec.get("priority", 0)
        workers = [one for one in pods.those("/".join(key)) if role_of(one) == "worker"]
        waiting[priority] += sum(is_pending_unscheduled(pod) for pod in workers)
        num_here = sum(
            not has_ended(one) and not is_terminating(one) and not is_leaving(one)
            for one in workers
        )
        num_here -= sum(is_pending_unscheduled(pod) for pod in workers)
        growers.append((priority, key, job, num_here))
    shares: dict[_Key, Share] = {}
    if sum(waiting.values()):
        shares |= _yields(growers, waiting)
    if any(_could_grow(job, here) for _, _, job, here in growers):
        shares |= _offers(growers, waiting, pods, nodes, shares)
    return {
        key: share._replace(num_present=count_present(pods.those("/".join(key))))
        for key, share in shares.items()
    }


def _yields(
    jobs: list[tuple[int, _Key, _Item, int]], waiting: Counter[int]
) -> dict[_Key, Share]:
    shares = {}
    left = {priority: count for priority, count in waiting.items() if count}
    for priority, key, job, here in sorted(jobs, key=lambda one: one[:2]):
        wanted = sum(count for other, count in left.items() if other > priority)
        spare = here - _least(job)
        gives = min(wanted, max(0, spare))
        if any(other > priority and count for other, count in waiting.items()):
            shares[key] = Share(wanted=max(0, gives), is_held=True)
        if gives <= 0:
            continue
        for other in sorted(left, reverse=True):
            taken = min(left[other], gives) if other > priority else 0
            left[other] -= taken
            gives -= taken
    return shares


def _offers(
    jobs: list[tuple[int, _Key, _Item, int]],
    waiting: Counter[int],
    pods: Informer,
    nodes: Iterable[_Item],
    known: Mapping[_Key, Share],
) -> dict[_Key, Share]:
    free = _free(nodes, pods.items())
    shares = {}
    for priority, key, job, here in sorted(jobs, key=lambda one: (-one[0], one[1])):
        blocked = any(waiting[other] for other in waiting if other >= priority)
        if blocked or key in known or not _could_grow(job, here):
            continue
        room = job["spec"]["maxReplicas"] - here
        count = count_idle(job, free, room)
        if count:
            shares[key] = Share(offered=count)
    return shares


def _could_grow(job: _Item, here: int) -> bool:
    most = job["spec"].get("maxReplicas", 0)
    suspended = job["spec"].get("suspend", False)
    return bool(not suspended and job["spec"]["replicas"] <= here < most)


def _least(job: _Item) -> int:
    unit = job["spec"].get("nodeUnit", 1)
    return int(job["spec"].get("minReplicas", unit))


def _key(job: _Item) -> _Key:
    return job["metadata"]["namespace"], job["metadata"]["name"]


# ---- room on nodes ----


def _free(
    nodes: Iterable[_Item], pods: Iterable[_Item]
) -> list[tuple[_Item, dict[str, float]]]:
    """Returns the nodes that take pods, and what is free on each."""
    used: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for pod in pods:
        name = pod["spec"].get("nodeName")
        if name and not has_gone(pod):
            for what, amount in requests_of(pod["spec"]).items():
                used[name][what] += amount
            used[name]["pods"] += 1
    found = []
    for node in nodes:
        spec = node.get("spec") or {}
        hard = [
            taint
            for taint in spec.get("taints") or ()
            if taint.get("effect") in {"NoSchedule", "NoExecute"}
        ]
        if hard or spec.get("unschedulable"):
            continue
        there = (node.get("status") or {}).get("allocatable") or {}
        name = node["metadata"]["name"]
        # One that says what nobody can read has no room that is known.
        with contextlib.suppress(ProgramError):
            free = {k: read_quantity(v) - used[name][k] for k, v in there.items()}
            found.append((node, free))
    return found


def count_idle(
    job: _Item, free: list[tuple[_Item, dict[str, float]]], most: int
) -> int:
    """Returns how many workers of a job fit on nodes, and takes their room.

    Pods that are no job's are not known here, so that this may be too many; one that
    does not fit then waits, and nobody grows while it does.

    Args:
        job: The job.
        free: Nodes, and what is free on each; it becomes less.
        most: How many are looked for.
    """
    template = job["spec"]["template"]["spec"]
    try:
        check_template(job["spec"]["template"], "spec.template")
        needs = {**requests_of(template), "pods": 1.0}
    except (ProgramError, TypeError):
        # Such a pod is refused, and it is said why.
        return 0
    spot = job["spec"].get("spot") or {}
    selector = dict(template.get("nodeSelector") or {})
    if spot.get("enabled"):
        selector |= spot.get("nodeSelector") or {}
    count = 0
    for node, room in free:
        labels = node["metadata"].get("labels") or {}
        if any(labels.get(name) != value for name, value in selector.items()):
            continue
        while count < most and all(room.get(k, 0.0) >= v for k, v in needs.items()):
            for what, amount in needs.items():
                room[what] -= amount
            count += 1
    return count
