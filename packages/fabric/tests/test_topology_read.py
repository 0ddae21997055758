"""Recorded machines, written out as /sys, are read back as what they are."""

import subprocess
import sys
from pathlib import Path

import pytest
from recorded_machines import FakeNvml, Machine

from drivetrain_fabric.topology import (
    TopologyError,
    distance,
    gpus_by_numa_node,
    nearest_nic,
    read_nvml,
    read_topology,
    topology_from_json,
    topology_to_json,
)

FOLDER = Path(__file__).parent / "data" / "topology"
NAMES = sorted(file.stem for file in FOLDER.glob("*.json"))


@pytest.fixture
def read(tmp_path):
    """Reads a recorded machine, with changes to what was recorded."""

    def reader(name, *, use_nvml=True, virtual=False, **changes):
        machine = Machine.load(FOLDER / f"{name}.json")
        machine = Machine({**machine.facts, **changes})
        sysfs = machine.write_sysfs(tmp_path / "sys")
        return read_topology(
            sysfs,
            nvml=machine.nvml,
            use_nvml=use_nvml,
            name=machine.name,
            virtual=virtual,
        )

    return reader


def recorded(name, key):
    return Machine.load(FOLDER / f"{name}.json").facts[key]


@pytest.mark.parametrize("name", NAMES)
def test_every_machine_survives_its_file(read, name):
    host = read(name)
    assert topology_from_json(topology_to_json(host)) == host


def test_dgx_has_all_parts(read):
    host = read("dgx-h100")
    assert [gpu.name for gpu in host.gpus] == ["NVIDIA H100 80GB HBM3"] * 8
    assert [len(gpus) for gpus in gpus_by_numa_node(host).values()] == [4, 4]
    assert len(host.nvswitches) == 4
    assert {link.count for link in host.nvlinks} == {4, 5}
    assert {link.bytes_per_s for link in host.nvlinks} == {25e9}
    assert [node.memory_bytes for node in host.numa_nodes] == [1 << 40, 1 << 40]
    assert host.numa_nodes[0].cpus == "0-55,112-167"
    assert host.notes == ()


def test_dgx_names_the_card_of_each_gpu(read):
    host = read("dgx-h100")
    for i in range(8):
        nic = nearest_nic(host, f"gpu{i}")
        assert nic.name == f"ib{i}"
        assert distance(host, f"gpu{i}", nic.name) == "PIX"
        assert nic.rdma.device == f"mlx5_{i}"
        assert nic.rdma.rate_mbit_per_s == nic.speed_mbit_per_s == 400_000
        assert nic.rdma.link_layer == "InfiniBand"
        assert nic.rdma.num_gids == 1
        assert nic.driver == "mlx5_core"
    assert distance(host, "gpu0", "gpu7") == "NV18"


def test_gpu_speed_is_the_drivers_where_the_kernel_sees_it_idle(read):
    assert {gpu.slot.link.generation for gpu in read("dgx-h100").gpus} == {5}


def test_gpu_speed_is_the_kernels_without_a_driver(read, tmp_path):
    host = read("dgx-h100", use_nvml=False)
    assert {gpu.slot.link.generation for gpu in host.gpus} == {1}
    assert {gpu.name for gpu in host.gpus} == {"NVIDIA 2330"}
    assert {gpu.memory_bytes for gpu in host.gpus} == {None}


def test_pcie_server_shares_one_card(read):
    host = read("pcie-8-gpu")
    assert {nearest_nic(host, gpu.label).name for gpu in host.gpus} == {"ens1f0np0"}
    assert distance(host, "gpu0", "gpu1") == "PIX"
    assert distance(host, "gpu0", "gpu2") == "NODE"
    assert distance(host, "gpu0", "gpu7") == "SYS"
    assert host.nvlinks == host.nvswitches == ()
    assert [gpu.index for gpu in host.gpus if gpu.slot.link.is_narrow] == [5]


def test_pcie_server_has_cards_that_are_down(read):
    nics = {nic.name: nic for nic in read("pcie-8-gpu").nics}
    assert [name for name, nic in nics.items() if nic.is_up] == ["eno1", "ens1f0np0"]
    assert nics["ens1f1np1"].speed_mbit_per_s is None
    assert nics["ens1f0np0"].rdma.num_gids == 4


def test_bridged_gpus_share_the_cards_of_their_switch(read):
    host = read("nvlink-bridge")
    assert [nearest_nic(host, gpu.label).name for gpu in host.gpus] == [
        "eth0",
        "eth1",
        "eth2",
        "eth3",
    ]
    assert [(link.gpu, link.peer, link.count) for link in host.nvlinks] == [
        ("gpu0", "gpu1", 12),
        ("gpu2", "gpu3", 12),
    ]


@pytest.mark.parametrize(("name", "nics"), [("cloud-vm", 2), ("microvm", 1)])
def test_virtual_machine_says_little(read, name, nics):
    host = read(name)
    assert len(host.nics) == nics
    assert {nic.speed_mbit_per_s for nic in host.nics} == {None}
    assert {nic.driver for nic in host.nics} == {"virtio_net"}
    assert {nic.slot.numa_node for nic in host.nics} == {None}
    assert host.gpus == host.bridges == host.notes == ()


def test_virtual_interfaces_are_listed_on_demand(read):
    names = [nic.name for nic in read("microvm", virtual=True).nics]
    assert names == ["eth0", "ifb0", "ifb1", "lo"]


def test_container_with_only_virtual_interfaces_says_so(read):
    host = read("microvm", net=[["eth0", None, {"type": "1", "operstate": "up"}]])
    assert host.nics == ()
    assert host.notes == ("all network interfaces are virtual: eth0",)


def test_empty_sysfs_is_one_numa_node(tmp_path):
    host = read_topology(tmp_path, use_nvml=False, name="bare")
    assert [node.index for node in host.numa_nodes] == [0]
    assert host.nics == host.gpus == host.host_bridges == ()


def test_missing_sysfs_is_an_error(tmp_path):
    with pytest.raises(TopologyError, match="is not a folder"):
        read_topology(tmp_path / "none")


@pytest.mark.parametrize(
    "odd",
    [
        {"speed": "4294967295"},
        {"speed": "0"},
        {"speed": ""},
        {"speed": None, "mtu": None, "operstate": None, "type": None, "dev_port": None},
        {"speed": "fast", "mtu": "x", "dev_port": "-1"},
    ],
)
def test_odd_attributes_of_an_interface_count_as_unknown(read, odd):
    card = ["ens3", "0000:00:03.0/virtio0", {"type": "1", **odd}]
    (nic,) = read("cloud-vm", net=[card]).nics
    assert nic.speed_mbit_per_s is None
    assert nic.state == "unknown"
    assert nic.is_up


def test_numa_node_that_is_not_there_counts_as_unknown(read):
    kinds = recorded("cloud-vm", "kinds")
    kinds["virtio-net"]["numa_node"] = "5"
    assert {nic.slot.numa_node for nic in read("cloud-vm", kinds=kinds).nics} == {None}


@pytest.mark.parametrize("speed", ["Unknown", "", None, "0 GT/s", "1.2.3"])
def test_odd_pci_links_count_as_unknown(read, speed):
    kinds = recorded("dgx-h100", "kinds")
    kinds["hca"]["current_link_speed"] = speed
    host = read("dgx-h100", kinds=kinds)
    links = {nic.slot.link for nic in host.nics if nic.rdma is not None}
    assert links == {None}


def test_part_of_a_card_for_a_virtual_machine_is_left_out(read):
    pci = recorded("pcie-8-gpu", "pci")
    path = "pci0000:60/0000:60:01.1/0000:61:00.2"
    pci.append([path, "nic", {"physfn": "0000:61:00.0"}])
    card = ["ens1f0v0", "0000:61:00.2", {"type": "1", "operstate": "up"}]
    net = [*recorded("pcie-8-gpu", "net"), card]
    assert "ens1f0v0" not in [
        nic.name for nic in read("pcie-8-gpu", pci=pci, net=net).nics
    ]


def test_card_that_is_no_pci_device_has_no_slot(read):
    card = ["eth0", "vmbus/netvsc", {"type": "1", "speed": "50000", "operstate": "up"}]
    (nic,) = read("cloud-vm", net=[card]).nics
    assert nic.slot is None
    assert nic.speed_mbit_per_s == 50_000


def test_rdma_ports_without_interface_are_cards_of_their_own(read):
    host = read("dgx-h100", net=[])
    assert [nic.name for nic in host.nics] == [f"mlx5_{i}" for i in range(8)]
    assert {nic.state for nic in host.nics} == {"up"}
    assert {nic.driver for nic in host.nics} == {"mlx5_core"}


def test_two_ports_of_one_function_find_their_interfaces(read):
    port = {"rate": "56 Gb/sec", "state": "1: DOWN", "link_layer": "InfiniBand"}
    address = "0000:61:00.0"
    net = [
        [f"ib{i}", address, {"type": "32", "dev_port": str(i), "operstate": "down"}]
        for i in (0, 1)
    ]
    rdma = [["mlx4_0", address, {"1": port, "2": port, "3": port}]]
    nics = read("pcie-8-gpu", net=net, infiniband=rdma).nics
    assert [(nic.name, nic.rdma.port) for nic in nics] == [
        ("ib0", 1),
        ("ib1", 2),
        ("mlx4_0/3", 3),
    ]
    assert not any(nic.is_up for nic in nics)


def gpus(count=2, **changes):
    return [
        {**one, **changes} for one in recorded("nvlink-bridge", "nvml")["gpus"][:count]
    ]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ("Driver Not Loaded", "NVML does not answer: Driver Not Loaded"),
        ({"gpus": [{"error": "GPU is lost"}]}, "GPU 0 does not answer: GPU is lost"),
    ],
)
def test_nvml_that_does_not_answer_leaves_the_reason(facts, message):
    nvml = FakeNvml(facts)
    found = read_nvml(nvml)
    assert found.missing == message
    assert found.gpus == found.nvlinks == ()
    assert nvml.num_open == 0


def test_nvml_that_is_not_installed_leaves_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pip install 'drivetrain-fabric[nvml]'" in read_nvml().missing


def test_nvml_is_closed_after_an_error():
    class Broken(FakeNvml):
        def nvmlDeviceGetCount(self):  # noqa: N802
            raise self.NVMLError("Unknown Error")

    nvml = Broken({"gpus": []})
    assert read_nvml(nvml).missing == "NVML gave up: Unknown Error"
    assert nvml.num_open == 0


def test_nvml_without_memory_and_speed_of_a_gpu():
    (gpu,) = read_nvml(FakeNvml({"gpus": gpus(1, memory_bytes=None, pcie=None)})).gpus
    assert gpu.memory_bytes is None
    assert gpu.slot.link is None


def test_nvlink_that_is_off_is_not_counted():
    ends = [[5, "gpu", "0000:24:00.0", 3], [None, "gpu", "0000:24:00.0", 9]]
    first, second = gpus()
    found = read_nvml(FakeNvml({"gpus": [{**first, "nvlinks": ends}, second]}))
    assert [link.count for link in found.nvlinks] == [3]


def test_nvlink_of_an_unknown_generation_has_no_speed():
    ends = [[9, "switch", None, 18]]
    found = read_nvml(FakeNvml({"gpus": gpus(nvlinks=ends)}))
    assert {link.bytes_per_s for link in found.nvlinks} == {None}


@pytest.mark.parametrize("address", [None, "0000:00:00.0"])
def test_nvswitches_that_a_virtual_machine_cannot_see_are_one(address):
    ends = [[6, "switch", address, 18]]
    found = read_nvml(FakeNvml({"gpus": gpus(nvlinks=ends)}))
    assert [switch.address for switch in found.nvswitches] == [None]
    assert [(link.gpu, link.peer) for link in found.nvlinks] == [
        ("gpu0", "nvswitch0"),
        ("gpu1", "nvswitch0"),
    ]


def test_nvlink_to_a_gpu_of_another_container_is_left_out():
    assert read_nvml(FakeNvml({"gpus": gpus(1)})).nvlinks == ()


def test_gpus_that_the_driver_does_not_list_are_noted(read):
    host = read("nvlink-bridge", nvml={"gpus": gpus(2)})
    assert len(host.gpus) == 2
    assert host.notes == (
        "NVML does not list all GPUs that are there; it lacks 0000:a3:00.0, 0000:a4:00.0",
    )


def test_gpu_that_is_lost_is_noted(read):
    (first,) = gpus(1)
    host = read("nvlink-bridge", nvml={"gpus": [first, {"error": "GPU is lost"}]})
    assert host.notes[0] == "GPU 1 does not answer: GPU is lost"


def test_gpus_without_a_driver_are_noted(read):
    host = read("nvlink-bridge", nvml="Driver Not Loaded")
    assert len(host.gpus) == 4
    assert host.notes == ("NVML does not answer: Driver Not Loaded",)


def test_card_for_the_console_is_no_gpu(read):
    addresses = {gpu.slot.address for gpu in read("dgx-h100", use_nvml=False).gpus}
    assert "0000:02:00.0" not in addresses
    assert len(addresses) == 8


def test_reading_and_drawing_import_no_torch():
    code = (
        "import sys, drivetrain_fabric.topology as t;"
        "t.host_text(t.read_topology(use_nvml=False));"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("folder", ["bus/pci/devices", "class/net", "class/infiniband"])
def test_link_that_leads_to_itself_hides_nothing_else(tmp_path, folder):
    machine = Machine.load(FOLDER / "dgx-h100.json")
    sysfs = machine.write_sysfs(tmp_path / "sys")
    before = read_topology(sysfs, nvml=machine.nvml, name="dgx")
    name = "0000:00:05.0" if "pci" in folder else "odd0"
    for entry in (f"{name}", "other"):
        (sysfs / folder / entry).symlink_to(entry)
    # A device whose parts lead back as well.
    first = next((sysfs / "class/net").iterdir()).resolve()
    (first / "physfn").symlink_to("physfn")
    assert read_topology(sysfs, nvml=machine.nvml, name="dgx") == before
