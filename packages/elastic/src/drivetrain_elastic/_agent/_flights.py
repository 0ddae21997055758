"""Flight records: the last collectives of a node's workers, for the hang report."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from drivetrain_elastic._membership._agent_membership import flight_path
from drivetrain_elastic._observability._flight_record import read_flight_record
from drivetrain_elastic.protocol import messages as pb

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drivetrain_elastic._agent._worker import LocalWorker

_MOST_OPERATIONS = 16


def flights_of(workers: Iterable[LocalWorker], agent: str) -> pb.Flights:
    """Returns the last operations of workers; none of those that have noted none.

    Args:
        workers: Of this node.
        agent: Where the agent listens; the records lie beside it.
    """
    now_s, found = time.monotonic(), []
    for worker in workers:
        if worker.process is None or worker.is_spare:
            continue
        operations = read_flight_record(flight_path(agent, worker.process.pid))
        found.append(
            pb.WorkerFlight(
                name=worker.name,
                operations=[
                    pb.Operation(
                        epoch=one.epoch,
                        step=one.step,
                        collective=one.collective,
                        name=one.name,
                        seconds=now_s - one.began_s,
                        is_waiting=one.is_waiting,
                    )
                    for one in operations[-_MOST_OPERATIONS:]
                ],
            )
        )
    return pb.Flights(workers=found)
