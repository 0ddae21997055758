"""End of an agent of torchrun, when the job is stopped or its node is to leave.

torchrun asks its rendezvous whether workers must start again, stops them if so, and asks for
the next world. That is where an end can be told: by an error which is an exit, too. The
errors that torchrun knows of would end it with a traceback, also when all is well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch.distributed.elastic.rendezvous import RendezvousClosedError

from drivetrain_elastic.decisions.ending import Ending
from drivetrain_elastic.decisions.past_ending import judge_past_ending
from drivetrain_elastic.protocol import messages as pb

if TYPE_CHECKING:
    from typing import Self

# What an agent of torchrun whose workers have ended says of the job.
CLOSED = "torchrun has ended the job"


class AgentEnd(NamedTuple):
    """That an agent of torchrun is to end.

    Attributes:
        exit_code: Of the agent.
        reason: For people.
        stops_workers: Whether workers that train are stopped for it.
    """

    exit_code: int
    reason: str
    stops_workers: bool = True

    def or_before(self, before: AgentEnd | None) -> Self | AgentEnd:
        """Returns what counts of this end and of one that was heard of before it."""
        return self if before is None or not before.stops_workers else before


class AgentEndError(RendezvousClosedError, SystemExit):
    """There is no world any more for this agent, which ends with the code.

    Args:
        end: How, and why.
    """

    def __init__(self, end: AgentEnd) -> None:
        super().__init__(end.reason)
        self.code = end.exit_code


def end_of(command: pb.Command, *, has_begun: bool = True) -> AgentEnd | None:
    """Returns what a command of the master means for an agent; None for nothing.

    Args:
        command: Of the master.
        has_begun: Whether the agent has come before the job ended.

    Example:
        >>> end_of(pb.Command(what=pb.Command.STOP_ALL, reason="enough"))
        AgentEnd(exit_code=0, reason='the job has ended: enough', stops_workers=True)
    """
    if command.what == pb.Command.LEAVE:
        return AgentEnd(command.exit_code, f"this node leaves: {command.reason}")
    if command.what != pb.Command.STOP_ALL:
        return None
    ending = Ending(command.exit_code, command.reason)
    if command.ended_at_s and not has_begun:
        return AgentEnd(*judge_past_ending(ending, command.ended_at_s, on_ended="fail"))
    if command.reason == CLOSED:
        # Workers end at different times. Those that still train may do so, as they may
        # with torchrun's own rendezvous; those that have failed cannot start again.
        return AgentEnd(1, f"the job has ended: {CLOSED}", stops_workers=False)
    return AgentEnd(ending.exit_code, f"the job has ended: {ending.reason}")
