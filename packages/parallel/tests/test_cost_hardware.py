"""Hardware out of cluster descriptions, and what measurements change of it."""

from __future__ import annotations

import dataclasses

import pytest
from cost_hardware import model, nodes, options

from drivetrain_core import MeshShape
from drivetrain_core._errors import ClusterSpecError
from drivetrain_core.services import ClusterSpec, Device, Link, Nic, NodeGroup
from drivetrain_parallel.cost import (
    Hardware,
    Path,
    Probes,
    calibrate,
    efficiency_of,
    predict,
)

DEVICE = Device(
    kind="NVIDIA A100-SXM4-80GB",
    count=8,
    memory_bytes=80 * 2**30,
    peak_flops={"bfloat16": 312e12},
    memory_bandwidth_bytes_per_s=2039e9,
)
GROUP = NodeGroup(
    name="gpu",
    devices=DEVICE,
    links=(Link(kind="NVLink", bandwidth_bytes_per_s=300e9, latency_s=5e-6),),
    nics=Nic(count=4, bandwidth_bits_per_s=400e9, latency_s=1e-5),
)


def test_memory_bandwidth_survives_a_file():
    spec = ClusterSpec(name="one", nodes=(GROUP,))
    assert "memory_bandwidth: 2.039TB/s" in spec.to_yaml()
    assert ClusterSpec.from_yaml(spec.to_yaml()) == spec
    without = dataclasses.replace(DEVICE, memory_bandwidth_bytes_per_s=0.0)
    text = ClusterSpec(
        name="one", nodes=(dataclasses.replace(GROUP, devices=without),)
    ).to_yaml()
    assert "memory_bandwidth" not in text


def test_memory_bandwidth_needs_a_unit():
    text = ClusterSpec(name="one", nodes=(GROUP,)).to_yaml()
    with pytest.raises(ClusterSpecError, match=r"memory_bandwidth .*a number with a"):
        ClusterSpec.from_yaml(text.replace("2.039TB/s", "2039"))


def test_cards_of_a_node_are_shared_by_its_devices():
    hardware = Hardware.of(GROUP)
    assert hardware.network == Path(bytes_per_s=4 * 50e9 / 8, latency_s=1e-5)
    assert hardware.link == Path(bytes_per_s=300e9, latency_s=5e-6)
    assert hardware.efficiency == efficiency_of("A100")


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (
            dataclasses.replace(
                GROUP,
                devices=dataclasses.replace(DEVICE, memory_bandwidth_bytes_per_s=0.0),
            ),
            "nodes 'gpu': devices.memory_bandwidth must be given",
        ),
        (
            dataclasses.replace(
                GROUP, devices=dataclasses.replace(DEVICE, peak_flops={})
            ),
            "devices.peak_flops must be given",
        ),
        (dataclasses.replace(GROUP, links=()), "links must be given"),
    ],
)
def test_what_a_prediction_needs_is_named(group, words):
    with pytest.raises(ClusterSpecError, match=words):
        Hardware.of(group)


def test_one_device_a_node_needs_no_links():
    alone = dataclasses.replace(
        GROUP, devices=dataclasses.replace(DEVICE, count=1), links=(), nics=None
    )
    hardware = Hardware.of(alone)
    assert predict(model(), hardware, MeshShape(), options()).step_s > 0


def test_relatives_have_the_constants_of_their_generation():
    assert efficiency_of("NVIDIA H800") == efficiency_of("NVIDIA H200")
    assert efficiency_of("NVIDIA A800") == efficiency_of("NVIDIA A100")
    assert efficiency_of("NVIDIA A100") != efficiency_of("NVIDIA H100")
    assert efficiency_of("Some NPU") == efficiency_of("")


def test_measured_rates_replace_fitted_ones():
    found = calibrate(
        nodes(),
        Probes(
            matmul_flops_per_s=50e12,
            memory_bytes_per_s=1e12,
            launch_s=1e-5,
            link=Path(bytes_per_s=40e9, latency_s=3e-6),
        ),
    )
    assert found.efficiency.matmul == 0.5
    assert found.efficiency.memory == 0.5
    assert found.efficiency.launch_s == 1e-5
    assert found.link == Path(bytes_per_s=40e9, latency_s=3e-6)
    assert found.network == nodes().network
    before, after = (
        predict(model(), hardware, MeshShape(shard=8), options())
        for hardware in (nodes(), found)
    )
    assert after.step_s > before.step_s


def test_a_rate_above_the_peak_becomes_the_peak():
    found = calibrate(nodes(), Probes(matmul_flops_per_s=200e12))
    assert (found.peak("bfloat16"), found.efficiency.matmul) == (200e12, 1.0)
    found = calibrate(nodes(), Probes(matmul_flops_per_s=1e12, dtype="float32"))
    assert found.peak("float32") == 1e12


def test_no_measurement_changes_nothing():
    assert calibrate(nodes(), Probes()) == nodes()


@pytest.mark.parametrize(
    "probes",
    [
        Probes(matmul_flops_per_s=0.0),
        Probes(launch_s=-1.0),
        Probes(memory_bytes_per_s=float("nan")),
        Probes(network=Path(bytes_per_s=float("inf"))),
    ],
)
def test_measurements_that_are_none_are_refused(probes):
    with pytest.raises(ValueError, match="must be a positive number"):
        calibrate(nodes(), probes)
