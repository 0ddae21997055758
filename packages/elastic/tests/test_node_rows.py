"""The table of workers leaves columns out where it does not fit, and cuts nothing."""

import io

import pytest
from rich.console import Console

from drivetrain_elastic._commands._live_table import table_of
from drivetrain_elastic.protocol import messages as pb


def drawn(width, *, name="node0", slowness=1.02, alerts=()):
    workers = [
        pb.WorkerStatus(
            name=f"{name}/4f3a-{rank}",
            status="member",
            rank=rank,
            step=512,
            step_s=0.125,
            phase="between steps",
            phase_s=12.5,
            slowness=slowness,
        )
        for rank in range(2)
    ]
    hardware = pb.Hardware(cpu_share=0.75, memory_used=40, memory_total=100)
    node = pb.NodeStatus(
        node=name,
        workers=workers,
        hardware=hardware,
        alerts=[pb.Alert(kind=kind, reason="x") for kind in alerts],
    )
    out = io.StringIO()
    status = pb.Status(epoch=1, world_size=2, reason="start", nodes=[node])
    Console(file=out, width=width).print(table_of(status, []))
    lines = out.getvalue().splitlines()
    (head,) = [line for line in lines if line.split()[:1] == ["node"]]
    return head.split(), "\n".join(lines)


@pytest.mark.parametrize("alerts", [(), ("traffic",)])
@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 160])
def test_nothing_is_cut(width, alerts):
    head, text = drawn(width, alerts=alerts)
    assert "…" not in text
    assert {"node", "rank", "step"} <= set(head)
    assert text.count(" 512") == 2
    if width >= 80:
        assert {"worker", "s/step", "does"} <= set(head)
        assert text.count("between steps 12.5 s") == 2
    if width >= 60:
        assert ("traffic" in text) == bool(alerts)
    if width == 160:
        assert {"slower", "CPU", "memory", "alerts"} <= set(head)


def test_empty_columns_are_left_out_first():
    head, _ = drawn(80, slowness=0.0)
    assert "slower" not in head
    assert "alerts" not in head
    assert "CPU" in head


def test_name_that_is_too_long_goes_on_in_the_next_line():
    name = "a-node-of-a-name-that-is-longer-than-the-line"
    _, text = drawn(30, name=name)
    assert "…" not in text
    parts = [line.split()[0] for line in text.splitlines() if line.strip()]
    assert name in "".join(parts)


def test_node_without_workers_has_a_row():
    node = pb.NodeStatus(node="b")
    out = io.StringIO()
    status = pb.Status(nodes=[node])
    Console(file=out, width=80).print(table_of(status, []))
    assert ["b", "0%"] in [line.split() for line in out.getvalue().splitlines()]
