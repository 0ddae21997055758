"""The /sys of a host that is not there."""

import pytest

from drivetrain_testing import RecordedMachine

HOST = {
    "nodes": {"0": {"cpulist": "0-3"}},
    "kinds": {"nic": {"class": "0x020000", "vendor": "0x15b3"}},
    "pci": [
        ["pci0000:00/0000:00:01.0", "nic", {"vendor": "0x1ded", "numa_node": None}]
    ],
    "net": [
        ["eth0", "0000:00:01.0", {"operstate": "up", "driver": "mlx5_core"}],
        ["eth1", "0000:00:02.0/virtio0", {"operstate": "down"}],
        ["bond0", None, {"operstate": "up"}],
    ],
    "infiniband": [
        ["mlx5_0", "0000:00:01.0", {"1": {"state": "4: ACTIVE", "gids": ["fe80", "0"]}}]
    ],
}


@pytest.fixture
def sysfs(tmp_path):
    return RecordedMachine(HOST).write_sysfs(tmp_path / "sys")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("devices/system/node/node0/cpulist", "0-3"),
        ("bus/pci/devices/0000:00:01.0/class", "0x020000"),
        ("bus/pci/devices/0000:00:01.0/vendor", "0x1ded"),
        ("class/net/eth0/operstate", "up"),
        ("class/net/eth0/device/class", "0x020000"),
        ("class/net/eth1/operstate", "down"),
        ("class/net/bond0/operstate", "up"),
        ("class/infiniband/mlx5_0/device/vendor", "0x1ded"),
        ("class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE"),
        ("class/infiniband/mlx5_0/ports/1/gids/0", "fe80"),
        ("class/infiniband/mlx5_0/ports/1/gids/1", "0"),
    ],
)
def test_recorded_machine_writes_what_is_known(sysfs, file, text):
    assert (sysfs / file).read_text() == f"{text}\n"


def test_recorded_machine_links_devices_and_drivers(sysfs):
    device = (sysfs / "class/net/eth0/device").resolve()
    assert device == (sysfs / "bus/pci/devices/0000:00:01.0").resolve()
    assert (device / "driver").resolve().name == "mlx5_core"
    assert (sysfs / "class/net/eth1/device").resolve().name == "virtio0"
    assert not (sysfs / "class/net/bond0/device").exists()


def test_recorded_machine_has_files_that_cannot_be_read(sysfs):
    with pytest.raises(OSError, match="numa_node"):
        (sysfs / "bus/pci/devices/0000:00:01.0/numa_node").read_text()


def test_recorded_machine_may_be_empty(tmp_path):
    root = tmp_path / "sys"
    assert RecordedMachine({}).write_sysfs(root) == root
    assert list(root.iterdir()) == []
