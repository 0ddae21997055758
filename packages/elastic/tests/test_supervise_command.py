"""The command that supervises: what it reads, refuses and shows."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from drivetrain_elastic._supervise_table import supervise_table
from drivetrain_elastic.cli import main
from drivetrain_elastic.spot import (
    Capacity,
    JobPhase,
    Leave,
    Market,
    Node,
    NodePhase,
    Notice,
    Request,
    SpotConfig,
)
from drivetrain_elastic.spot.supervisor import Done, Supervisor


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--nodes", "0"], "1 <= min_nodes <= nodes"),
        (["--cloud", "aws"], "--cloud needs a name and seconds"),
        (["--cloud", "ibm=30"], "clouds out of"),
        (["--trace", "nowhere.csv"], "cannot be read"),
        (["no-such-script.py"], "there is no script"),
        (["--offer", "mine"], "mine"),
        (["--fit-nodes", "--recovery", "wait-full"], "by resizing only"),
        (["--fit-nodes", "--min-marginal", "2"], "min_marginal must be from 0 to 1"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_starts(
    capsys, tmp_path, options, words
):
    folder = tmp_path / "job"
    assert main(["supervise", "--folder", str(folder), *options]) == 1
    assert words in capsys.readouterr().err
    assert not (folder / "job.db").exists()


def test_the_table_shows_nodes_notices_and_reasons():
    supervisor = Supervisor(None, None, SpotConfig(nodes=2))
    going = Notice(heard_s=100.0, deadline_s=130.0)
    supervisor.capacity = Capacity(
        nodes=(
            Node(
                name="spot-0",
                market=Market.SPOT,
                phase=NodePhase.TRAINING,
                since_s=60.0,
                notice=going,
            ),
            Node(
                name="on-demand-1",
                market=Market.ON_DEMAND,
                phase=NodePhase.REQUESTED,
                since_s=105.0,
            ),
        ),
        phase=JobPhase.TRAINING,
        phase_since_s=60.0,
        is_saving=True,
    )
    request = Request(market=Market.SPOT, count=3, reason="1 of 2 nodes are there")
    leave = Leave(node="spot-0", deadline_s=130.0, reason="it will be taken away")
    supervisor.done.extend([Done(100.0, request), Done(109.0, leave)])
    text = io.StringIO()
    console = Console(file=text, width=100)
    console.print(supervise_table(supervisor, 50.0, 110.0))
    shown = text.getvalue()
    for words in (
        "training for 50 s",
        "saving a checkpoint",
        "spot-0",
        "20 s",
        "on-demand-1",
        "50 s  request 3: 1 of 2 nodes are there",
        "59 s  leave spot-0: it will be taken away",
    ):
        assert words in shown
