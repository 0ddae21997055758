"""Live table of a job in the terminal."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from drivetrain_elastic._client._master_client import MasterClient, MasterError
from drivetrain_elastic._commands._node_rows import FittingTable, rows_of
from drivetrain_elastic._commands._requests import client_of
from drivetrain_elastic.protocol import messages as pb

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_EVERY_S = 0.5
_NUM_EVENTS = 8


def run(arguments: argparse.Namespace) -> int:
    """Shows the job that the arguments name, and returns the exit status."""
    with client_of(arguments) as client:
        show_live(client)
    return 0


def show_live(
    client: MasterClient, *, console: Console | None = None, num_times: int = 0
) -> None:
    """Shows a job until it has ended, or somebody interrupts it.

    Args:
        client: Of its master. One that is away for a time is waited for.
        console: Where; by default standard output.
        num_times: How often it is looked at; 0 for no end.
    """
    console = console or Console()
    events: deque[Any] = deque(maxlen=_NUM_EVENTS)
    last, num = 0, 0
    with (
        contextlib.suppress(KeyboardInterrupt),
        Live(console=console, auto_refresh=False, transient=False) as live,
    ):
        while True:
            try:
                status = client.call("GetStatus", pb.StatusRequest())
                request = pb.EventsRequest()
                # A word of Python's own.
                setattr(request, "from", last + 1)
                for event in client.stream("WatchEvents", request, 5.0):
                    events.append(event)
                    last = event.number
                live.update(table_of(status, list(events)), refresh=True)
            except MasterError as error:
                live.update(Text(f"no master answers: {error}", "yellow"), refresh=True)
            else:
                if status.ended:
                    return
            num += 1
            if num == num_times:
                return
            time.sleep(_EVERY_S)


def table_of(status: pb.Status, events: Sequence[Any]) -> Group:
    """Returns what is shown of a job.

    Args:
        status: How it stands.
        events: The last ones.
    """
    rows = [row for node in status.nodes for row in rows_of(node)]
    time_ledger = status.time
    share = (
        time_ledger.effective_s / time_ledger.total_s if time_ledger.total_s else 0.0
    )
    head = Text(
        f"world {status.epoch} of {status.world_size}: {status.reason}\n"
        f"effective {share:.1%} of {time_ledger.total_s:.0f} s, "
        f"{time_ledger.num_steps} steps"
    )
    for row in list(time_ledger.lost)[:3]:
        head.append(f"; {row.what} {row.seconds:.1f} s ({row.cause})", "dim")
    parts: list[Any] = [head, FittingTable(rows)]
    parts += [
        Text(f"excluded: {one.machine}: {one.reason}", "red") for one in status.excluded
    ]
    parts += [
        Text(f"{one.kind} {one.subject}: {one.reason.splitlines()[0]}"[:200], "dim")
        for one in events
        if one.reason
    ]
    if status.ended:
        style = "red" if status.exit_code else "green"
        parts.append(Text(f"ended with {status.exit_code}: {status.ended}", style))
    return Group(*parts)
