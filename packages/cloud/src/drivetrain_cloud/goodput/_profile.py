"""What recovery takes, and when checkpoints are made: the times that a system brings."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from drivetrain_cloud.goodput._checks import check_number
from drivetrain_core import ProgramError


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointPlan:
    """When checkpoints are made, and what they take.

    Args:
        interval_s: Seconds of training between two that are stored.
        stall_s: How long all wait for one.
        durable_s: After how long one can be loaded by others.
        memory_interval_s: Likewise for copies in the hosts' memory; None for no copies.
        memory_stall_s: How long all wait for a copy.
        has_replicas: Whether a copy survives the loss of its host.

    Raises:
        ProgramError: A value is out of range.

    Example:
        >>> CheckpointPlan(interval_s=900.0, stall_s=9.0).stall_share
        0.01
    """

    interval_s: float
    stall_s: float = 0.0
    durable_s: float = 0.0
    memory_interval_s: float | None = None
    memory_stall_s: float = 0.0
    has_replicas: bool = False

    def __post_init__(self) -> None:
        """Checks the values."""
        for name in ("stall_s", "durable_s", "memory_stall_s"):
            check_number(name, getattr(self, name), most=1e9)
        for name in ("interval_s", "memory_interval_s"):
            value = getattr(self, name)
            if value is None and name == "memory_interval_s":
                continue
            check_number(name, value)
            if value == 0 or math.isinf(value):
                message = f"{name} must be more than 0 and finite, got {value:g}"
                raise ProgramError(message)

    @property
    def stall_share(self) -> float:
        """Seconds of waiting for each second of training."""
        share = self.stall_s / self.interval_s
        if self.memory_interval_s is not None:
            share += self.memory_stall_s / self.memory_interval_s
        return share


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryProfile:
    """What a system needs to notice a failure and to train again.

    Args:
        name: Which system.
        exit_s: Until the end of a process is noticed.
        heartbeat_s: A node is heard of so often.
        node_timeout_s: A node counts as lost when it has been silent for so long.
        hang_timeout_s: A step counts as stuck after so long.
        slow_s: Until a slow node is named.
        corruption_s: Until wrong numbers are noticed.
        diagnose_s: Until it is known what follows from a failure.
        locate_s: What it takes on top to name the node to replace.
        manual_share: In how many of the failures of nodes people must find the node.
        manual_s: How long they take.
        wrong_share: How many diagnoses name no class, so that remedies are tried in turn.
        operator_s: How long a job that was stopped waits for somebody.
        keeps_survivors: Whether those who live keep their state and go on; else all start
            again from a checkpoint.
        regroup_s: Until survivors train again, without the lost.
        join_s: How long they wait while a node takes a place.
        restart_s: Until all processes have started again.
        load_s: Until they have loaded a checkpoint from storage.
        load_memory_s: Or a copy from memory.
        provision_s: Until a new node can take a place; one that stands by has it behind it.
        may_resize: Whether the job goes on with fewer nodes than it wants.
        resize_s: What that takes on top.

    Raises:
        ProgramError: A value is out of range.

    Example:
        >>> RecoveryProfile(name="mine", node_timeout_s=2.0, regroup_s=0.2).restart_s
        0.0
    """

    name: str
    exit_s: float = 0.0
    heartbeat_s: float = 0.0
    node_timeout_s: float = 0.0
    hang_timeout_s: float = 0.0
    slow_s: float = 0.0
    corruption_s: float = 0.0
    diagnose_s: float = 0.0
    locate_s: float = 0.0
    manual_share: float = 0.0
    manual_s: float = 0.0
    wrong_share: float = 0.0
    operator_s: float = 0.0
    keeps_survivors: bool = False
    regroup_s: float = 0.0
    join_s: float = 0.0
    restart_s: float = 0.0
    load_s: float = 0.0
    load_memory_s: float = 0.0
    provision_s: float = 0.0
    may_resize: bool = False
    resize_s: float = 0.0

    def __post_init__(self) -> None:
        """Checks the values."""
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name == "name" or one.name in _FLAGS:
                continue
            most = 1.0 if one.name in _SHARES else 1e9
            check_number(one.name, value, most=most)
        if self.heartbeat_s > self.node_timeout_s:
            message = (
                "heartbeat_s must not be more than node_timeout_s, got "
                f"{self.heartbeat_s:g} and {self.node_timeout_s:g}: every node would "
                "count as lost"
            )
            raise ProgramError(message)


_FLAGS = frozenset({"keeps_survivors", "may_resize"})
_SHARES = frozenset({"manual_share", "wrong_share"})
