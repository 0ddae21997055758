"""What a kubelet says of a pod: phases, conditions, states of its containers."""

from __future__ import annotations

from typing import Any, NamedTuple

from drivetrain_cluster_double.api import set_condition

_Item = dict[str, Any]


class Ending(NamedTuple):
    """How a container ended.

    Attributes:
        code: What it exited with; 128 and the number of a signal if one ended it.
        reason: `Completed`, `Error`, `OOMKilled` ...
        started: When it began, as RFC 3339 has it.
        finished: When it ended.
    """

    code: int
    reason: str
    started: str
    finished: str

    def state(self) -> _Item:
        """Returns it as the state of a container."""
        times = {"startedAt": self.started, "finishedAt": self.finished}
        return {"terminated": {"exitCode": self.code, "reason": self.reason, **times}}


def is_to_restart(policy: str, code: int) -> bool:
    """Whether a container that has ended is started again."""
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def _with_state(
    pod: _Item,
    state: _Item,
    num_restarts: int,
    last: Ending | None,
    *,
    is_ready: bool = False,
    **status: Any,
) -> _Item:
    """Returns a pod all of whose containers are in a state."""
    parts = [
        {
            "name": one["name"],
            "image": one["image"],
            "imageID": "",
            "containerID": f"double://{pod['metadata']['uid']}/{one['name']}",
            "ready": is_ready,
            "started": "running" in state,
            "restartCount": num_restarts,
            "state": state,
            "lastState": last.state() if last else {},
        }
        for one in pod["spec"]["containers"]
    ]
    status = {**(pod.get("status") or {}), "containerStatuses": parts, **status}
    return _with_conditions({**pod, "status": status}, is_ready=is_ready)


def _with_conditions(pod: _Item, *, is_ready: bool) -> _Item:
    ready: _Item = {"status": "True" if is_ready else "False"}
    phase = pod["status"].get("phase", "")
    reasons = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}
    if not is_ready:
        ready["reason"] = reasons.get(phase, "ContainersNotReady")
    for kind in ("ContainersReady", "Ready"):
        pod = set_condition(pod, {"type": kind, **ready})
    return pod


def running(
    pod: _Item,
    address: str,
    started: str,
    num_restarts: int,
    last: Ending | None,
    *,
    is_ready: bool,
) -> _Item:
    """Returns a pod whose main process runs.

    Args:
        pod: The pod.
        address: Its own.
        started: When the process began, as RFC 3339 has it.
        num_restarts: How often it was started again.
        last: How it ended the last time.
        is_ready: Whether it is ready too.
    """
    addresses = {"podIP": address, "podIPs": [{"ip": address}], "hostIP": "127.0.0.1"}
    since = (pod.get("status") or {}).get("startTime", started)
    state = {"running": {"startedAt": started}}
    status = {"phase": "Running", "startTime": since, **addresses}
    found = _with_state(pod, state, num_restarts, last, is_ready=is_ready, **status)
    return set_condition(found, {"type": "Initialized", "status": "True"})


def with_readiness(pod: _Item, *_: object, is_ready: bool) -> _Item:
    """Returns a pod that is ready, or is not."""
    status = pod["status"]
    parts = [{**one, "ready": is_ready} for one in status["containerStatuses"]]
    pod = {**pod, "status": {**status, "containerStatuses": parts}}
    return _with_conditions(pod, is_ready=is_ready)


def waiting(
    pod: _Item, reason: str, text: str, num_restarts: int, last: Ending | None
) -> _Item:
    """Returns a pod whose main process does not run, but will.

    Args:
        pod: The pod.
        reason: As `CrashLoopBackOff`.
        text: For people.
        num_restarts: How often it was started again.
        last: How it ended the last time.
    """
    state = {"waiting": {"reason": reason, "message": text}}
    return _with_state(pod, state, num_restarts, last)


def ended(pod: _Item, num_restarts: int, last: Ending) -> _Item:
    """Returns a pod whose main process has ended for good.

    Args:
        pod: The pod.
        num_restarts: How often it was started again.
        last: How it ended.
    """
    phase = "Failed" if last.code else "Succeeded"
    return _with_state(pod, last.state(), num_restarts, None, phase=phase)
