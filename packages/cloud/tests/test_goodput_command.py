"""The command `drivetrain-cloud goodput`."""

import json
import subprocess
import sys
from functools import partial

import pytest

from drivetrain_cloud._commands.commands import populate_command
from drivetrain_testing import check_wrong_use, run_subcommand

run_one = partial(run_subcommand, "drivetrain-cloud")
wrong_use = partial(check_wrong_use, "drivetrain-cloud")

SMALL = ["--gpus", "128", "--days", "5", "--seeds", "2"]
CLUSTER = """
drivetrain_cluster: 1
name: small
nodes:
  - {name: a, count: 20, devices: {kind: H100, count: 4, memory: 80GB}}
"""


@pytest.fixture
def goodput(capsys):
    """Runs the command; returns its exit status, output and errors."""

    def run(*options):
        status = run_one("goodput", partial(populate_command, name="goodput"), options)
        return status, *capsys.readouterr()

    return run


def test_command_shows_where_the_time_went(goodput):
    status, out, err = goodput(*SMALL)
    assert (status, err) == (0, "")
    assert "128 GPUs on 16 nodes" in out
    assert "of the time counts" in out
    assert "gpu" in out


def test_command_compares_systems_as_json(goodput):
    options = ["--recovery", "drivetrain,torchrun", "--json"]
    status, out, _ = goodput(*SMALL, *options, "--mtbf-gpu-h", "500")
    found = json.loads(out)
    assert status == 0
    assert found["drivetrain"]["goodput"] > found["torchrun"]["goodput"]
    assert sum(found["torchrun"]["lost"].values()) == pytest.approx(
        1 - found["torchrun"]["goodput"]
    )


def test_command_takes_a_cluster(goodput, tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(CLUSTER)
    options = ["--cluster", str(file), "--days", "1", "--seeds", "1", "--json"]
    status, out, _ = goodput(*options, "--standbys", "2", "--nodes-per-copy", "3")
    assert status == 0
    few = json.loads(out)["drivetrain"]
    assert few["gpus"] == 72
    status, out, _ = goodput(*options, "--mtbf-gpu-h", "100")
    assert json.loads(out)["drivetrain"]["mtbf_h"] < few["mtbf_h"] / 100


@pytest.mark.extra
@pytest.mark.parametrize(
    "options", [[], ["--sweep", "mtbf_h=1,10"], ["--sensitivity", "--json"]]
)
def test_command_writes_plots(goodput, tmp_path, options):
    plot = tmp_path / "plot.svg"
    small = ["--gpus", "64", "--days", "1", "--seeds", "1"]
    status, _, err = goodput(*small, *options, "--plot", str(plot))
    assert (status, err) == (0, "")
    assert plot.read_text().rstrip().endswith("</svg>")


def test_command_sweeps(goodput):
    sweep = ["--sweep", "mtbf_h=1,10", "--sweep", "corruption_s=0,7200"]
    status, out, _ = goodput(*SMALL, *sweep)
    assert status == 0
    assert len(out.splitlines()) == 6
    status, out, _ = goodput(*SMALL, *sweep, "--json")
    assert [one["mtbf_h"] for one in json.loads(out)] == [1, 1, 10, 10]


def test_command_shows_sensitivity(goodput):
    options = ["--sensitivity", "--gpus", "64", "--days", "1", "--seeds", "1"]
    status, out, _ = goodput(*options)
    assert status == 0
    assert "x 0.25" in out
    assert "hang_timeout_s" in out
    status, out, _ = goodput(*options, "--json")
    assert len(json.loads(out)["inputs"]["mtbf_h"]) == 4


def test_command_lists_inputs_with_their_sources(goodput):
    status, out, _ = goodput("--inputs", "--set", "restart_s=99")
    lines = {line.split()[1]: line for line in out.splitlines()}
    assert status == 0
    assert "measured" in lines["regroup_s"]
    # What was set has no source.
    assert lines["restart_s"].split()[2:] == ["99"]
    status, out, _ = goodput("--inputs", "--json")
    assert {one["recovery"] for one in json.loads(out)} == {"drivetrain"}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (["--gpus", "12"], "--gpus must be a multiple"),
        (["--gpus", "0"], "--gpus: must be at least 1"),
        (["--gpus-per-node", "0"], "--gpus-per-node: must be at least 1"),
        (["--mtbf-gpu-h", "-1"], "--mtbf-gpu-h: must be more than 0"),
        (["--mtbf-gpu-h", "nan"], "--mtbf-gpu-h: must be a number"),
        (["--days", "0"], "--days: must be more than 0"),
        (["--days", "nan"], "--days: must be a number"),
        (["--seeds", "0"], "--seeds: must be at least 1"),
        (["--standbys", "2000"], "--standbys must not be more"),
        (["--nodes-per-copy", "7"], "multiple of --nodes-per-copy"),
        (["--min-nodes", "1537"], "--min-nodes"),
        (["--recovery", "byterobust", "--min-nodes", "8"], "does not go on with fewer"),
        (["--recovery", "nobody"], "no preset is called 'nobody'"),
        (["--recovery", "torchrun,torchrun"], "twice"),
        (["--set", "interval_s"], "needs NAME=NUMBER"),
        (["--set", "interval_s=x"], "needs NAME=NUMBER"),
        (["--set", "interval_s=0"], "interval_s must be more than 0"),
        (["--set", "interval_s=1,2"], "--set takes one value"),
        (["--sweep", "nothing=1"], "no input is called 'nothing'"),
        (["--sweep", "load_s=1", "--sweep", "load_s=2"], "twice"),
        (["--sweep", "load_s=1", "--recovery", "torchrun,dlrover"], "needs one system"),
        (["--sweep", "load_s=1", "--sensitivity"], "give one of"),
        (["--inputs", "--plot", "a.svg"], "--inputs has no plot"),
        (["--plot", "a.gif"], "must end in"),
    ],
)
def test_command_that_asks_for_what_cannot_be_is_wrong_use(goodput, options, match):
    wrong_use(*goodput(*options), match)


def test_cluster_file_that_is_missing_is_a_failure(goodput):
    said = "missing.yaml: cannot be read: No such file or directory"
    assert goodput("--cluster", "missing.yaml") == (
        1,
        "",
        f"drivetrain-cloud: {said}\n",
    )


def test_command_cluster_without_nodes_is_one_line(goodput, tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text("drivetrain_cluster: 1\nname: none\nnodes: []\n")
    status, _, err = goodput("--cluster", str(file))
    assert status == 1
    assert "nodes must have at least one group" in err
    file.write_text(CLUSTER)
    found = goodput("--cluster", str(file), "--gpus-per-node", "4")
    wrong_use(*found, "give one of them")


def test_command_imports_neither_torch_nor_matplotlib():
    code = (
        "import sys, drivetrain_cloud.goodput;"
        "print([m for m in ('torch', 'matplotlib', 'grpc') if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"
