"""The description of a cluster: strict to read, exact to write."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_core._errors import ClusterSpecError
from drivetrain_core.services import (
    ClusterSpec,
    Device,
    Link,
    Nic,
    NodeGroup,
    Price,
    Switch,
    local_cluster,
)
from drivetrain_testing import check_cluster_spec

TEXT = """\
drivetrain_cluster: 1
name: two-tiers
nodes:
  - name: gpu
    count: 2
    cores: 128
    memory: 2TiB
    devices:
      kind: NVIDIA H200
      count: 8
      memory: 141GB
      peak_flops:
        bfloat16: 989.4TFLOP/s
    links:
      - kind: NVLink
        bandwidth: 450GB/s
        latency: 2us
      - kind: PCIe
        bandwidth: 64GB/s
    nics:
      count: 8
      bandwidth: 400Gb/s
      latency: 5us
      rdma: true
    switch: leaf
    price:
      currency: USD
      on_demand_per_hour: 80
      spot_per_hour: 31.5
switches:
  - name: leaf
    uplink: spine
    oversubscription: 2
    latency: 300ns
  - name: spine
"""

AMOUNTS = st.floats(0, 1e20, allow_nan=False)
DEVICES = st.builds(
    Device,
    kind=st.text("ABC 1", min_size=1),
    count=st.integers(1, 16),
    memory_bytes=st.integers(0, 2**50),
    type=st.sampled_from(["cpu", "cuda"]),
    peak_flops=st.dictionaries(st.sampled_from(["bfloat16", "float8"]), AMOUNTS),
)
GROUPS = st.builds(
    NodeGroup,
    name=st.text("abc-1", min_size=1),
    count=st.integers(1, 5000),
    cores=st.integers(0, 512),
    memory_bytes=st.integers(0, 2**50),
    devices=DEVICES,
    links=st.lists(
        st.builds(
            Link,
            kind=st.just("NVLink"),
            bandwidth_bytes_per_s=AMOUNTS,
            latency_s=AMOUNTS,
        ),
        max_size=2,
    ).map(tuple),
    nics=st.none()
    | st.builds(
        Nic,
        bandwidth_bits_per_s=AMOUNTS,
        rdma=st.booleans(),
        rails=st.booleans(),
    ),
    switch=st.none() | st.just("leaf"),
    price=st.none()
    | st.builds(
        Price,
        currency=st.just("EUR"),
        on_demand_per_hour=AMOUNTS,
        spot_per_hour=st.none() | AMOUNTS,
    ),
)
CLUSTERS = st.builds(
    ClusterSpec,
    name=st.text(min_size=1).filter(lambda t: t.isprintable()),
    nodes=st.lists(GROUPS, min_size=1, max_size=3, unique_by=lambda g: g.name).map(
        tuple
    ),
    switches=st.just(
        (
            Switch(name="leaf", oversubscription=1.5),
            Switch(
                name="tor",
                uplink="leaf",
                downlinks=64,
                uplinks=32,
                uplink_bandwidth_bits_per_s=4e11,
            ),
        )
    ),
)


def test_file_is_read():
    spec = ClusterSpec.from_yaml(TEXT)
    node = spec.nodes[0]
    assert (spec.num_nodes, spec.num_devices) == (2, 16)
    assert node.memory_bytes == 2 * 2**40
    assert node.devices.memory_bytes == 141 * 10**9
    assert node.devices.peak_flops == {"bfloat16": 989.4e12}
    assert node.links[0] == Link(
        kind="NVLink", bandwidth_bytes_per_s=450e9, latency_s=2e-6
    )
    assert node.nics is not None
    assert node.nics.bandwidth_bits_per_s == 400e9
    assert node.price == Price(
        currency="USD", on_demand_per_hour=80, spot_per_hour=31.5
    )
    assert spec.switches[0].latency_s == 3e-7


def test_file_is_written_as_it_was_read():
    assert ClusterSpec.from_yaml(TEXT).to_yaml() == TEXT


@pytest.mark.slow
@given(CLUSTERS)
@settings(max_examples=25, deadline=None)
def test_any_cluster_keeps_the_contract(spec):
    check_cluster_spec(spec)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("cores: 128", "cors: 128", r"nodes\[0\] has 'cors'.*nearest: cores"),
        ("count: 8", "count: eight", r"nodes\[0\]\.devices\.count must be an integer"),
        ("count: 8", "count: 0", r"nodes\[0\]\.devices\.count must be at least 1"),
        ("count: 8", "count: true", r"nodes\[0\]\.devices\.count must be an integer"),
        ("141GB", "141", r"nodes\[0\]\.devices\.memory must be a number with a unit"),
        ("141GB", "-1GB", r"nodes\[0\]\.devices\.memory must be a number with a unit"),
        ("141GB", "141Gb", r"nodes\[0\]\.devices\.memory has the unit 'Gb'"),
        ("141GB", "0.5B", r"nodes\[0\]\.devices\.memory must be a whole number"),
        ("450GB/s", "450GB", r"nodes\[0\]\.links\[0\]\.bandwidth has the unit 'GB'"),
        ("450GB/s", "1e999GB/s", r"nodes\[0\]\.links\[0\]\.bandwidth is too large"),
        ("2us", "2 weeks", r"nodes\[0\]\.links\[0\]\.latency has the unit 'weeks'"),
        ("bfloat16:", "bflaot16:", r"peak_flops has 'bflaot16'.*nearest: bfloat16"),
        ("rdma: true", "rdma: 1", r"nodes\[0\]\.nics\.rdma must be true or false"),
        (
            "switch: leaf",
            "switch: laef",
            r"nodes\[0\]\.switch is 'laef'.*nearest: leaf",
        ),
        ("uplink: spine", "uplink: leaf", "circle: leaf -> leaf"),
        ("name: spine", "name: leaf", r"switches\[1\]\.name is 'leaf'"),
        ("currency: USD", "currency: $", r"nodes\[0\]\.price currency must be a code"),
        ("_hour: 80", "_hour: -80", r"price\.on_demand_per_hour must be at least 0"),
        ("_hour: 80", "_hour: .nan", r"price\.on_demand_per_hour must be at least 0"),
        ("oversubscription: 2", "oversubscription: 0.5", "oversubscription must be at"),
        ("name: two-tiers\n", "", "lacks the key 'name'"),
        ("name: two-tiers", "name: ''", "name must be text"),
        ("name: two-tiers", "name: 3", "name must be text"),
        ("cluster: 1", "cluster: 2", "drivetrain_cluster is 2.*reads 1"),
        ("drivetrain_cluster: 1\n", "", "must begin with 'drivetrain_cluster: 1'"),
        ("    count: 2\n", "    count: 2\n    count: 3\n", "c.yaml:6: the key 'count'"),
    ],
    ids=range(26),
)
def test_mistake_is_told_with_its_place(old, new, message):
    assert old in TEXT
    with pytest.raises(ClusterSpecError, match=message) as caught:
        ClusterSpec.from_yaml(TEXT.replace(old, new, 1), "c.yaml")
    assert str(caught.value).startswith("c.yaml:")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must begin"),
        ("- 1", "must begin"),
        ("drivetrain_cluster: 1\nname: a\nnodes: []", "at least one group"),
        ("drivetrain_cluster: 1\nname: a\nnodes: {}", "nodes must be a list"),
        ("drivetrain_cluster: 1\nname: a\nnodes: [1]", r"nodes\[0\] must be a mapping"),
    ],
    ids=range(5),
)
def test_other_shapes_are_refused(text, message):
    with pytest.raises(ClusterSpecError, match=message):
        ClusterSpec.from_yaml(text)


def test_ports_of_switches_are_read():
    text = TEXT.replace(
        "    oversubscription: 2\n",
        "    downlinks: 64\n    uplinks: 32\n    uplink_bandwidth: 400Gb/s\n",
    ).replace("      rdma: true\n", "      rdma: true\n      rails: true\n")
    spec = ClusterSpec.from_yaml(text)
    leaf, spine = spec.switches
    assert (leaf.downlinks, leaf.uplinks) == (64, 32)
    assert leaf.uplink_bandwidth_bits_per_s == 400e9
    assert (spine.downlinks, spine.uplinks) == (0, 0)
    assert spec.nodes[0].nics is not None
    assert spec.nodes[0].nics.rails
    assert ClusterSpec.from_yaml(spec.to_yaml()) == spec


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"uplinks": 4}, "'tor' has ports up, but no uplink"),
        ({"uplink_bandwidth_bits_per_s": 1e9}, "'tor' has ports up, but no uplink"),
        ({"uplink": "spine", "uplinks": 4, "oversubscription": 2.0}, "give one"),
        ({"downlinks": -1}, "downlinks must be at least 0"),
        ({"downlinks": 1.5}, "downlinks must be an integer"),
    ],
    ids=range(5),
)
def test_ports_that_contradict_each_other_are_refused(options, message):
    with pytest.raises(ClusterSpecError, match=message):
        Switch(name="tor", **options)


def test_objects_made_in_python_are_checked_too():
    with pytest.raises(ClusterSpecError, match="memory_bytes must be an integer"):
        Device(kind="A100", memory_bytes=1.5)  # type: ignore[arg-type]
    with pytest.raises(ClusterSpecError, match="must be a tuple"):
        NodeGroup(
            name="a",
            devices=Device(kind="A100", memory_bytes=1),
            links=[],  # type: ignore[arg-type]
        )
    with pytest.raises(ClusterSpecError, match="devices must be a Device"):
        NodeGroup(name="a", devices="A100")  # type: ignore[arg-type]
    with pytest.raises(ClusterSpecError, match="'tpu', which is unknown"):
        Device(kind="v5", memory_bytes=1, type="tpu")


def test_file_goes_through_the_disk(tmp_path):
    path = tmp_path / "cluster.yaml"
    spec = ClusterSpec.from_yaml(TEXT)
    spec.dump(path)
    assert ClusterSpec.load(path) == spec
    with pytest.raises(ClusterSpecError, match="cannot be read"):
        ClusterSpec.load(tmp_path / "none.yaml")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ClusterSpecError, match="cannot be read"):
        ClusterSpec.load(path)


def test_local_describes_this_machine():
    spec = local_cluster()
    check_cluster_spec(spec)
    assert spec.num_nodes == 1
    assert spec.nodes[0].memory_bytes > 2**28
    assert spec.nodes[0].cores >= 1


def test_local_asks_torch_for_accelerators(pretend_gpus):
    facts = pretend_gpus("NVIDIA H200", count=4, total_memory=150_000_000_000)
    device = local_cluster().nodes[0].devices
    assert (device.kind, device.count, device.type) == ("NVIDIA H200", 4, "cuda")
    assert device.peak_flops["bfloat16"] == 989.4e12
    # A part of a GPU has the whole one's name in its own, and not its speed.
    facts.name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    assert local_cluster().nodes[0].devices.peak_flops == {}
    for name, peak in (("A100 80GB PCIe", 312e12), ("H100 NVL", 835.5e12),
                       ("GH200 480GB", 989.4e12), ("B200", 2.25e15)):  # fmt: skip
        facts.name = f"NVIDIA {name}"
        assert local_cluster().nodes[0].devices.peak_flops["bfloat16"] == peak
    assert local_cluster(use_torch=False).nodes[0].devices.type == "cpu"
