"""What a worker finds in its environment: who tells it of worlds, and where ranks meet."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from torch.distributed import HashStore  # type: ignore[attr-defined]

from drivetrain_core.services import get_service
from drivetrain_elastic._agent_seats import AgentSeats
from drivetrain_elastic._client import MasterClient, address_and_token
from drivetrain_elastic._lone_seat import LoneSeat
from drivetrain_elastic._store import MasterStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.distributed_c10d import Store

    from drivetrain_core.services import ProcessGroupFactory
    from drivetrain_elastic._seat import SeatSource

__all__ = ["Connection", "connect"]

# A master may be away for long, while nobody needs it.
_PATIENCE_S = 600.0


class Connection(NamedTuple):
    """What a worker needs of its surroundings.

    Attributes:
        seats: Tells of worlds.
        store: Where the ranks of all worlds of the job meet.
        make_factory: Returns what makes process groups.
    """

    seats: SeatSource
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
        return Connection(LoneSeat(), HashStore(), _factory)
    client = MasterClient(*address_and_token(), patience_s=_PATIENCE_S)
    seats = AgentSeats(
        path,
        os.environ["DRIVETRAIN_ELASTIC_WORKER"],
        beat_s=float(os.environ["DRIVETRAIN_ELASTIC_BEAT_S"]),
    )
    return Connection(seats, MasterStore(client), _factory)


def _factory() -> ProcessGroupFactory:
    # One whose operations end when its sockets do, which others are not known to.
    found: ProcessGroupFactory = get_service("drivetrain-core:process_group")
    return found
