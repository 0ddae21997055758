"""A supervised job in the terminal: its nodes, notices, decisions and their reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich.box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from drivetrain_cloud.spot import JobPhase, Market, NodePhase

if TYPE_CHECKING:
    from drivetrain_cloud.spot.capacity import Node
    from drivetrain_cloud.spot.supervisor import Done, Supervisor

_NUM_DONE = 10
_STYLES = {
    NodePhase.REQUESTED: "dim",
    NodePhase.READY: "cyan",
    NodePhase.TRAINING: "green",
    NodePhase.LEAVING: "yellow",
}


def supervise_table(supervisor: Supervisor, began_s: float, now_s: float) -> Group:
    """Returns what is shown of a job.

    Args:
        supervisor: Of the job.
        began_s: When it began, as `time.monotonic()` counts.
        now_s: The time.
    """
    capacity, view = supervisor.capacity, supervisor.view
    style = {JobPhase.TRAINING: "green", JobPhase.ENDED: ""}.get(
        capacity.phase, "yellow"
    )
    head = Text(f"{now_s - began_s:6.0f} s  ")
    head.append(capacity.phase.value, style)
    head.append(
        f" for {now_s - capacity.phase_since_s:.0f} s, on {len(view.training)} nodes, "
        f"step {view.step}"
    )
    if view.step_s:
        head.append(f", {view.step_s:.3f} s a step")
    if capacity.is_saving:
        head.append(", saving a checkpoint", "yellow")
    elif supervisor.saves:
        last = supervisor.saves[-1]
        head.append(
            f", step {last.step} is durable since {now_s - last.durable_s:.0f} s"
        )
    # A job that has ended has no nodes, whatever the pool still lists.
    parts: list[Any] = [head]
    if not view.ended:
        parts.append(_nodes(supervisor, now_s))
    done = list(supervisor.done)[-_NUM_DONE:]
    parts += [_decision(one, began_s) for one in done]
    if view.ended:
        style = "red" if view.exit_code else "green"
        parts.append(Text(f"ended with {view.exit_code}: {view.ended}", style))
    return Group(*parts)


def _nodes(supervisor: Supervisor, now_s: float) -> Table:
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for name, justify in (
        ("node", "left"),
        ("market", "left"),
        ("does", "left"),
        ("for", "right"),
        ("taken away in", "right"),
    ):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for node in supervisor.capacity.nodes:
        market = Text(
            node.market.value, "red" if node.market == Market.ON_DEMAND else ""
        )
        table.add_row(
            node.name,
            market,
            Text(node.phase.value, _STYLES[node.phase]),
            f"{max(0.0, now_s - node.since_s):.0f} s",
            Text(_left(node, now_s), "yellow"),
        )
    return table


def _left(node: Node, now_s: float) -> str:
    if node.notice is None:
        return ""
    return f"{max(0.0, node.notice.deadline_s - now_s):.0f} s"


def _decision(one: Done, began_s: float) -> Text:
    text = Text(f"{one.at_s - began_s:6.0f} s  ", "dim")
    what = type(one.action).__name__.lower()
    subject = getattr(one.action, "node", "") or getattr(one.action, "count", "")
    nodes = getattr(one.action, "nodes", ())
    subject = subject or ", ".join(nodes)
    text.append(f"{what} {subject}".strip(), "bold")
    text.append(f": {one.action.reason}")
    return text
