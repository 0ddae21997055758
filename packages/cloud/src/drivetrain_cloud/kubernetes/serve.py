"""Runs an operator as long as it may work: until it is ended, or leads no more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from drivetrain_cloud.kubernetes.leader_election import LeaderElection


async def serve(
    work: Callable[[], Awaitable[object]],
    election: LeaderElection | None,
    ending: asyncio.Event,
) -> int:
    """Works once this one leads, and returns the exit status.

    Args:
        work: What a leader does; it is cancelled when it must end.
        election: Of the leader; None for an operator that is alone.
        ending: Set by who wants it to end.

    Returns:
        0 if somebody wanted it to end, and 1 if the lead was lost: another one works
        already, and this one must not.

    Raises:
        Exception: What the work has raised.
    """
    end = asyncio.create_task(ending.wait())
    tasks: set[asyncio.Future[Any]] = {end}
    if election is not None:
        lead = asyncio.create_task(election.acquire())
        await asyncio.wait({end, lead}, return_when=asyncio.FIRST_COMPLETED)
        if lead.done() and lead.exception() is not None:
            # It is not known who leads: this one must not work.
            end.cancel()
            lead.result()
        lead.cancel()
        if not end.done():
            tasks.add(asyncio.create_task(election.hold()))
    code = 0
    if not end.done():
        tasks.add(asyncio.ensure_future(work()))
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        code = 0 if end in done else 1
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    if election is not None and code == 0:
        await election.release()
    for one in ended:
        if isinstance(one, Exception):
            raise one
    return code
