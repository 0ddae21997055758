"""Connection of a worker to its job, as its environment says: membership and store."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, NamedTuple

from torch.distributed import HashStore  # type: ignore[attr-defined]

from drivetrain_core.services import get_service
from drivetrain_elastic._client._master_client import MasterClient, address_and_token
from drivetrain_elastic._client._master_store import KEPT, MasterStore
from drivetrain_elastic._client._rendezvous_store import RendezvousStore
from drivetrain_elastic._membership._agent_membership import AgentMembership
from drivetrain_elastic._membership._single_process import SingleProcessMembership

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.distributed.distributed_c10d import Store

    from drivetrain_core.services import ProcessGroupFactory
    from drivetrain_elastic._membership._rank_assignment import MembershipSource

# A master may be away for long, while nobody needs it.
_PATIENCE_S = 600.0


class Connection(NamedTuple):
    """What a worker needs of its surroundings.

    Attributes:
        membership: Assigns the ranks.
        store: Where the ranks of all worlds of the job meet.
        make_factory: Returns what makes process groups.
    """

    membership: MembershipSource
    store: Store
    make_factory: Callable[[], ProcessGroupFactory]


def connect() -> Connection:
    """Returns what the environment offers: an agent and a master, or a world of one.

    Raises:
        DistributedError: The agent does not answer.
        ProgramError: The agent is there, but not where the master is.
    """
    path = os.environ.get("DRIVETRAIN_ELASTIC_AGENT")
    if path is None:
        return Connection(SingleProcessMembership(), HashStore(), _factory)
    client = MasterClient(*address_and_token(), patience_s=_PATIENCE_S)
    membership = AgentMembership(
        path,
        os.environ["DRIVETRAIN_ELASTIC_WORKER"],
        beat_s=float(os.environ["DRIVETRAIN_ELASTIC_BEAT_S"]),
    )
    return Connection(membership, MasterStore(client), _factory)


class MasterJobStore:
    """The service `job_store`: what the master of an agent's job keeps in its journal."""

    @contextlib.contextmanager
    def open(self) -> Iterator[Store | None]:
        """Gives the store; None where no agent has started this process.

        Raises:
            ProgramError: The agent is there, but not where the master is.
        """
        if "DRIVETRAIN_ELASTIC_AGENT" not in os.environ:
            yield None
            return
        with MasterClient(*address_and_token(), patience_s=_PATIENCE_S) as client:
            store = RendezvousStore(MasterStore(client), KEPT)
            # What others set is asked for, each time.
            store.forget()
            yield store


def _factory() -> ProcessGroupFactory:
    # One whose operations end when its sockets do, which others are not known to.
    found: ProcessGroupFactory = get_service("drivetrain-core:process_group")
    return found
