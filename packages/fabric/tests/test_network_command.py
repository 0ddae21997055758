"""The command `simulate`."""

import json
import re
import subprocess
import sys

import pytest

from drivetrain_fabric import network
from drivetrain_fabric.cli import main

SMALL = ["simulate", "--gpus", "512", "--queue-pairs", "1,4"]

SPEC = """\
drivetrain_cluster: 1
name: small
nodes:
  - name: gpu
    count: 32
    devices: {kind: A100, count: 8, memory: 80GiB}
    nics: {count: 8, bandwidth: 200Gb/s, rails: true}
    switch: tor
switches:
  - {name: tor, uplink: spine, downlinks: 16, uplinks: 8, uplink_bandwidth: 400Gb/s}
  - {name: spine, downlinks: 64}
"""


def report(capsys, *words):
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_table_shows_every_setting(capsys):
    assert main([*SMALL, "--placements", "random,packed"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if "random" in line or "packed" in line]
    assert len(rows) == 8
    assert any("1.00" in row and "packed" in row for row in rows)


def test_json_of_a_job_has_its_phases(capsys):
    words = (*SMALL, "--traffic", "job", "--pipeline", "4", "--hash", "random")
    found = report(capsys, *words)
    assert found["gpus"] == 512
    assert found["fabric"]["num_nodes"] == 64
    measures = found["measures"]
    assert len(measures) == 3 * 2 * 2
    for measure in measures:
        assert set(measure["phase_s"]) == {"data", "pipeline"}
        assert measure["seconds"] == pytest.approx(sum(measure["phase_s"].values()))
        assert measure["slowdown"] >= 1


def test_cluster_file_is_the_fabric(capsys, tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text(SPEC)
    words = ("simulate", "--queue-pairs", "1,4", "--failed", "2")
    found = report(capsys, *words, "--spec", str(path), "--traffic", "tree")
    assert found["gpus"] == 256
    assert found["fabric"]["tiers"][0]["uplinks"] == 8
    assert len(found["fabric"]["tiers"]) == 2
    assert len(found["fabric"]["failed"]) == 2


def test_failed_links_are_drawn_by_the_seed(capsys):
    words = (*SMALL, "--failed", "3", "--placements", "random")
    one, again = report(capsys, *words), report(capsys, *words)
    assert one == again
    assert len(one["fabric"]["failed"]) == 3
    other = report(capsys, *words, "--seed", "5")
    assert other["fabric"]["failed"] != one["fabric"]["failed"]


def test_picture_and_advice_are_written(tmp_path, capsys):
    picture, advice = tmp_path / "fabric.svg", tmp_path / "nodes.txt"
    words = [*SMALL, "--svg", str(picture), "--advice", str(advice)]
    assert main(words) == 0
    assert picture.read_text().startswith("<svg")
    order = [int(line) for line in advice.read_text().split()]
    assert sorted(order) == list(range(64))


@pytest.mark.slow
def test_incast_shows_what_pauses_do(capsys, tmp_path):
    words = ["simulate", "--incast", "8"]
    picture = tmp_path / "incast.svg"
    assert main([*words, "--svg", str(picture)]) == 0
    # Three panels with a line a run, and the line of each run in the legend.
    assert picture.read_text().count("<polyline") == 3 * 3 + 3
    shown = capsys.readouterr().out
    assert "DCQCN and PFC" in shown
    assert "comes to rest at 25 Gb/s" in shown
    runs = report(capsys, *words)["runs"]
    assert runs["nothing"]["lost_bytes"] > 0
    assert runs["PFC"]["lost_bytes"] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--gpus", "0"],
            "--gpus: must be at least 1, got 0",
        ),
        (["--gpus", "12"], "--gpus-per-node, which is 8, got 12"),
        (["--tiers", "2", "--gpus", "12288"], "192 leaves, but .* 64 ports"),
        (["--nic-gbps", "-1"], "--nic-gbps: must be more than 0"),
        (["--uplink-gbps", "-400"], "--uplink-gbps: must be more than 0"),
        (["--placements", "best"], "--placements must be one of"),
        (["--queue-pairs", "0"], "--queue-pairs: must be at least 1, got 0"),
        (["--queue-pairs", "1000000"], "more than the 16000000"),
        (
            ["--traffic", "job", "--activations", "inf"],
            "--activations: must be finite, got inf",
        ),
        (["--seeds", "0"], "--seeds: must be at least 1, got 0"),
        (["--spine-downlinks", "0"], "--spine-downlinks: must be at least 1"),
        (
            ["--queue-pairs", "many"],
            "--queue-pairs: must be a whole number, got 'many'",
        ),
        (["--traffic", "gossip"], "--traffic must be one of .*, job, got 'gossip'"),
        (
            ["--traffic", "job", "--pipeline", "7"],
            "multiple of tensor x pipeline, which is 56, got 512",
        ),
        (["--seed", "-1", "--failed", "3"], "--seed: must be at least 0, got -1"),
        (["--seed", "-1", "--hash", "random"], "--seed: must be at least 0, got -1"),
        (["--seed", "-1"], "--seed: must be at least 0, got -1"),
        (["--hash", "md5"], "--hash must be one of"),
        (["--size", "much"], "--size: must be a number, got 'much'"),
        (["--size", "-1"], "--size: must be more than 0"),
        (["--size", "0G"], "--size: must be more than 0, got 0"),
        (["--failed", "-1"], "--failed: must be at least 0, got -1"),
        (["--failed", "100000"], "--failed must be 0 to"),
        (["--spec", "cluster.yaml"], "--spec describes the fabric: leave --gpus out"),
        (["--incast", "2"], "--incast has .* of its own: leave --gpus out"),
    ],
)
def test_wrong_options_are_one_line(words, message, capsys):
    refused(["--gpus", "512", *words], message, capsys)


def refused(words, message, capsys):
    try:
        status = main(["simulate", *words])
    except SystemExit as stopped:
        status = stopped.code
    assert status == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("drivetrain-fabric simulate: error: ")
    assert re.search(message, last)


def test_cluster_file_that_is_missing_is_a_failure(capsys):
    assert main(["simulate", "--spec", "/nowhere/cluster.yaml"]) == 1
    expected = "/nowhere/cluster.yaml: cannot be read: No such file or directory"
    assert capsys.readouterr().err == f"drivetrain-fabric: {expected}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--spec", "a", "--tiers", "3", "--no-rails"],
            "leave --no-rails, --tiers out",
        ),
        (["--incast", "0"], "--incast: must be at least 1, got 0"),
        (["--incast", "2", "--nic-gbps", "0"], "--nic-gbps: must be more than 0"),
        (["--incast", "2", "--seed", "-1"], "--seed: must be at least 0, got -1"),
        (["--incast", "2", "--advice", "a"], "leave --advice out"),
        (["--incast", "2", "--spec", "a"], "leave --spec out"),
        (
            ["--incast", "8", "--traffic", "nonsense", "--queue-pairs", "3"],
            "leave --queue-pairs, --traffic out",
        ),
        # The default, but given.
        (["--incast", "8", "--gpus", "12288"], "leave --gpus out"),
    ],
)
def test_options_that_would_not_count_are_refused(words, message, capsys):
    refused(words, message, capsys)


@pytest.mark.parametrize(
    "use",
    [
        lambda seed: network.Ecmp(seed=seed),
        lambda seed: network.run_scenario(network.incast(2), seconds=1e-3, seed=seed),
    ],
    ids=["hash", "queues"],
)
def test_negative_seeds_are_refused(use):
    use(0)
    with pytest.raises(network.FabricError, match="seed must be at least 0, got -1"):
        use(-1)


def test_public_names_are_sorted_and_there():
    assert network.__all__ == sorted(network.__all__)
    assert all(hasattr(network, name) for name in network.__all__)


def test_simulator_imports_no_torch():
    program = "import sys, drivetrain_fabric.network; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
