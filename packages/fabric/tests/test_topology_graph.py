"""The data of a host: what it refuses, its file, and questions about nearness."""

import dataclasses
import json

import pytest

from drivetrain_fabric import topology
from drivetrain_fabric.topology import (
    Gpu,
    HostBridge,
    Nic,
    NumaNode,
    NvLink,
    NvSwitch,
    PciBridge,
    PciLink,
    PciSlot,
    RdmaPort,
    Topology,
    TopologyError,
    closeness,
    distance,
    gpus_by_numa_node,
    load_topology,
    nearest_nic,
    topology_from_json,
    topology_to_json,
)

NODES = (NumaNode(index=0), NumaNode(index=1))


def slot(bus, parent=None, node=None, **fields):
    return PciSlot(address=f"0000:{bus}:00.0", parent=parent, numa_node=node, **fields)


def bridge(bus, parent):
    return PciBridge(slot=slot(bus, parent))


def gpu(index, *args, **fields):
    return Gpu(index=index, name="H100", slot=slot(*args, **fields))


def host(**parts):
    return Topology(**{"name": "a", "numa_nodes": NODES, **parts})


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"numa_nodes": ()}, "one NUMA node at least"),
        ({"numa_nodes": (*NODES, NumaNode(index=1))}, "NUMA node 1 is there 2 times"),
        ({"numa_nodes": (NumaNode(index=-1),)}, "must be at least 0, got -1"),
        ({"gpus": (gpu(0, "18", node=2),)}, "gpu0 is near the NUMA node 2.*only 0, 1"),
        ({"gpus": (gpu(0, "18"), gpu(0, "19"))}, "device gpu0 is there 2 times"),
        ({"gpus": (gpu(0, "18"), gpu(1, "18"))}, "address 0000:18:00.0 is there 2"),
        (
            {"gpus": (gpu(0, "18"),), "nics": (Nic(name="e", slot=slot("18")),)},
            "address 0000:18:00.0 is there 2",
        ),
        ({"gpus": (gpu(0, "18", "0000:17:00.0"),)}, "gpu0 hangs on 0000:17:00.0, but"),
        ({"gpus": (gpu(0, "xy"),)}, "gpu0 has the PCI address '0000:xy:00.0'"),
        ({"gpus": (gpu(-1, "18"),)}, "index of gpu-1 must be at least 0"),
        ({"nics": (Nic(name="e"), Nic(name="e"))}, "the NIC e is there 2 times"),
        (
            {"nics": (Nic(name="gpu0"),), "gpus": (gpu(0, "18"),)},
            "device gpu0 is there",
        ),
        ({"nics": (Nic(name="e", speed_mbit_per_s=-1),)}, "speed_mbit_per_s of e"),
        ({"nics": (Nic(name="e", mtu=0),)}, "mtu of e must be at least 1, got 0"),
        (
            {
                "bridges": (
                    bridge("01", "0000:03:00.0"),
                    bridge("02", "0000:01:00.0"),
                    bridge("03", "0000:02:00.0"),
                )
            },
            "circle: 0000:01:00.0 -> 0000:03:00.0 -> 0000:02:00.0 -> 0000:01:00.0",
        ),
        (
            {"bridges": (bridge("01", "0000:01:00.0"),)},
            "circle: .*01:00.0 -> .*01:00.0",
        ),
        (
            {"host_bridges": (HostBridge(name="pci0000:00", numa_node=7),)},
            "pci0000:00 is near the NUMA node 7",
        ),
        ({"nvlinks": (NvLink(gpu="gpu0", peer="gpu1", count=2),)}, "not: gpu0"),
        (
            {
                "gpus": (gpu(0, "18"),),
                "nvlinks": (NvLink(gpu="gpu0", peer="nvswitch0", count=2),),
            },
            "from gpu0 to nvswitch0 leads to a device that there is not: nvswitch0",
        ),
        (
            {
                "gpus": (gpu(0, "18"),),
                "nvlinks": (NvLink(gpu="gpu0", peer="gpu0", count=2),),
            },
            "leads back to where it begins",
        ),
        (
            {
                "gpus": (gpu(0, "18"), gpu(1, "19")),
                "nvlinks": (NvLink(gpu="gpu0", peer="gpu1", count=0),),
            },
            "count of the NVLink from gpu0 to gpu1 must be at least 1, got 0",
        ),
        (
            {
                "gpus": (gpu(0, "18"), gpu(1, "19")),
                "nvlinks": (
                    NvLink(gpu="gpu0", peer="gpu1", count=2),
                    NvLink(gpu="gpu1", peer="gpu0", count=2),
                ),
            },
            "NVLink gpu0-gpu1 is there 2 times",
        ),
        (
            {"gpus": (gpu(0, "18", link=PciLink(gt_per_s=32.0, width=0)),)},
            "width of the link of gpu0",
        ),
        (
            {"gpus": (gpu(0, "18", link=PciLink(gt_per_s=float("nan"), width=1)),)},
            "gt_per_s of the link of gpu0 must be",
        ),
    ],
)
def test_topology_names_what_does_not_fit(parts, message):
    with pytest.raises(TopologyError, match=message):
        host(**parts)


RICH = host(
    host_bridges=(HostBridge(name="pci0000:00", numa_node=0),),
    bridges=(bridge("01", "pci0000:00"),),
    gpus=(gpu(0, "02", "0000:01:00.0", 0, link=PciLink(gt_per_s=16.0, width=8)),),
    nvswitches=(NvSwitch(index=0),),
    nvlinks=(NvLink(gpu="gpu0", peer="nvswitch0", count=18, bytes_per_s=25e9),),
    nics=(
        Nic(
            name="ib0",
            rdma=RdmaPort(
                device="mlx5_0",
                port=1,
                rate_mbit_per_s=400_000,
                link_layer="InfiniBand",
                state="ACTIVE",
                num_gids=1,
            ),
        ),
    ),
    notes=("none",),
)


def test_json_gives_back_what_was_written(tmp_path):
    file = tmp_path / "host.json"
    file.write_text(topology_to_json(RICH))
    assert load_topology(file) == RICH


def test_json_leaves_out_what_is_usual():
    plain = json.loads(topology_to_json(host()))
    assert plain == {
        "drivetrain_topology": 1,
        "name": "a",
        "numa_nodes": [{"index": 0}, {"index": 1}],
    }


def changed(**changes):
    return json.dumps(json.loads(topology_to_json(RICH)) | changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "here: it is no JSON"),
        ("[]", "here: it must be an object with"),
        ("{}", 'here: it must be an object with "drivetrain_topology": 1'),
        (
            '{"drivetrain_topology": 1, "name": "a", "name": "b"}',
            "'name' is there twice",
        ),
        ("[" * 100_000, "here: it is no JSON"),
        (changed(drivetrain_topology=2), "is 2, this version of Drivetrain reads 1"),
        (changed(drivetrain_topology=True), "is True, this version"),
        (changed(gpu=[]), "here: it has the unknown key 'gpu'; known: gpus"),
        (changed(gpus={}), r"here: gpus must be a list, got \{\}"),
        (changed(gpus=[7]), r"gpus\[0\] must be an object, got 7"),
        (changed(gpus=[{"index": 0}]), r"gpus\[0\] lacks the key 'name'"),
        (
            changed(numa_nodes=[{"index": True}]),
            r"\.index must be an integer, got True",
        ),
        (changed(numa_nodes=[{"index": 0.0}]), r"\.index must be an integer, got 0.0"),
        (changed(name=None), "name must be text, got None"),
        (changed(notes=[1]), r"notes\[0\] must be text, got 1"),
        (
            changed(nvlinks=[{"gpu": "gpu0", "peer": "gpu0", "count": 1}]),
            "here: the NVLink from gpu0 to gpu0 leads back",
        ),
        (
            changed(nics=[{"name": "e", "rdma": {"device": "m"}}]),
            r"nics\[0\]\.rdma lacks the key 'port'",
        ),
        (
            changed(nics=[{"name": "e", "speed_mbit_per_s": "9" * 99}]),
            r"nics\[0\]\.speed_mbit_per_s must be an integer, got '9{56}\.\.\.",
        ),
    ],
)
def test_json_names_the_place_of_a_mistake(text, message):
    with pytest.raises(TopologyError, match=message):
        topology_from_json(text, "here")


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_load_tells_which_file_cannot_be_read(tmp_path, content):
    file = tmp_path / "host.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(TopologyError, match=r"host\.json: it cannot be read"):
        load_topology(file)


def test_json_takes_whole_numbers_for_fractions():
    text = topology_to_json(RICH).replace("25000000000.0", "25000000000")
    assert topology_from_json(text) == RICH


# One switch with two ports under each root; a second switch behind the first.
TREE = host(
    host_bridges=(
        HostBridge(name="pci0000:00", numa_node=0),
        HostBridge(name="pci0000:40", numa_node=0),
        HostBridge(name="pci0000:80", numa_node=1),
    ),
    bridges=(
        bridge("01", "pci0000:00"),
        bridge("02", "0000:01:00.0"),
        bridge("03", "0000:02:00.0"),
        bridge("04", "0000:02:00.0"),
        bridge("05", "0000:04:00.0"),
        bridge("06", "0000:05:00.0"),
        bridge("07", "pci0000:00"),
        bridge("41", "pci0000:40"),
        bridge("81", "pci0000:80"),
    ),
    gpus=(
        gpu(0, "10", "0000:03:00.0"),
        gpu(1, "11", "0000:06:00.0"),
        gpu(2, "12", "0000:81:00.0"),
        gpu(3, "13", None, 1),
        gpu(4, "14"),
    ),
    nics=(
        Nic(name="pix", slot=slot("20", "0000:03:00.0")),
        Nic(name="port", slot=slot("21", "0000:04:00.0")),
        Nic(name="phb", slot=slot("22", "0000:07:00.0")),
        Nic(name="node", slot=slot("23", "0000:41:00.0")),
        Nic(name="none"),
    ),
    nvlinks=(NvLink(gpu="gpu0", peer="gpu2", count=4),),
)


@pytest.mark.parametrize(
    ("a", "b", "far"),
    [
        ("gpu0", "gpu0", "X"),
        ("gpu0", "gpu2", "NV4"),
        ("gpu2", "gpu0", "NV4"),
        ("gpu0", "pix", "PIX"),
        ("gpu0", "port", "PIX"),
        ("gpu0", "gpu1", "PXB"),
        ("gpu1", "gpu0", "PXB"),
        ("gpu0", "phb", "PHB"),
        ("gpu0", "node", "NODE"),
        ("gpu1", "gpu2", "SYS"),
        ("gpu2", "gpu3", "NODE"),
        ("gpu4", "gpu0", "SYS"),
        ("gpu4", "none", "SYS"),
    ],
)
def test_distance_is_in_the_terms_of_nvidia(a, b, far):
    assert distance(TREE, a, b) == far


def test_distance_where_one_numa_node_holds_all():
    small = dataclasses.replace(
        host(), numa_nodes=NODES[:1], gpus=(gpu(0, "18"),), nics=(Nic(name="e"),)
    )
    assert distance(small, "gpu0", "e") == "NODE"


@pytest.mark.parametrize("pair", [("gpu0", "gpu9"), ("eth9", "gpu0")])
def test_distance_names_an_unknown_device(pair):
    with pytest.raises(TopologyError, match=r"there is no device '(gpu|eth)9'"):
        distance(TREE, *pair)


def test_distance_through_nvswitches_is_that_of_the_end_with_fewer_links():
    switched = host(
        gpus=(gpu(0, "18"), gpu(1, "19"), gpu(2, "1a")),
        nvswitches=(NvSwitch(index=0), NvSwitch(index=1)),
        nvlinks=(
            NvLink(gpu="gpu0", peer="nvswitch0", count=9),
            NvLink(gpu="gpu0", peer="nvswitch1", count=9),
            NvLink(gpu="gpu1", peer="nvswitch0", count=8),
        ),
    )
    assert distance(switched, "gpu0", "gpu1") == "NV8"
    assert distance(switched, "gpu0", "gpu2") == "SYS"


def test_closeness_sorts_all_distances():
    order = ["X", "NV18", "NV2", "PIX", "PXB", "PHB", "NODE", "SYS"]
    mixed = [*order[3:], *order[:3]]
    assert sorted(mixed, key=closeness) == order


def test_nearest_nic_leaves_slow_and_dead_cards_aside():
    def nics(**changes):
        near = Nic(name="near", slot=slot("20", "0000:03:00.0"), **changes)
        return dataclasses.replace(
            TREE,
            nics=(
                near,
                Nic(
                    name="far",
                    slot=slot("23", "0000:41:00.0"),
                    speed_mbit_per_s=100_000,
                ),
            ),
        )

    assert nearest_nic(nics(speed_mbit_per_s=100_000), "gpu0").name == "near"
    assert nearest_nic(nics(speed_mbit_per_s=50_000), "gpu0").name == "near"
    assert nearest_nic(nics(speed_mbit_per_s=1_000), "gpu0").name == "far"
    down = nics(speed_mbit_per_s=100_000, state="down")
    assert nearest_nic(down, "gpu0").name == "far"


def test_nearest_nic_is_none_without_cards_and_an_error_without_the_gpu():
    assert nearest_nic(host(gpus=(gpu(0, "18"),)), "gpu0") is None
    with pytest.raises(TopologyError, match="no GPU 'gpu1' among 1"):
        nearest_nic(host(gpus=(gpu(0, "18"),)), "gpu1")


def test_gpus_by_numa_node_asks_the_root_and_lists_the_unknown():
    found = {
        node: [one.index for one in gpus]
        for node, gpus in gpus_by_numa_node(TREE).items()
    }
    assert found == {0: [0, 1], 1: [2, 3], None: [4]}


@pytest.mark.parametrize(
    ("gt_per_s", "generation", "gb_per_s"),
    [
        (2.5, 1, 4.0),
        (8.0, 3, 15.75),
        (16.0, 4, 31.5),
        (32.0, 5, 63.0),
        (64.0, 6, 118.0),
    ],
)
def test_pci_link_knows_its_generation_and_speed(gt_per_s, generation, gb_per_s):
    link = PciLink(gt_per_s=gt_per_s, width=16, max_width=16)
    assert link.generation == generation
    assert link.bytes_per_s == pytest.approx(gb_per_s * 1e9, rel=1e-3)
    assert not link.is_narrow
    assert dataclasses.replace(link, width=8).is_narrow


def test_package_offers_exactly_its_public_names():
    assert topology.__all__ == sorted(topology.__all__)
    assert set(topology.__all__) <= set(dir(topology))
    for name in topology.__all__:
        assert getattr(topology, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'measure'"):
        _ = topology.measure
