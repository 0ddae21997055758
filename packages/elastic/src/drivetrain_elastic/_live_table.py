"""A job in the terminal, as it goes on."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import rich.box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from drivetrain_elastic._client import MasterClient, MasterError
from drivetrain_elastic.protocol import _messages as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["show_live", "table_of"]

_EVERY_S = 0.5
_NUM_EVENTS = 8
_SLOW = 1.3


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
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for name, justify in (
        ("node", "left"),
        ("worker", "left"),
        ("rank", "right"),
        ("step", "right"),
        ("s/step", "right"),
        ("does", "left"),
        ("slower", "right"),
        ("CPU", "right"),
        ("memory", "right"),
        ("alerts", "left"),
    ):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for node in status.nodes:
        _add_node(table, node)
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
    parts: list[Any] = [head, table]
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


def _add_node(table: Table, node: Any) -> None:
    hardware = node.hardware
    memory = ""
    if hardware.memory_total:
        memory = f"{hardware.memory_used / hardware.memory_total:.0%}"
    alerts = Text(", ".join(one.kind for one in node.alerts), "red")
    first = [node.node, f"{hardware.cpu_share:.0%}", memory]
    if not node.workers:
        table.add_row(
            Text(first[0]), "", "", "", "", "", "", first[1], first[2], alerts
        )
    for at, one in enumerate(node.workers):
        is_first = at == 0
        slower = Text(
            f"{one.slowness:.2f}x" if one.slowness else "",
            "red" if one.slowness >= _SLOW else "",
        )
        table.add_row(
            Text(first[0] if is_first else ""),
            Text(one.name.rsplit("/", 1)[-1]),
            str(one.rank) if one.rank >= 0 else one.status,
            str(one.step),
            f"{one.step_s:.3f}" if one.step_s else "",
            Text(f"{one.phase} {one.phase_s:.1f} s"),
            slower,
            first[1] if is_first else "",
            first[2] if is_first else "",
            alerts if is_first else Text(""),
        )
