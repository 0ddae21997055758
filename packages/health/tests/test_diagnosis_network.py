"""Counters of network ports are sampled, and their absence is survived."""

import threading
import time

import pytest

from drivetrain_core import ProgramError
from drivetrain_health.diagnosis import NetworkSampler

IB = {
    "state": "4: ACTIVE",
    "counters/port_rcv_data": 100,
    "counters/port_xmit_data": 50,
    "counters/link_downed": 1,
    "counters/symbol_error": 3,
    "counters/port_rcv_errors": 0,
    "hw_counters/packet_seq_err": 7,
}
NET = {
    "carrier": 1,
    "carrier_down_count": 2,
    "statistics/rx_bytes": 1000,
    "statistics/tx_bytes": 500,
    "statistics/rx_errors": 0,
    "statistics/tx_errors": 0,
    "device/vendor": "0x15b3",
}


class System:
    """Folders that stand for /sys/class; files are changed where they are."""

    def __init__(self, root):
        self.root = root

    def port(self, name, files):
        for file, value in files.items():
            self.set(f"{name}/{file}", value)

    def set(self, file, value):
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")

    def remove(self, name):
        for path in sorted((self.root / name).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (self.root / name).rmdir()


@pytest.fixture
def system(tmp_path):
    found = System(tmp_path)
    found.port("net/eth0", NET)
    found.port("net/lo", NET)
    found.port("net/docker0", {k: v for k, v in NET.items() if "device" not in k})
    found.port("infiniband/mlx5_0/ports/1", IB)
    return found


def wait_for(sampler, condition, timeout_s=60.0):
    """Takes samples until some of a port are as they should be."""
    pause, end_s = threading.Event(), time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        samples = sampler.take()
        if samples and condition(samples):
            return samples
        pause.wait(0.02)
    raise AssertionError("no such samples came")


def last(samples, port):
    return samples[port][-1][1] if samples[port] else None


def test_ports_with_hardware_are_sampled_in_bytes(system):
    with NetworkSampler(root=system.root, interval_s=0.001) as sampler:
        samples = wait_for(sampler, lambda s: all(len(one) > 3 for one in s.values()))
        assert sorted(samples) == ["eth0", "mlx5_0/1"]
        assert last(samples, "eth0") == 1500
        # InfiniBand counts words of four bytes.
        assert last(samples, "mlx5_0/1") == 600
        times = [at_s for at_s, _ in samples["eth0"]]
        assert times == sorted(times)
        system.set("net/eth0/statistics/rx_bytes", 4000)
        wait_for(sampler, lambda s: last(s, "eth0") == 4500)


@pytest.mark.slow
def test_port_that_vanishes_is_unknown_and_comes_back(system):
    with NetworkSampler(("mlx5_0/1",), root=system.root, interval_s=0.001) as sampler:
        wait_for(sampler, lambda s: last(s, "mlx5_0/1") == 600)
        system.set("infiniband/mlx5_0/ports/1/counters/port_rcv_data", "?")
        wait_for(sampler, lambda s: s["mlx5_0/1"] and last(s, "mlx5_0/1") is None)
        system.set("infiniband/mlx5_0/ports/1/counters/port_rcv_data", 150)
        wait_for(sampler, lambda s: last(s, "mlx5_0/1") == 800)


def test_readings_are_what_has_changed(system):
    sampler = NetworkSampler(root=system.root)
    before = {one.name: one for one in sampler.readings()}
    assert before["eth0"].was_up
    assert before["eth0"].is_up
    assert before["mlx5_0/1"].num_link_downs == 0
    system.set("infiniband/mlx5_0/ports/1/state", "1: DOWN")
    system.set("infiniband/mlx5_0/ports/1/counters/link_downed", 3)
    system.set("infiniband/mlx5_0/ports/1/counters/symbol_error", 5003)
    system.set("infiniband/mlx5_0/ports/1/hw_counters/packet_seq_err", 9)
    system.set("net/eth0/carrier", 0)
    system.set("net/eth0/statistics/rx_errors", 40)
    after = {one.name: one for one in sampler.readings()}
    port = after["mlx5_0/1"]
    assert (port.was_up, port.is_up) == (True, False)
    assert (port.num_link_downs, port.num_errors, port.num_retransmits) == (2, 5000, 2)
    assert (after["eth0"].is_up, after["eth0"].num_errors) == (False, 40)
    # Not each driver has each counter.
    assert "link_error_recovery" in port.missing or "local_link" in port.missing


def test_counters_that_begin_anew_and_ports_that_are_gone_are_told(system):
    sampler = NetworkSampler(root=system.root)
    system.set("infiniband/mlx5_0/ports/1/counters/symbol_error", 1)
    system.remove("net/eth0")
    after = {one.name: one for one in sampler.readings()}
    assert after["mlx5_0/1"].num_errors == 1
    assert (after["eth0"].was_up, after["eth0"].is_up) == (True, False)


def test_ring_keeps_the_last_samples_only(system):
    sampler = NetworkSampler(root=system.root, interval_s=0.001, keep_s=0.005)
    full = threading.Event()
    with sampler:
        wait_for(sampler, lambda s: len(s["eth0"]) >= 1)
        full.wait(0.05)
        assert all(len(one) <= 5 for one in sampler.take().values())


def test_system_without_ports_is_no_error(tmp_path):
    with NetworkSampler(root=tmp_path) as sampler:
        assert sampler.take() == {}
        assert sampler.readings() == ()
        assert "no network port" in sampler.why_missing
    sampler.close()


def test_virtual_ports_are_sampled_where_there_are_no_others(tmp_path):
    system = System(tmp_path)
    system.port("net/veth1", {k: v for k, v in NET.items() if "device" not in k})
    assert list(NetworkSampler(root=tmp_path).take()) == ["veth1"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ports": ("eth9",)}, "there are docker0, eth0, mlx5_0/1"),
        ({"interval_s": 0.0}, "got 0.0"),
        ({"interval_s": float("nan")}, "got nan"),
        ({"interval_s": 2.0, "keep_s": 1.0}, "got 2.0 and 1.0"),
    ],
)
def test_options_that_cannot_be_are_refused(system, options, says):
    with pytest.raises(ProgramError, match=says):
        NetworkSampler(root=system.root, **options)


def test_link_that_flapped_long_ago_explains_nothing_now(system):
    now = [0.0]
    sampler = NetworkSampler(root=system.root, within_s=60.0, clock=lambda: now[0])

    def downs():
        return {one.name: one.num_link_downs for one in sampler.readings()}["mlx5_0/1"]

    system.set("infiniband/mlx5_0/ports/1/counters/link_downed", 3)
    now[0] = 30.0
    assert downs() == 2
    now[0] = 89.0
    assert downs() == 2
    now[0] = 90.0
    assert downs() == 0


def test_thread_keeps_what_readings_are_compared_with(system):
    now = [0.0]
    sampler = NetworkSampler(
        root=system.root, interval_s=0.001, within_s=60.0, clock=lambda: now[0]
    )
    system.set("infiniband/mlx5_0/ports/1/counters/link_downed", 3)
    with sampler:
        now[0] = 10_000.0
        # The tick after it has read the counters is one that has begun later.
        for _ in range(2):
            wait_for(sampler, lambda s: s["eth0"])
            sampler.take()
        wait_for(sampler, lambda s: len(s["eth0"]) >= 2)
        now[0] = 10_060.0
        port = {one.name: one for one in sampler.readings()}["mlx5_0/1"]
    assert port.num_link_downs == 0
