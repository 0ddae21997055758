"""A training job behind its master, for a supervisor."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from drivetrain_cloud.spot.job_control import HeardNotice, JobView, NodeUse, SaveResult
from drivetrain_elastic import RefusedError
from drivetrain_elastic.protocol import messages as pb

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drivetrain_elastic.extending import MasterClient

_READY = frozenset({"standby", "member"})
_LONGEST_S = 24 * 3600.0


class MasterJob:
    """Asks a job's master; a `JobControl`.

    Args:
        client: Of the master.
    """

    def __init__(self, client: MasterClient) -> None:
        self._client = client

    def look(self) -> JobView:
        """Returns how the job stands."""
        status = self._client.call("GetStatus", pb.StatusRequest())
        saved = None
        if status.save.HasField("saved"):
            told = status.save.saved
            saved = SaveResult(told.request, told.step, told.failure)
        workers = [one for node in status.nodes for one in node.workers]
        return JobView(
            present=frozenset(node.node for node in status.nodes if node.pid),
            ready=frozenset(node.node for node in status.nodes if _is_ready(node)),
            training=frozenset(
                node.node
                for node in status.nodes
                if any(one.rank >= 0 for one in node.workers)
            ),
            notices={
                node.node: HeardNotice(node.notice.within_s, node.notice.reason)
                for node in status.nodes
                if node.HasField("notice")
            },
            uses={
                node.node: NodeUse(node.hardware.used_cpus, node.hardware.used_memory)
                for node in status.nodes
                if node.hardware.used_memory
            },
            step=max((one.step for one in workers), default=0),
            step_s=max((one.step_s for one in workers if one.rank >= 0), default=0.0),
            step_samples=_step_samples(one for one in workers if one.rank >= 0),
            num_samples=status.time.num_samples,
            saved=saved,
            requested=status.save.request,
            admitted=(
                frozenset(status.admission.nodes)
                if status.HasField("admission")
                else None
            ),
            reason=status.reason,
            ended=status.ended,
            exit_code=status.exit_code,
        )

    def admit(self, nodes: Iterable[str], reason: str) -> None:
        """Lets only these nodes train."""
        request = pb.Admission(nodes=sorted(nodes), reason=reason)
        self._client.call("Admit", request)

    def save(self, request: str, within_s: float, reason: str) -> None:
        """Asks for a checkpoint."""
        message = pb.SaveRequest(request=request, within_s=within_s, reason=reason)
        self._client.call("Save", message)

    def leave(self, node: str, within_s: float, reason: str) -> None:
        """Lets a node leave; one that the master does not know has left."""
        within_s = min(within_s, _LONGEST_S) if math.isfinite(within_s) else _LONGEST_S
        request = pb.LeaveRequest(node=node, within_s=within_s, reason=reason)
        try:
            self._client.call("Leave", request)
        except RefusedError:
            if any(one.node == node for one in self._nodes()):
                raise

    def _nodes(self) -> Iterable[pb.NodeStatus]:
        status: pb.Status = self._client.call("GetStatus", pb.StatusRequest())
        return status.nodes

    def stop(self, reason: str, exit_code: int) -> None:
        """Ends the job."""
        request = pb.StopRequest(reason=reason, exit_code=exit_code)
        self._client.call("Stop", request)


def _is_ready(node: pb.NodeStatus) -> bool:
    able = [one for one in node.workers if one.status in _READY]
    return not node.is_leaving and 0 < node.num_slots <= len(able)


def _step_samples(members: Iterable[pb.WorkerStatus]) -> float:
    """Returns the samples of a step on all ranks; 0 until each of them has said its own."""
    own = [one.num_samples for one in members]
    return sum(own) if all(own) else 0.0
