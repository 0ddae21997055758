"""Rules for networks that are reached over sockets, both ways."""

from dataclasses import replace

import pytest
from adviser_hosts import ethernet, facts, rdma, said

from drivetrain_fabric.adviser._rules._buffers import advise_buffers, p2p_step_bytes
from drivetrain_fabric.adviser._rules._interfaces import advise_interfaces, matching
from drivetrain_fabric.adviser._rules._kernel import advise_kernel
from drivetrain_fabric.adviser._rules._sockets import (
    advise_sockets,
    threads_and_sockets,
    window_bytes_per_s,
)

THREADS, SOCKETS = "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"
GBPS = 1e9 / 8


@pytest.mark.parametrize(
    ("connections", "expected"),
    [(1, (1, 1)), (3, (1, 3)), (5, (2, 3)), (17, (8, 3)), (64, (16, 4)), (90, (16, 4))],
)
def test_threads_and_sockets(connections, expected):
    assert threads_and_sockets(connections) == expected


@pytest.mark.parametrize(
    ("gbps", "flow_gbps", "vendor", "expected"),
    [
        (100, 5, "0x1af4", {THREADS: "8", SOCKETS: "3"}),  # 20 connections
        (25, 10, "0x1af4", {THREADS: "1", SOCKETS: "3"}),
        (10, 9.8, "0x1af4", {}),  # one is enough
        (100, 10, "0x1d0f", {}),  # NCCL opens 16 on this card by itself
        (200, 5, "0x1d0f", {THREADS: "16", SOCKETS: "3"}),  # 40 are more than 16
        (32, 8, "0x1ae0", {}),  # Google's card: 4 by itself
        (32, 4, "0x1ae0", {THREADS: "2", SOCKETS: "4"}),
        (400, 1, "0x1af4", {THREADS: "16", SOCKETS: "4"}),  # no more than 64
    ],
)
def test_sockets_by_what_one_connection_carries(gbps, flow_gbps, vendor, expected):
    known = facts(ethernet(gbps=gbps, vendor=vendor), flow_bytes_per_s=flow_gbps * GBPS)
    assert said(advise_sockets, known) == (expected, [])


def test_sockets_of_a_generic_fast_network_are_the_manuals():
    found, gaps = said(advise_sockets, facts(ethernet(gbps=100)))
    assert (found, gaps) == ({THREADS: "4", SOCKETS: "4"}, [])
    (first, _) = advise_sockets(facts(ethernet(gbps=100)))
    assert first.level == "try"
    assert "is not known" in first.because


def test_sockets_are_not_guessed():
    assert said(advise_sockets, facts(ethernet(gbps=None))) == ({}, ["sockets"])
    assert said(advise_sockets, facts(ethernet(gbps=10))) == ({}, ["sockets"])
    assert said(advise_sockets, facts(ethernet(gbps=None), port_bytes_per_s=1e9)) == (
        {},
        ["sockets"],
    )
    assert advise_sockets(facts(rdma(), flow_bytes_per_s=1e9)) == []
    assert advise_sockets(facts(flow_bytes_per_s=1e9)) == []


def test_window_of_a_connection_by_hand():
    # 4 MB buffers, half of them under way, 20 ms there and back: 100 MB/s.
    wmem = ("net.ipv4.tcp_wmem", "4096 16384 4000000")
    rmem = ("net.ipv4.tcp_rmem", "4096 16384 8000000")
    known = facts(ethernet(gbps=10), delay_s=0.01, sysctl=(wmem, rmem))
    assert window_bytes_per_s(known) == pytest.approx(100e6)
    # 1.25 GB/s over that are 12.5 connections.
    assert said(advise_sockets, known) == ({THREADS: "4", SOCKETS: "4"}, [])
    assert all(one.level == "try" for one in advise_sockets(known))
    # A measurement of 400 MB/s counts more than what buffers make one expect.
    measured = replace(known, flow_bytes_per_s=400e6)
    assert said(advise_sockets, measured) == ({THREADS: "1", SOCKETS: "4"}, [])
    assert all(one.level == "warn" for one in advise_sockets(measured))
    assert window_bytes_per_s(facts(ethernet(), sysctl=(wmem,))) is None
    assert window_bytes_per_s(facts(ethernet(), delay_s=0.01)) is None
    zero = (("net.ipv4.tcp_wmem", "0 0 0"),)
    assert window_bytes_per_s(facts(ethernet(), delay_s=0.01, sysctl=zero)) is None


def test_too_many_sockets_are_what_nccl_makes_of_them():
    known = facts(ethernet(gbps=10), set_to={THREADS: "16", SOCKETS: "8"})
    assert said(advise_sockets, known) == ({SOCKETS: "4"}, ["sockets"])
    known = facts(ethernet(gbps=10), set_to={THREADS: "8", SOCKETS: "8"})
    assert said(advise_sockets, known) == ({}, ["sockets"])


def kernel(delay_s=0.001, gbps=10, **values):
    pairs = tuple((f"net.{k.replace('__', '.')}", v) for k, v in values.items())
    return facts(ethernet(gbps=gbps), delay_s=delay_s, sysctl=pairs)


def test_kernel_buffers_by_hand():
    # 10 Gbit/s and 2 ms there and back: 2 500 000 bytes, twice that is below 8 MiB.
    known = kernel(ipv4__tcp_wmem="4096 16384 4194304", ipv4__tcp_rmem="1 2 6291456")
    assert known.bdp_bytes == 2_500_000
    assert said(advise_kernel, known)[0] == {
        "net.ipv4.tcp_wmem": "4096 16384 8388608",
    }
    larger = kernel(ipv4__tcp_wmem="4096 16384 5000000", ipv4__tcp_rmem="1 2 6291456")
    assert advise_kernel(larger) == []


@pytest.mark.parametrize(
    ("wmem_max", "expected"),
    [("212992", {"net.core.wmem_max": "4194304"}), ("2500000", {})],
)
def test_send_buffer_of_gloo(wmem_max, expected):
    assert said(advise_kernel, kernel(core__wmem_max=wmem_max))[0] == expected


def test_send_buffer_of_gloo_is_no_more_than_it_asks_for():
    known = kernel(delay_s=0.1, gbps=100, core__wmem_max="212992")
    assert said(advise_kernel, known)[0] == {"net.core.wmem_max": str(32 << 20)}


@pytest.mark.parametrize(
    ("name", "now", "wanted", "delay_s"),
    [
        ("ipv4__tcp_moderate_rcvbuf", "0", "1", 0.001),
        ("ipv4__tcp_moderate_rcvbuf", "1", None, 0.001),
        ("ipv4__tcp_window_scaling", "0", "1", 0.001),
        ("ipv4__tcp_window_scaling", "1", None, 0.001),
        ("ipv4__tcp_window_scaling", "0", None, 0.00001),
        ("ipv4__tcp_slow_start_after_idle", "1", "0", 0.001),
        ("ipv4__tcp_slow_start_after_idle", "1", None, 0.0005),
        ("ipv4__tcp_slow_start_after_idle", "0", None, 0.001),
        ("ipv4__conf.all.rp_filter", "1", None, 0.001),
    ],
)
def test_kernel_switches(name, now, wanted, delay_s):
    found, _ = said(advise_kernel, kernel(delay_s, **{name: now}))
    setting = f"net.{name.replace('__', '.')}"
    assert found == ({setting: wanted} if wanted else {})


def test_strict_filter_with_several_interfaces():
    strict = (("net.ipv4.conf.all.rp_filter", "1"),)
    two = facts(ethernet("a"), ethernet("b"), sysctl=strict)
    assert said(advise_kernel, two)[0] == {"net.ipv4.conf.all.rp_filter": "2"}
    down = facts(ethernet("a"), ethernet("b", state="down"), sysctl=strict)
    assert said(advise_kernel, down)[0] == {}


def test_kernel_says_which_fact_is_missing():
    (gap,) = advise_kernel(facts(ethernet(gbps=10)))
    assert (gap.lacks, gap.give) == (
        "the delay to other hosts",
        "--delay-ms, or --measured",
    )
    (gap,) = advise_kernel(facts(ethernet(gbps=None), delay_s=0.001))
    assert (gap.lacks, gap.give) == (
        "how fast the network is",
        "--gbps, or --measured",
    )
    assert advise_kernel(facts(rdma(), delay_s=0.001)) == []


@pytest.mark.parametrize(
    ("set_to", "expected"),
    [
        ({"NCCL_CHUNK_SIZE": "1048576"}, {"NCCL_CHUNK_SIZE": None}),
        ({"NCCL_CHUNK_SIZE": "131072"}, {}),
        ({"NCCL_CHUNK_SIZE": "262144", "NCCL_P2P_NET_CHUNKSIZE": "262144"}, {}),
        (
            {"NCCL_P2P_NET_CHUNKSIZE": "1", "NCCL_BUFFSIZE": "7"},
            {"NCCL_BUFFSIZE": None},
        ),
        (
            {"NCCL_P2P_NET_CHUNKSIZE": "0", "NCCL_BUFFSIZE": "-1"},
            {"NCCL_BUFFSIZE": None},
        ),
        ({"NCCL_P2P_NET_CHUNKSIZE": "1", "NCCL_BUFFSIZE": "8"}, {}),
        (
            {"NCCL_CHUNK_SIZE": "1048576", "NCCL_P2P_NET_CHUNKSIZE": "1048576"},
            {"NCCL_CHUNK_SIZE": None, "NCCL_P2P_NET_CHUNKSIZE": "524288"},
        ),
        (
            {"NCCL_P2P_NET_CHUNKSIZE": "1048576", "NCCL_BUFFSIZE": "8388608"},
            {},
        ),
    ],
)
def test_chunks_that_do_not_fit(set_to, expected):
    known = facts(rdma(), set_to=set_to)
    assert said(advise_buffers, known) == (expected, [])


def test_step_of_a_send():
    assert p2p_step_bytes(facts()) == 131072
    assert p2p_step_bytes(facts(set_to={"NCCL_BUFFSIZE": "65536"})) == 8192


def test_ring_for_a_long_network():
    # 100 Gbit/s and 1 ms there and back: 12.5 MB, more than 4 MiB.
    long = facts(rdma(gbps=100), delay_s=0.0005)
    assert said(advise_buffers, long)[0] == {"NCCL_BUFFSIZE": str(16 << 20)}
    short = facts(rdma(gbps=100), delay_s=0.0001)
    assert said(advise_buffers, short)[0] == {}
    huge = facts(rdma(gbps=400), delay_s=0.05)
    assert said(advise_buffers, huge)[0] == {"NCCL_BUFFSIZE": str(64 << 20)}
    done = facts(rdma(gbps=100), delay_s=0.0005, set_to={"NCCL_BUFFSIZE": "16777216"})
    assert said(advise_buffers, done)[0] == {}


def test_fixed_socket_buffers():
    set_to = {"NCCL_SOCKET_SNDBUF": "4194304", "NCCL_SOCKET_RCVBUF": "-1"}
    known = facts(ethernet(), set_to=set_to)
    assert said(advise_buffers, known)[0] == {"NCCL_SOCKET_SNDBUF": None}
    old = facts(ethernet(), set_to=set_to, nccl=(2, 26, 2))
    assert said(advise_buffers, old)[0] == {}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("eth", {"eth0", "eth1", "eth10"}),
        ("=eth1", {"eth1"}),
        ("eth1", {"eth1", "eth10"}),
        ("=eth0,eth1", {"eth0", "eth1"}),
        ("^eth1", {"eth0", "ib0"}),
        ("^=eth1,ib0", {"eth0", "eth10"}),
        ("=eth0:1", {"eth0"}),
        ("none", set()),
        ("", set()),
    ],
)
def test_patterns_of_names(pattern, expected):
    names = frozenset({"eth0", "eth1", "eth10", "ib0"})
    assert matching(pattern, names) == expected


GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"


def interfaces(*adapters, **known):
    names = frozenset(one.nic.name for one in adapters)
    return said(advise_interfaces, facts(*adapters, interface_names=names, **known))


def test_interface_that_is_faster_than_the_default():
    slow, fast = ethernet("eth0", 10), ethernet("eth1", 100)
    found = interfaces(slow, fast, default_route="eth0")
    assert found == ({GLOO: "eth1", NCCL: "=eth1"}, [])
    assert interfaces(slow, fast, default_route="eth1") == ({}, [])
    assert interfaces(slow, fast) == ({}, [])
    named = {GLOO: "eth1", NCCL: "eth1"}
    assert interfaces(slow, fast, default_route="eth0", set_to=named) == ({}, [])
    twins = (slow, fast, ethernet("eth2", 100))
    assert interfaces(*twins, default_route="eth0") == ({}, [])
    # NCCL goes over RDMA; only Gloo goes over TCP.
    assert interfaces(slow, rdma(1), default_route="eth0") == ({GLOO: "ens1"}, [])


def test_name_of_the_host_that_leads_nowhere():
    known = {"own_address": "127.0.1.1", "default_route": "eth0"}
    assert interfaces(ethernet(), **known) == ({GLOO: "eth0"}, [])
    assert interfaces(ethernet(), **known, set_to={GLOO: "eth0"}) == ({}, [])
    assert interfaces(ethernet(), own_address="10.0.0.1", default_route="eth0") == (
        {},
        [],
    )
    assert interfaces(ethernet(), own_address="127.0.1.1") == (
        {},
        ["Gloo's interface"],
    )


def test_names_that_no_interface_has():
    set_to = {GLOO: "eth7", NCCL: "=eth7"}
    assert interfaces(ethernet(), set_to=set_to) == ({GLOO: None, NCCL: None}, [])
    set_to = {GLOO: "eth0", NCCL: "eth"}
    assert interfaces(ethernet(), set_to=set_to) == ({}, [])
    assert said(advise_interfaces, facts(set_to={GLOO: "eth7"})) == ({}, [])
