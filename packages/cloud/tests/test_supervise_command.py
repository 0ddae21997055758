"""The command that supervises: what it reads, refuses and shows."""

from __future__ import annotations

import io
import signal
import tempfile
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from drivetrain_cloud._commands.commands import populate_command
from drivetrain_cloud._commands.supervise_table import supervise_table
from drivetrain_cloud.cli import main
from drivetrain_cloud.spot import (
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
from drivetrain_cloud.spot.config import AfterMaxWait, Recovery
from drivetrain_cloud.spot.job_control import JobView
from drivetrain_cloud.spot.supervisor import Done, Supervisor
from drivetrain_core import DistributedError
from drivetrain_core.commands import CommandParser
from drivetrain_testing import check_wrong_use, exit_status

ending = partial(exit_status, main)
wrong_use = partial(check_wrong_use, "drivetrain-cloud")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--nodes", "0"], "--nodes: must be at least 1"),
        (["--nodes", "2", "--min-nodes", "3"], "1 <= --min-nodes <= nodes"),
        (["--nodes", "3", "--unit", "2"], "--nodes and --max-nodes must be multiples"),
        (["--max-wait-s", "nan"], "--max-wait-s: must be a number"),
        (["--cloud", "aws"], "--cloud: takes one of gcp, "),
        (["--cloud", "ibm=30"], "--cloud: takes one of gcp, "),
        (["--cloud", "aws=0"], "--cloud: must be more than 0, got 0"),
        (["--offer", "mine"], "mine"),
        (["--fit-nodes", "--recovery", "wait-full"], "by resizing only"),
        (["--fit-nodes", "--min-marginal", "2"], "--min-marginal: must be from 0 to 1"),
        (["--tolerate", "1"], "is of --recovery wait-full"),
        (["--nproc-per-node", "0"], "--nproc-per-node: must be at least 1"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_starts(
    capsys, tmp_path, options, words
):
    folder = tmp_path / "job"
    status = ending(["supervise", "--folder", folder, *options])
    wrong_use(status, *capsys.readouterr(), words)
    assert not (folder / "job.db").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--trace", "nowhere.csv"], "cannot be read: No such file or directory"),
        (["no-such-script.py"], "there is no script"),
    ],
)
def test_file_that_is_missing_is_said_before_anything_starts(
    capsys, tmp_path, options, words
):
    folder = tmp_path / "job"
    assert main(["supervise", "--folder", str(folder), *options]) == 1
    assert words in capsys.readouterr().err
    assert not (folder / "job.db").exists()


def test_prices_that_cannot_say_the_saving_are_refused_before_anything_starts(
    capsys, tmp_path
):
    prices, folder = tmp_path / "prices.csv", tmp_path / "job"
    head = "offer,market,per_hour,currency,valid_from,source\n"
    prices.write_text(f"{head}mine,spot,1,EUR,2026-01-01T00:00:00Z,me\n")
    options = ["--folder", str(folder), "--prices", str(prices)]
    assert main(["supervise", *options, "--offer", "mine"]) == 2
    assert "there is no on-demand price of 'mine'" in capsys.readouterr().err
    assert main(["supervise", *options]) == 2
    assert "--offer NAME says what the prices call" in capsys.readouterr().err
    assert not (folder / "job.db").exists()


class _FakeJob:
    """A job that does what a test says in place of running."""

    def __init__(self, program, config, trace, *, folder, **options):
        self.folder, self.was_closed = Path(folder), False
        (self.folder / "spot-0.txt").write_text("why it failed\n")
        made.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.was_closed = True

    def run(self, **options):
        raise NotImplementedError


made: list[_FakeJob] = []


@pytest.fixture
def fake_job(monkeypatch, tmp_path):
    """Puts a job that says what it does in the place of the real one."""
    monkeypatch.setattr("drivetrain_cloud._commands.supervise.LocalSpotJob", _FakeJob)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made.clear()
    return _FakeJob


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_nodes_as_well(fake_job, monkeypatch, number):
    monkeypatch.setattr(
        fake_job, "run", lambda _, **options: signal.raise_signal(number)
    )
    # One that is ignored, as under nohup, stays so.
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as ended:
            main(["supervise"])
        assert ended.value.code == 128 + number
        assert made[0].was_closed
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_the_output_of_nodes_stays_if_the_job_ends_badly(fake_job, monkeypatch, capsys):
    def run(self, **options):
        raise DistributedError("5 agents in a row have ended; their output says why")

    monkeypatch.setattr(fake_job, "run", run)
    assert main(["supervise"]) == 1
    folder = made[0].folder
    assert folder.name == "byte_lm"
    assert (folder / "spot-0.txt").read_text() == "why it failed\n"
    assert f"the output of each node is in {folder}" in capsys.readouterr().err


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


def test_the_table_of_a_job_that_has_ended_shows_no_nodes():
    supervisor = Supervisor(None, None, SpotConfig(nodes=2))
    node = Node(
        name="spot-0", market=Market.SPOT, phase=NodePhase.REQUESTED, since_s=60.0
    )
    supervisor.capacity = Capacity(nodes=(node,), phase=JobPhase.ENDED)
    supervisor.view = JobView(ended="all workers have finished")
    text = io.StringIO()
    Console(file=text, width=100).print(supervise_table(supervisor, 50.0, 110.0))
    assert "ended with 0: all workers have finished" in text.getvalue()
    assert "spot-0" not in text.getvalue()


# What looks at the text of a script does not see that it makes no loop.
MAKES_NONE = """
import pathlib
from drivetrain_elastic import ElasticLoop
with pathlib.Path(__file__).with_name("began").open("a") as file:
    file.write("x")
make = ElasticLoop
"""


@pytest.mark.faults
def test_script_that_makes_no_loop_runs_on_one_node_alone(tmp_path, capfd):
    script = tmp_path / "script.py"
    script.write_text(MAKES_NONE)
    words = ["--folder", str(tmp_path / "job"), "--plain", str(script)]
    assert main(["supervise", "--nproc-per-node", "2", *words]) == 1
    assert "ended without an ElasticLoop" in capfd.readouterr().err.splitlines()[-1]
    assert (tmp_path / "began").read_text() == "x"


def test_script_that_can_make_no_loop_is_not_run(tmp_path, capsys):
    script = tmp_path / "plain.py"
    script.write_text("import torch\n")
    assert main(["supervise", "--nproc-per-node", "2", str(script)]) == 1
    said = f"{script} was not run: it trains without an ElasticLoop: train in the steps"
    assert said in capsys.readouterr().err


def test_choices_of_the_command_are_those_of_the_job():
    parser = CommandParser(prog="program")
    populate_command(parser, "supervise")
    choices = {one.dest: one.choices for one in parser._actions if one.choices}
    assert choices["recovery"] == [one.value for one in Recovery]
    assert choices["after_max_wait"] == [one.value for one in AfterMaxWait]
    found = parser.parse_args([])
    default = SpotConfig(nodes=4)
    assert Recovery(found.recovery) == default.recovery
    assert AfterMaxWait(found.after_max_wait) == default.after_max_wait
