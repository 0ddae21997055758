"""What is read from trees of sys, proc and etc that stand for hosts."""

import struct
from dataclasses import replace

import pytest
from adviser_hosts import PROC, V4, write_host

from drivetrain_fabric.adviser import Assignment, advise, gather
from drivetrain_fabric.adviser._acs import redirects_peers


def read(root, name, environment=None, **options):
    return gather(write_host(root, name, **options), environment=environment or {})


@pytest.mark.parametrize(
    ("name", "transport"),
    [
        ("aws", "sockets"),
        ("efa", "efa"),
        ("roce", "roce"),
        ("infiniband", "infiniband"),
        ("erdma", "erdma"),
        ("virtio", "sockets"),
    ],
)
def test_transport_of_hosts(tmp_path, name, transport):
    found = read(tmp_path, name)
    assert found.transport == transport
    assert advise(found).transport == transport


@pytest.mark.parametrize(
    ("name", "settings", "subjects"),
    [
        ("aws", [], ["sockets", "kernel buffers"]),
        ("efa", [], []),
        (
            "roce",
            ["memlock", "mtu", "NCCL_NET_GDR_LEVEL"],
            [
                "crossing between cards",
                "queue pairs",
                "traffic class",
                "GPUDirect RDMA",
            ],
        ),
        ("infiniband", ["memlock"], ["crossing between cards"]),
        (
            "erdma",
            [
                "NCCL_IB_HCA",
                "NCCL_IB_GID_INDEX",
                "NCCL_IB_QPS_PER_CONNECTION",
                "NCCL_NET_PLUGIN",
                "NCCL_MIN_CTAS",
            ],
            [],
        ),
        ("virtio", [], ["sockets", "kernel buffers"]),
    ],
)
def test_advice_for_hosts(tmp_path, name, settings, subjects):
    host = write_host(tmp_path, name, hosts_file="10.0.0.1 node-1\n")
    report = advise(replace(gather(host, environment={}), nccl=(2, 29, 7), ranks=8))
    assert [one.setting for one in report.advice] == settings
    assert [gap.subject for gap in report.gaps] == subjects
    assert report.problems == ()


@pytest.mark.parametrize(
    ("name", "value"), [("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "socket")]
)
def test_transport_is_what_nccl_is_told(tmp_path, name, value):
    assert read(tmp_path, "roce", {name: value}).transport == "sockets"


def test_transport_is_not_told_by_a_zero(tmp_path):
    assert read(tmp_path, "roce", {"NCCL_IB_DISABLE": "0"}).transport == "roce"


def test_aws_card_is_known_by_its_vendor(tmp_path):
    found = read(tmp_path, "aws")
    (card,) = found.adapters
    assert (card.vendor, card.device, card.cloud) == ("0x1d0f", "0xec20", "amazon")
    assert found.fastest_bytes_per_s == 12.5e9
    assert found.num_gpus == 1


def test_roce_ports_have_addresses_and_kinds(tmp_path):
    root = write_host(tmp_path, "roce")
    for i in range(1, 5):
        port = root / f"sys/class/infiniband/mlx5_{i}/ports/1"
        (port / "gid_attrs/types").mkdir(parents=True)
        (port / "gid_attrs/types/1").write_text("RoCE v2\n")
        trust = root / f"sys/class/net/ens{i}/qos"
        trust.mkdir()
        (trust / "trust").write_text("dscp\n")
    found = gather(root, environment={})
    assert [one.nic.name for one in found.rdma] == ["ens1", "ens2", "ens3", "ens4"]
    first, second = found.rdma[0].gids
    assert (first.index, first.kind) == (0, None)
    assert (second.address, second.kind, second.is_ipv4) == (V4, "RoCE v2", True)
    assert found.rdma[0].trust == "dscp"
    assert found.gdr_distance == "PHB"


def test_erdma_is_known_without_its_driver(tmp_path):
    root = write_host(tmp_path, "erdma")
    card = root / "sys/bus/pci/devices/0000:00:06.0"
    (card / "device").write_text("0x107f\n")
    (root / "sys/class/infiniband/erdma_0").unlink()
    found = gather(root, environment={})
    assert found.has_erdma_card
    assert not found.rdma
    assert found.transport == "erdma"


def test_nothing_at_all_is_nothing_known(tmp_path):
    found = gather(tmp_path / "none", environment={})
    assert found.adapters == ()
    assert found.transport is None
    assert found.memlock_bytes is found.kernel is found.modules is None
    report = advise(found)
    assert report.transport == "not known"
    assert report.advice == ()
    assert [gap.subject for gap in report.gaps] == ["start", "network"]


def test_kernel_and_limits(tmp_path):
    found = read(tmp_path, "virtio")
    assert found.kernel == (6, 8)
    assert found.kernel_numbers("net.ipv4.tcp_wmem") == (4096, 16384, 4194304)
    assert found.kernel_numbers("net.ipv4.tcp_congestion_control") == ()
    assert dict(found.sysctl)["net.core.somaxconn"] == "4096"
    assert found.memlock_bytes == 8388608
    assert found.is_virtual is True
    assert found.default_route == "eth0"
    assert found.own_address == "127.0.1.1"
    assert found.interface_names == {"eth0"}


def test_unlimited_memory_bare_metal_and_open_driver(tmp_path):
    proc = {
        **PROC,
        "self/limits": "Max locked memory  unlimited unlimited bytes",
        "cpuinfo": "flags : fpu vme\n",
        "driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module 570",
    }
    found = read(tmp_path, "roce", proc=proc)
    assert found.memlock_bytes == -1
    assert found.is_virtual is False
    assert found.has_open_driver is True


def test_modules(tmp_path):
    root = write_host(tmp_path, "roce")
    (root / "sys/module/nvidia_peermem").mkdir(parents=True)
    assert gather(root, environment={}).modules == {"nvidia_peermem"}


def bridge_with(control, *, at=0x140):
    """A configuration space in which ACS comes second in the list."""
    config = bytearray(4096)
    struct.pack_into("<I", config, 0x100, at << 20 | 0x0001)
    struct.pack_into("<I", config, at, 0x000D)
    struct.pack_into("<H", config, at + 6, control)
    return bytes(config)


@pytest.mark.parametrize(
    ("config", "redirects"),
    [
        (bridge_with(0x1D), True),
        (bridge_with(0x04), True),
        (bridge_with(0x11), False),
        (bytes(4096), False),
        (bytes(64), False),
        # A list that leads back to itself, and one that ends in the middle of a header.
        (bytes(0x100) + struct.pack("<I", 0x100 << 20 | 1) + bytes(16), False),
        (bytes(0x100) + b"\x0d\x00\x00", False),
    ],
)
def test_redirection_of_peers(config, redirects):
    assert redirects_peers(config) is redirects


def test_bridges_that_redirect(tmp_path):
    root = write_host(tmp_path, "roce")
    devices = root / "sys/bus/pci/devices"
    assert gather(root, environment={}).acs_bridges is None
    (devices / "0000:10:01.0/config").write_bytes(bridge_with(0x1D))
    (devices / "0000:20:01.0/config").write_bytes(bridge_with(0))
    assert gather(root, environment={}).acs_bridges == ("0000:10:01.0",)


def test_settings_in_the_order_in_which_they_count(tmp_path):
    root = write_host(tmp_path, "virtio")
    (root / "etc/nccl.conf").write_text("NCCL_DEBUG=WARN\n\n# no\nNCCL_IB_TC=1\n")
    home = tmp_path / "home"
    home.mkdir()
    (home / ".nccl.conf").write_text("NCCL_IB_TC=106\n")
    found = gather(root, environment={"NCCL_DEBUG": "INFO", "PATH": "/bin"}, home=home)
    assert found.value_of("NCCL_DEBUG") == "INFO"
    assert found.value_of("NCCL_IB_TC") == "106"
    assert found.settings[-1] == Assignment(
        name="NCCL_IB_TC", value="1", where=f"{root}/etc/nccl.conf:4"
    )
    assert [one.name for one in found.settings].count("PATH") == 0


def test_conf_file_that_is_named_takes_the_place_of_the_users(tmp_path):
    root = write_host(tmp_path, "virtio")
    (tmp_path / ".nccl.conf").write_text("NCCL_IB_TC=1\n")
    named = tmp_path / "mine.conf"
    named.write_text("NCCL_IB_TC=2\n")
    environment = {"NCCL_CONF_FILE": str(named)}
    found = gather(root, environment=environment, home=tmp_path)
    assert found.value_of("NCCL_IB_TC") == "2"


def test_this_host_is_read():
    found = gather(environment={})
    assert found.interface_names
    assert found.kernel is not None
    assert found.nccl >= (2, 28)


@pytest.mark.parametrize("limit", ["1e3", "lots", "1" * 5000])
def test_a_limit_that_is_no_number_is_a_gap(tmp_path, limit):
    proc = {**PROC, "self/limits": f"Max locked memory  {limit} unlimited bytes"}
    found = read(tmp_path, "roce", proc=proc)
    assert found.memlock_bytes is None
    (gap,) = [gap for gap in advise(found).gaps if "Max locked memory" in gap.subject]
    assert limit[:60] in gap.lacks


@pytest.mark.parametrize("text", ["abc def", "1 2", "--4 5 6", "1 2 " + "3" * 5000])
def test_buffers_that_are_no_numbers_are_a_gap(tmp_path, text):
    proc = {**PROC, "sys/net/ipv4/tcp_rmem": text}
    found = read(tmp_path, "virtio", proc=proc)
    known = replace(found, delay_s=0.001, port_bytes_per_s=1.25e9)
    for facts in (found, known):
        gaps = {one.subject: one.lacks for one in advise(facts).gaps}
        assert text[:60] in gaps["net.ipv4.tcp_rmem"]
        assert "net.ipv4.tcp_wmem" not in gaps


def test_a_release_with_very_many_digits_is_not_known(tmp_path):
    proc = {**PROC, "sys/kernel/osrelease": "6" * 5000 + ".1"}
    assert read(tmp_path, "virtio", proc=proc).kernel is None


@pytest.mark.parametrize("value", ["9" * 5000, "0x" + "f" * 5000, "-" + "9" * 5000])
def test_variables_with_very_many_digits_are_a_problem(tmp_path, value):
    names = ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD", "NCCL_BUFFSIZE")
    for name in names:
        others = dict.fromkeys(names, "16") | {name: value}
        report = advise(read(tmp_path / name, "aws", others))
        problems = {one.name: one.because for one in report.problems}
        assert value[:60] in problems[name]
        assert len(problems[name]) < 200
