"""The command `topo`, and the cluster file that a host becomes."""

import contextlib
import dataclasses
import io
import json
from pathlib import Path

import pytest
from recorded_machines import Machine

from drivetrain_core import ClusterSpecError, DrivetrainError
from drivetrain_core.commands import CommandParser, run_command
from drivetrain_core.services import ClusterSpec
from drivetrain_fabric.topology import (
    LinkMatrix,
    populate_topo,
    read_topology,
    to_cluster_spec,
    to_node_group,
    topology_from_json,
    topology_to_json,
)
from drivetrain_testing import run_ranks

FOLDER = Path(__file__).parent / "data" / "topology"


@pytest.fixture
def read(tmp_path):
    """Reads a recorded machine."""

    def reader(name):
        machine = Machine.load(FOLDER / f"{name}.json")
        sysfs = machine.write_sysfs(tmp_path / name)
        return read_topology(sysfs, nvml=machine.nvml, name=name)

    return reader


def run(*arguments):
    parser = CommandParser(prog="drivetrain-fabric")
    populate_topo(parser.add_subparsers())
    args = parser.parse_args(["topo", *map(str, arguments)])
    return run_command("drivetrain-fabric", args.run, args)


def test_topo_shows_this_machine(capsys):
    assert run() == 0
    assert "NUMA node 0" in capsys.readouterr().out


def test_topo_shows_a_copy_of_sysfs(capsys, tmp_path):
    machine = Machine.load(FOLDER / "pcie-8-gpu.json")
    machine.write_sysfs(tmp_path / "server")
    assert run("--sysfs", tmp_path / "server") == 0
    out = capsys.readouterr().out
    assert out.startswith("server: 8 x NVIDIA 26b9")
    assert "\x1b" not in out


def test_topo_writes_json_that_it_reads_and_a_picture(capsys, tmp_path, read):
    host = read("dgx-h100")
    file, picture = tmp_path / "host.json", tmp_path / "host.svg"
    file.write_text(topology_to_json(host))
    assert run("--file", file, "--json", "--svg", picture) == 0
    assert topology_from_json(capsys.readouterr().out) == host
    assert picture.read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--file", "none.json"], "none.json: it cannot be read"),
        (["--sysfs", "none"], "none is not a folder"),
        (["--svg", "none/host.svg"], "none/host.svg"),
    ],
)
def test_topo_says_in_one_line_what_is_wrong(
    capsys, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("drivetrain-fabric: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [["--file", "a", "--measure"], ["--meas"], ["--measure", "--budget", "0"]],
)
def test_topo_refuses_what_does_not_go_together(capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        run(*arguments)
    assert stopped.value.code == 2


def test_topo_measures_a_world_of_one(capsys, tmp_path):
    assert run("--measure", "--json", "--svg", tmp_path / "links.svg") == 0
    assert json.loads(capsys.readouterr().out) == {
        "links": {"delay_s": [[0.0]], "bytes_per_s": [[0.0]], "ranks": [0]},
        "hosts": [[0]],
        "ring": [0],
        "flaws": [],
    }
    assert (tmp_path / "links.svg").read_text().startswith("<svg")


def command_on_a_rank():
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = run("--measure", "--budget", "0.2")
    return status, out.getvalue()


@pytest.mark.slow
def test_topo_measures_under_torchrun_and_one_rank_speaks():
    first, second = run_ranks(command_on_a_rank, 2, process_group=False)
    assert first[0] == 0
    assert first[1].count("Ring: 0 1") == 1
    assert second == (0, "")


def test_cluster_spec_of_a_dgx(read):
    spec = to_cluster_spec(read("dgx-h100"), count=4, name="pod")
    assert ClusterSpec.from_yaml(spec.to_yaml()) == spec
    (group,) = spec.nodes
    assert (spec.name, group.name, spec.num_devices) == ("pod", "dgx-h100", 32)
    assert group.devices.kind == "NVIDIA H100 80GB HBM3"
    assert group.memory_bytes == 2 << 40
    assert [link.kind for link in group.links] == ["NVLink", "PCIe"]
    assert group.links[0].bandwidth_bytes_per_s == 450e9
    assert (group.nics.count, group.nics.bandwidth_bits_per_s) == (8, 400e9)
    assert group.nics.rdma


def test_cluster_spec_counts_on_the_worst_gpu(read):
    (group,) = to_cluster_spec(read("pcie-8-gpu")).nodes
    (link,) = group.links
    assert link.kind == "PCIe"
    assert link.bandwidth_bytes_per_s == pytest.approx(15.75e9, rel=1e-3)
    assert group.nics.count == 1


def test_cluster_spec_without_gpus_and_speeds_has_neither(read):
    group = to_node_group(read("microvm"))
    assert group.devices.type == "cpu"
    assert group.nics is None
    assert group.links == ()


def test_cluster_spec_takes_what_was_measured(read):
    links = LinkMatrix(
        delay_s=((0.0, 1e-6, 1e-4), (1e-6, 0.0, 1e-4), (1e-4, 1e-4, 0.0)),
        bytes_per_s=((0.0, 1e10, 1e9), (1e10, 0.0, 1e9), (1e9, 1e9, 0.0)),
    )
    unknown = to_node_group(read("cloud-vm"), links=links).nics
    assert (unknown.count, unknown.bandwidth_bits_per_s) == (1, 8e9)
    assert unknown.latency_s == 1e-4
    known = to_node_group(read("dgx-h100"), links=links).nics
    assert (known.count, known.bandwidth_bits_per_s) == (8, 400e9)
    assert known.latency_s == 1e-4


def test_cluster_spec_refuses_what_it_cannot_tell(read):
    host = read("nvlink-bridge")
    first, *rest = host.gpus
    mixed = (dataclasses.replace(first, name="L4"), *rest)
    with pytest.raises(DrivetrainError, match="one kind of GPU, got L4, NVIDIA A100"):
        to_node_group(dataclasses.replace(host, gpus=mixed))
    blank = (dataclasses.replace(first, memory_bytes=None), *rest)
    with pytest.raises(DrivetrainError, match=r"memory of NVIDIA A100.*is not known"):
        to_node_group(dataclasses.replace(host, gpus=blank))
    with pytest.raises(ClusterSpecError, match="count"):
        to_cluster_spec(host, count=0)


def test_cluster_spec_leaves_out_nvlinks_of_unknown_speed(read):
    host = read("nvlink-bridge")
    links = (dataclasses.replace(host.nvlinks[0], bytes_per_s=None), host.nvlinks[1])
    group = to_node_group(dataclasses.replace(host, nvlinks=links))
    assert [link.kind for link in group.links] == ["PCIe"]
