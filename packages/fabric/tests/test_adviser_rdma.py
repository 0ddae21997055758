"""Rules for networks with RDMA, both ways, by version."""

import math

import pytest
from adviser_hosts import LINK_LOCAL, V4, V6, ethernet, facts, rdma, said

from drivetrain_fabric.adviser import Gid
from drivetrain_fabric.adviser._rules._congestion import (
    advise_congestion,
    traffic_class,
)
from drivetrain_fabric.adviser._rules._ecmp import advise_ecmp
from drivetrain_fabric.adviser._rules._efa import advise_efa
from drivetrain_fabric.adviser._rules._erdma import advise_erdma
from drivetrain_fabric.adviser._rules._gids import advise_gids
from drivetrain_fabric.adviser._rules._gpudirect import (
    advise_gpudirect,
    can_use_dma_buf,
)
from drivetrain_fabric.adviser._rules._nics import advise_nics
from drivetrain_fabric.adviser._rules._rdma import advise_rdma, patience_s


def roce(num=4, **known):
    return facts(*(rdma(i) for i in range(num)), **known)


def infiniband(num=4, **known):
    return facts(*(rdma(i, layer="InfiniBand") for i in range(num)), **known)


ALL = (
    advise_congestion,
    advise_ecmp,
    advise_gids,
    advise_gpudirect,
    advise_nics,
    advise_rdma,
)


@pytest.mark.parametrize("rule", [*ALL, advise_efa, advise_erdma])
def test_nothing_is_said_on_rdma_without_it(rule):
    known = facts(
        ethernet(), num_gpus=8, modules=frozenset(), memlock_bytes=0, num_paths=4
    )
    assert rule(known) == []
    assert rule(facts()) == []


@pytest.mark.parametrize("rule", ALL)
def test_elastic_rdma_goes_by_its_own_rules(rule):
    card = rdma(device="erdma_0", driver="erdma")
    known = facts(card, card, num_gpus=8, memlock_bytes=0, num_paths=4)
    assert known.transport == "erdma"
    assert rule(known) == []


# Which cards.

HCA = "NCCL_IB_HCA"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("mlx5_1", {HCA: "=mlx5_1"}),  # means mlx5_10 as well
        ("=mlx5_1", {}),
        ("=mlx5_1:1", {}),
        ("^mlx5_1", {HCA: "^=mlx5_1"}),
        ("mlx5", {}),  # meant as a prefix
        ("mlx5_2", {}),  # no other begins like it
        ("mlx5_1,mlx5_2", {HCA: "=mlx5_1,mlx5_2"}),
        ("mlx4", {HCA: None}),
        ("=mlx5_3", {HCA: None}),
    ],
)
def test_names_of_cards(value, expected):
    cards = (rdma(1), rdma(2), rdma(10))
    known = facts(*cards, set_to={HCA: value, "NCCL_CROSS_NIC": "0"})
    assert said(advise_nics, known) == (expected, [])


def test_slow_ports_beside_fast_ones_are_left_out():
    known = facts(rdma(0), rdma(1), rdma(2, gbps=25), shares_switch=False)
    assert said(advise_nics, known) == ({HCA: "=mlx5_0,mlx5_1"}, [])
    mixed = facts(rdma(0, layer="InfiniBand"), rdma(1, gbps=100), shares_switch=False)
    assert mixed.transport == "infiniband"
    (one,) = advise_nics(mixed)
    assert one.value == "=mlx5_0"
    assert "of another kind" in one.because
    assert said(advise_nics, roce(shares_switch=False)) == ({}, [])


def test_ports_of_one_card():
    twins = (rdma(0, slot="0000:10:00.0"), rdma(1, slot="0000:10:00.1"))
    off = {"NCCL_IB_MERGE_NICS": "0", "NCCL_CROSS_NIC": "0"}
    known = facts(*twins, set_to=off)
    assert said(advise_nics, known) == ({"NCCL_IB_MERGE_NICS": None}, [])
    assert advise_nics(facts(*twins, set_to=off, nccl=(2, 19, 4))) == []
    apart = (rdma(0, slot="0000:10:00.0"), rdma(1, slot="0000:20:00.0"))
    assert advise_nics(facts(*apart, set_to=off)) == []


@pytest.mark.parametrize(
    ("shares_switch", "expected"),
    [
        (True, ({"NCCL_CROSS_NIC": "1"}, [])),
        (False, ({}, [])),
        (None, ({}, ["crossing between cards"])),
    ],
)
def test_crossing_between_cards(shares_switch, expected):
    assert said(advise_nics, roce(shares_switch=shares_switch)) == expected
    assert advise_nics(roce(1, shares_switch=shares_switch)) == []


# Time-outs, memory, packets.


@pytest.mark.parametrize(
    ("timeout", "retries", "seconds"),
    [(14, 7, 0.469762), (18, 7, 7.516193), (20, 7, 30.064771), (22, 7, 120.259084)],
)
def test_seconds_that_a_link_is_waited_for(timeout, retries, seconds):
    assert patience_s(timeout, retries) == pytest.approx(seconds, abs=1e-6)
    assert math.isinf(patience_s(0, retries))
    assert math.isinf(patience_s(32, retries))


TIMEOUT, RETRIES = "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT"


@pytest.mark.parametrize(
    ("nccl", "set_to", "expected"),
    [
        ((2, 13, 4), {}, {TIMEOUT: "20"}),  # 14 by default
        ((2, 22, 3), {}, {TIMEOUT: "20"}),  # 18
        ((2, 23, 4), {}, {}),  # 20
        ((2, 29, 7), {TIMEOUT: "18"}, {TIMEOUT: "20"}),
        ((2, 29, 7), {TIMEOUT: "22"}, {}),
        ((2, 29, 7), {TIMEOUT: "0"}, {TIMEOUT: "20"}),
        ((2, 29, 7), {TIMEOUT: "25"}, {TIMEOUT: "20"}),  # 962 s
        ((2, 29, 7), {RETRIES: "3"}, {RETRIES: "7"}),
        ((2, 29, 7), {TIMEOUT: "22", RETRIES: "7"}, {}),
    ],
)
def test_wait_for_links(nccl, set_to, expected):
    for host in (roce, infiniband):
        known = host(nccl=nccl, set_to=set_to)
        assert said(advise_rdma, known) == (expected, [])


def test_wait_is_told_in_seconds():
    (one,) = advise_rdma(infiniband(nccl=(2, 20, 5)))
    assert "7.5 s (4.096 us x 2^18 x 7)" in one.because
    assert "20 and 7 give 30 s" in one.because
    (one,) = advise_rdma(infiniband(set_to={TIMEOUT: "0"}))
    assert one.level == "bad"


@pytest.mark.parametrize(
    ("size", "fires"), [(8388608, True), (-1, False), (None, False)]
)
def test_memory_that_may_be_pinned(size, fires):
    found, _ = said(advise_rdma, infiniband(memlock_bytes=size))
    assert ("memlock" in found) == fires


def test_packets_of_roce():
    small = facts(rdma(0, mtu=1500), rdma(1, mtu=9000))
    assert said(advise_rdma, small)[0] == {"mtu": "ip link set ens0 mtu 4200"}
    assert advise_rdma(facts(rdma(0, mtu=4200))) == []
    assert advise_rdma(facts(rdma(0, mtu=1500, driver="irdma"))) == []
    assert advise_rdma(facts(rdma(0, mtu=2044, layer="InfiniBand"))) == []


# Addresses.

INDEX = "NCCL_IB_GID_INDEX"


def gids(*pairs):
    return tuple(Gid(index=i, address=a, kind=k) for i, (a, k) in enumerate(pairs))


V1, V2 = "IB/RoCE v1", "RoCE v2"
USUAL = gids((LINK_LOCAL, V1), (LINK_LOCAL, V2), (V4, V1), (V4, V2))


def test_index_of_an_address_by_version():
    cards = (rdma(0, gids=USUAL), rdma(1, gids=USUAL))
    old, new = (2, 20, 5), (2, 21, 5)
    assert said(advise_gids, facts(*cards, nccl=old)) == ({INDEX: "3"}, [])
    assert said(advise_gids, facts(*cards, nccl=new)) == ({}, [])
    three, other = {INDEX: "3"}, {INDEX: "1"}
    assert said(advise_gids, facts(*cards, nccl=old, set_to=three)) == ({}, [])
    assert said(advise_gids, facts(*cards, nccl=old, set_to=other))[0] == {INDEX: "3"}
    assert said(advise_gids, facts(*cards, nccl=new, set_to=three)) == (
        {INDEX: None},
        [],
    )
    automatic = {INDEX: "-1"}
    assert said(advise_gids, facts(*cards, nccl=new, set_to=automatic)) == ({}, [])


def test_index_that_differs_between_ports_is_not_guessed():
    cards = (rdma(0, gids=USUAL), rdma(1, gids=gids((LINK_LOCAL, V1), (V4, V2))))
    assert said(advise_gids, facts(*cards, nccl=(2, 20, 5))) == ({}, ["RoCE address"])
    unknown = rdma(0, gids=gids((V4, None)))
    assert said(advise_gids, facts(unknown, nccl=(2, 20, 5))) == ({}, ["RoCE address"])


def test_kind_of_address_that_nccl_looks_for():
    six = rdma(0, gids=gids((LINK_LOCAL, V2), (V6, V2)))
    assert said(advise_gids, facts(six))[0] == {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}
    both = rdma(0, gids=gids((V6, V2), (V4, V2)))
    assert advise_gids(facts(both)) == []
    first = rdma(0, gids=gids((LINK_LOCAL, V1), (V4, V1)))
    assert said(advise_gids, facts(first))[0] == {"NCCL_IB_ROCE_VERSION_NUM": "1"}
    only_local = rdma(0, gids=gids((LINK_LOCAL, V2)))
    assert advise_gids(facts(only_local)) == []
    assert advise_gids(facts(rdma(0, gids=gids((V6, None))))) == []
    assert advise_gids(facts(rdma(0, gids=USUAL, layer="InfiniBand"))) == []


# Equal ways.

QPS, SPLIT = "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_SPLIT_DATA_ON_QPS"
ROUTING, SL = "NCCL_IB_ADAPTIVE_ROUTING", "NCCL_IB_SL"


@pytest.mark.parametrize(
    ("num", "paths", "expected"),
    [
        (8, 8, {QPS: "2"}),
        (4, 8, {QPS: "4"}),
        (8, 1, {}),
        (1, 8, {}),  # one connection collides with none
        (2, 64, {}),  # 1.6%
        (8, 64, {QPS: "8"}),
    ],
)
def test_queue_pairs_by_equal_ways(num, paths, expected):
    assert said(advise_ecmp, roce(num, num_paths=paths)) == (expected, [])


def test_queue_pairs_say_how_likely_a_collision_is():
    (one,) = advise_ecmp(roce(4, num_paths=8))
    # 1 - 8 x 7 x 6 x 5 / 8^4, and 8 x (1 - (7/8)^4) ways.
    assert "with a chance of 59%" in one.because
    assert "3.3 ways are used" in one.because
    assert one.level == "try"


def test_queue_pairs_that_are_enough_stay():
    assert advise_ecmp(roce(4, num_paths=8, set_to={QPS: "4"})) == []
    assert said(advise_ecmp, roce(4)) == ({}, ["queue pairs"])
    assert advise_ecmp(infiniband(4, num_paths=8)) == []


def test_queue_pairs_of_bonded_links():
    bond = rdma(0, device="mlx5_bond_0")
    assert said(advise_ecmp, facts(bond)) == ({QPS: "2"}, [])
    assert advise_ecmp(facts(bond, set_to={QPS: "2"})) == []


@pytest.mark.parametrize(
    ("nccl", "set_to", "expected"),
    [
        ((2, 19, 4), {QPS: "4"}, {SPLIT: "0"}),
        ((2, 20, 5), {QPS: "4"}, {}),
        ((2, 17, 1), {QPS: "4"}, {}),
        ((2, 19, 4), {QPS: "4", SPLIT: "1"}, {}),
        ((2, 29, 7), {QPS: "4", ROUTING: "1", SL: "1"}, {SPLIT: "1"}),
        ((2, 29, 7), {QPS: "4", SPLIT: "0", ROUTING: "1", SL: "1"}, {SPLIT: "1"}),
        ((2, 29, 7), {QPS: "4", SPLIT: "1", ROUTING: "1", SL: "1"}, {}),
        ((2, 19, 4), {QPS: "4", ROUTING: "1", SL: "1"}, {}),  # 1 by default
        ((2, 17, 1), {QPS: "4", ROUTING: "1", SL: "1"}, {}),
        ((2, 29, 7), {ROUTING: "1", SL: "1"}, {}),  # one queue pair
        ((2, 29, 7), {QPS: "4", SPLIT: "1"}, {}),
    ],
)
def test_how_data_are_dealt_to_queue_pairs(nccl, set_to, expected):
    known = roce(2, num_paths=1, nccl=nccl, set_to=set_to)
    assert said(advise_ecmp, known) == (expected, [])


def test_adaptive_routing():
    off, on = {ROUTING: "0"}, {ROUTING: "1"}
    assert said(advise_ecmp, infiniband(set_to=off)) == ({ROUTING: None}, [])
    assert advise_ecmp(infiniband(set_to=on)) == []
    # Over Ethernet it is off by default, and needs a service level of the switches.
    assert advise_ecmp(roce(num_paths=1, set_to=off)) == []
    assert said(advise_ecmp, roce(num_paths=1, set_to=on)) == ({}, ["adaptive routing"])


# Congestion.


@pytest.mark.parametrize(("dscp", "byte"), [(0, 2), (26, 106), (46, 186), (63, 254)])
def test_traffic_class(dscp, byte):
    assert traffic_class(dscp) == byte


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"dscp": 26}, ({"NCCL_IB_TC": "106"}, [])),
        ({"dscp": 26, "set_to": {"NCCL_IB_TC": "104"}}, ({}, [])),
        ({"dscp": 26, "set_to": {"NCCL_IB_TC": "26"}}, ({"NCCL_IB_TC": "106"}, [])),
        ({"set_to": {"NCCL_IB_TC": "106"}}, ({}, [])),
        ({}, ({}, ["traffic class"])),
    ],
)
def test_marks_of_packets(known, expected):
    assert said(advise_congestion, roce(**known)) == expected
    assert advise_congestion(infiniband(**known)) == []


@pytest.mark.parametrize(
    ("trust", "fires"), [("pcp", True), ("dscp", False), (None, False)]
)
def test_what_cards_go_by(trust, fires):
    known = facts(rdma(0, trust=trust), set_to={"NCCL_IB_TC": "106"})
    assert said(advise_congestion, known)[0] == (
        {"trust": "mlnx_qos -i ens0 --trust dscp"} if fires else {}
    )


# GPUs.

PEERMEM = frozenset({"nvidia_peermem"})


def gpus(**known):
    known = {
        "num_gpus": 8,
        "modules": PEERMEM,
        "acs_bridges": (),
        "is_virtual": False,
        **known,
    }
    return said(advise_gpudirect, infiniband(**known))


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"kernel": (6, 8), "has_open_driver": True}, True),
        ({"kernel": (6, 8), "has_open_driver": False}, False),
        ({"kernel": (5, 4), "has_open_driver": True}, False),
        ({"kernel": (6, 8)}, None),
        ({"has_open_driver": True}, None),
        ({"has_open_driver": False}, False),
        ({"kernel": (6, 8), "has_open_driver": True, "nccl": (2, 12, 12)}, False),
        (
            {
                "kernel": (6, 8),
                "has_open_driver": True,
                "set_to": {"NCCL_DMABUF_ENABLE": "0"},
            },
            False,
        ),
    ],
)
def test_dma_buf(known, expected):
    assert can_use_dma_buf(facts(**known)) is expected


def test_module_for_gpudirect():
    none = frozenset({"mlx5_core"})
    closed = {"modules": none, "kernel": (6, 8), "has_open_driver": False}
    assert gpus(**closed) == ({"nvidia_peermem": "modprobe nvidia-peermem"}, [])
    assert gpus(**{**closed, "has_open_driver": True}) == ({}, [])
    assert gpus(**{**closed, "modules": PEERMEM}) == ({}, [])
    assert gpus(**{**closed, "has_open_driver": None}) == ({}, ["GPUDirect RDMA"])
    assert gpus(**{**closed, "modules": None}) == ({}, ["GPUDirect RDMA"])
    assert gpus(**{**closed, "num_gpus": 0}) == ({}, [])
    assert gpus(**{**closed, "num_gpus": None}) == ({}, [])


LEVEL = "NCCL_NET_GDR_LEVEL"


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"gdr_distance": "PHB"}, {LEVEL: "PHB"}),
        ({"gdr_distance": "PIX"}, {}),
        ({"gdr_distance": "SYS"}, {}),
        ({"set_to": {LEVEL: "LOC"}}, {LEVEL: None}),
        ({"set_to": {LEVEL: "LOC", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}}, {}),
        ({"set_to": {LEVEL: "3"}}, {LEVEL: "PHB"}),
        ({"set_to": {LEVEL: "SYS"}}, {}),
    ],
)
def test_level_of_gpudirect(known, expected):
    assert gpus(**known) == (expected, [])


def test_bridges_that_redirect():
    bridges = tuple(f"0000:{i}0:01.0" for i in range(1, 7))
    found, gaps = gpus(acs_bridges=bridges)
    assert gaps == []
    assert found["ACS"].count("setpci") == 6
    # A virtual machine needs them.
    assert gpus(acs_bridges=bridges, is_virtual=True) == ({}, [])
    assert gpus(acs_bridges=bridges, is_virtual=None) == ({}, [])
    assert gpus(acs_bridges=None) == ({}, ["ACS"])


def test_relaxed_ordering_in_virtual_machines():
    off = {"NCCL_IB_PCI_RELAXED_ORDERING": "0"}
    expected = {"NCCL_IB_PCI_RELAXED_ORDERING": None}
    assert gpus(is_virtual=True, set_to=off) == (expected, [])
    assert gpus(set_to=off) == ({}, [])


# Clouds.


def test_erdma_is_set_as_its_provider_says():
    card = rdma(device="erdma_0", driver="erdma")
    expected = {
        "NCCL_IB_HCA": "erdma",
        "NCCL_IB_GID_INDEX": "1",
        "NCCL_IB_QPS_PER_CONNECTION": "8",
        "NCCL_MIN_CTAS": "16",
        "NCCL_NET_PLUGIN": "none",
    }
    assert said(advise_erdma, facts(card)) == (expected, [])
    assert all("Alibaba" in one.source for one in advise_erdma(facts(card)))
    found, _ = said(advise_erdma, facts(card, nccl=(2, 18, 6)))
    assert found["NCCL"] == "install 2.19 or later"
    found, _ = said(advise_erdma, facts(card, nccl=(2, 16, 2)))
    assert "NCCL_MIN_NCHANNELS" in found
    other = rdma(device="rocep1s0", driver="erdma")
    assert "NCCL_IB_HCA" not in said(advise_erdma, facts(other))[0]


def test_erdma_without_its_driver():
    found, _ = said(advise_erdma, facts(ethernet(), has_erdma_card=True))
    assert list(found) == ["eRDMA driver"]


def test_efa_without_its_plug_in():
    card = rdma(device="efa_0", driver="efa", layer="Unspecified")
    off = {"NCCL_NET_PLUGIN": "none"}
    assert said(advise_efa, facts(card, set_to=off)) == ({"NCCL_NET_PLUGIN": None}, [])
    assert advise_efa(facts(card)) == []


@pytest.mark.parametrize(
    ("set_to", "level", "says"),
    [
        ({HCA: "mlx5_0"}, "warn", "goes on with sockets"),
        ({HCA: "=mlx5_0:1", "NCCL_NET": ""}, "warn", "NCCL_DEBUG=INFO"),
        ({HCA: "mlx5_0", "NCCL_NET": "IB"}, "bad", "NCCL does not start"),
        ({HCA: "=mlx5_0", "NCCL_NET": "ib"}, "bad", "NCCL does not start"),
    ],
)
@pytest.mark.parametrize("host", [(ethernet(),), (rdma(state="DOWN"),)])
def test_named_devices_where_none_is_up(host, set_to, level, says):
    (found,) = advise_nics(facts(*host, set_to=set_to))
    assert (found.setting, found.value, found.level) == (HCA, None, level)
    assert says in found.because


@pytest.mark.parametrize(
    "set_to",
    [
        {},
        {HCA: ""},
        {HCA: "mlx5_0", "NCCL_NET": "Socket"},
        {HCA: "mlx5_0", "NCCL_NET": "AWS Libfabric"},
        {HCA: "mlx5_0", "NCCL_IB_DISABLE": "1"},
        {HCA: "^mlx5_3"},
    ],
)
def test_named_devices_that_nobody_asks_for(set_to):
    assert advise_nics(facts(ethernet(), set_to=set_to)) == []
    assert advise_nics(facts(set_to={HCA: "mlx5_0"})) == []
