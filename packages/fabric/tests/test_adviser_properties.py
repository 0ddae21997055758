"""What holds for all facts: no contradiction, nothing unknown, limits are kept."""

import itertools
import math
import shlex
from dataclasses import replace

import pytest
from adviser_hosts import LINK_LOCAL, V4, V6
from hypothesis import given
from hypothesis import strategies as st

from drivetrain_fabric._collision_probability import shared_bin_probability
from drivetrain_fabric.adviser import (
    Adapter,
    AdviserError,
    Assignment,
    Facts,
    Gid,
    advise,
    as_diff,
    as_env,
    changes,
)
from drivetrain_fabric.adviser._collisions import expected_paths, queue_pairs
from drivetrain_fabric.adviser._rules._sockets import threads_and_sockets
from drivetrain_fabric.adviser._versions import settings_of, wrong_value
from drivetrain_fabric.topology import Nic, PciSlot, RdmaPort

few = st.integers(1, 6)


@given(flows=few, paths=few)
def test_collisions_are_those_that_are_counted(flows, paths):
    every = list(itertools.product(range(paths), repeat=flows))
    shared = sum(len(set(ways)) < flows for ways in every)
    assert shared_bin_probability(flows, paths) == pytest.approx(shared / len(every))
    used = sum(len(set(ways)) for ways in every) / len(every)
    assert expected_paths(flows, paths) == pytest.approx(used)


@given(flows=st.integers(1, 200), paths=st.integers(1, 200))
def test_collisions_by_factorials(flows, paths):
    chance = shared_bin_probability(flows, paths)
    assert 0.0 <= chance <= 1.0
    if flows <= paths:
        apart = math.factorial(paths) // math.factorial(paths - flows)
        assert chance == pytest.approx(1 - apart / paths**flows, abs=1e-9)
    assert shared_bin_probability(flows + 1, paths) >= chance


@given(flows=st.integers(-3, 0), paths=st.integers(-3, 3))
def test_collisions_of_nothing_are_refused(flows, paths):
    with pytest.raises(AdviserError, match="at least 1"):
        expected_paths(flows, paths)
    with pytest.raises(AdviserError, match="at least 1"):
        expected_paths(1, flows)


@given(connections=st.integers(1, 64), paths=st.integers(1, 512))
def test_queue_pairs_use_most_ways_or_are_as_many_as_may_be(connections, paths):
    count = queue_pairs(connections, paths)
    assert count in (1, 2, 4, 8)
    enough = expected_paths(connections * count, paths) >= 0.8 * paths
    assert enough or count == 8
    if count > 1:
        assert expected_paths(connections * count // 2, paths) < 0.8 * paths


@given(connections=st.integers(1, 10_000))
def test_sockets_keep_the_limits_of_nccl(connections):
    threads, sockets = threads_and_sockets(connections)
    assert 1 <= threads <= 16
    assert sockets >= 1
    assert min(connections, 64) <= threads * sockets <= 64


maybe = st.none
versions = st.builds(lambda a, b: (2, a, b), st.integers(4, 33), st.integers(0, 9))
gid = st.builds(
    Gid,
    index=st.integers(0, 5),
    address=st.sampled_from([LINK_LOCAL, V4, V6]),
    kind=st.sampled_from([None, "IB/RoCE v1", "RoCE v2"]),
)
ports = st.builds(
    RdmaPort,
    device=st.sampled_from(["mlx5_0", "mlx5_1", "mlx5_10", "mlx5_bond_0", "erdma_0"]),
    port=st.just(1),
    rate_mbit_per_s=st.sampled_from([None, 25_000, 400_000]),
    link_layer=st.sampled_from(["InfiniBand", "Ethernet", "Unspecified"]),
    state=st.sampled_from(["ACTIVE", "DOWN"]),
    num_gids=st.just(1),
)
nics = st.builds(
    Nic,
    name=st.sampled_from(["eth0", "eth1", "ib0", "ens1"]),
    slot=st.none() | st.just(PciSlot(address="0000:10:00.0")),
    speed_mbit_per_s=st.sampled_from([None, 10_000, 100_000]),
    driver=st.sampled_from([None, "ena", "efa", "erdma", "mlx5_core", "virtio_net"]),
    mtu=st.sampled_from([None, 1500, 9000]),
    state=st.sampled_from(["up", "down", "unknown"]),
    rdma=st.none() | ports,
)
adapters = st.builds(
    Adapter,
    nic=nics,
    vendor=st.sampled_from([None, "0x1d0f", "0x1ae0", "0x1ded", "0x15b3"]),
    device=st.sampled_from([None, "0x107f"]),
    gids=st.lists(gid, max_size=3).map(tuple),
    trust=st.sampled_from([None, "pcp", "dscp"]),
    roce_accl=st.dictionaries(
        st.sampled_from(
            [
                "roce_adp_retrans_field_select",
                "roce_adp_retrans_en",
                "roce_slow_restart_field_select",
                "roce_slow_restart_en",
            ]
        ),
        st.integers(0, 2),
    ).map(lambda pairs: tuple(pairs.items())),
)
NAMES = [
    *(name for name, one in settings_of((2, 32)).items() if one.kind == "number"),
    "NCCL_CHUNK_SIZE",
    "NCCL_IB_HCA",
    "NCCL_MAX_P2P_NCHANNELS",
    "NCCL_NET",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_NET_PLUGIN",
    "NCCL_SOCKET_IFNAME",
    "NCCL_SOCKET_SNDBUF",
    "NCCL_DEBUG",
    "NCCL_NONSENSE",
]
VALUES = ["", "0", "1", "2", "3", "8", "14", "25", "64", "128", "4194304", "1048577"]
VALUES += ["-1", "-8", "x", "Socket", "none", "LOC", "mlx5_1", "=mlx5_0", "eth", "INFO"]
assignments = st.builds(
    Assignment,
    name=st.sampled_from(NAMES),
    value=st.sampled_from(VALUES),
    where=st.sampled_from(["environment", "/etc/nccl.conf:3"]),
)
sysctls = st.dictionaries(
    st.sampled_from(
        [
            "net.core.wmem_max",
            "net.ipv4.conf.all.rp_filter",
            "net.ipv4.tcp_moderate_rcvbuf",
            "net.ipv4.tcp_rmem",
            "net.ipv4.tcp_slow_start_after_idle",
            "net.ipv4.tcp_window_scaling",
            "net.ipv4.tcp_wmem",
        ]
    ),
    st.sampled_from(["", "0", "1", "212992", "4096 16384 4194304", "0 0 0", "cubic"]),
)


def consistent(facts):
    """The interfaces that are there include those of all cards."""
    if facts.interface_names is None:
        return facts
    names = {one.nic.name for one in facts.adapters}
    return replace(facts, interface_names=facts.interface_names | names)


some_facts = st.builds(
    Facts,
    nccl=versions,
    adapters=st.lists(adapters, max_size=4).map(tuple),
    has_erdma_card=st.booleans(),
    num_gpus=st.sampled_from([None, 0, 8]),
    gdr_distance=st.sampled_from([None, "PIX", "PHB", "SYS"]),
    delay_s=st.none() | st.floats(0, 0.2),
    port_bytes_per_s=st.none() | st.floats(1e6, 1e11),
    flow_bytes_per_s=st.none() | st.floats(1e6, 1e11),
    num_paths=st.none() | st.integers(1, 64),
    dscp=st.none() | st.integers(0, 63),
    shares_switch=st.sampled_from([None, True, False]),
    ranks=st.none() | st.integers(1, 100_000),
    sysctl=sysctls.map(lambda pairs: tuple(pairs.items())),
    memlock_bytes=st.sampled_from([None, -1, 65536]),
    modules=st.sampled_from([None, frozenset(), frozenset({"nvidia_peermem"})]),
    kernel=st.sampled_from([None, (5, 4), (6, 8)]),
    has_open_driver=st.sampled_from([None, True, False]),
    is_virtual=st.sampled_from([None, True, False]),
    acs_bridges=st.sampled_from([None, (), ("0000:10:01.0",)]),
    interface_names=st.sampled_from([None, frozenset({"eth0", "eth1"})]),
    default_route=st.sampled_from([None, "eth0", "eth1"]),
    own_address=st.sampled_from([None, "127.0.1.1", "10.0.0.1"]),
    settings=st.lists(assignments, max_size=6).map(tuple),
).map(consistent)


@given(known=some_facts)
def test_advice_does_not_contradict_itself(known):
    report = advise(known)  # it asserts that each setting is there once
    after = {one.setting: one.value for one in report.advice if one.scope == "env"}
    most, least = after.get("NCCL_MAX_CTAS"), after.get("NCCL_MIN_CTAS")
    if most is not None and least is not None and known.transport != "erdma":
        assert int(least) <= int(most)
    threads = after.get("NCCL_SOCKET_NTHREADS")
    sockets = after.get("NCCL_NSOCKS_PERTHREAD")
    if threads is not None and sockets is not None:
        assert int(threads) * int(sockets) <= 64


@given(known=some_facts)
def test_advice_is_known_to_the_version_and_has_a_right_value(known):
    for one in advise(known).advice:
        assert one.because
        assert one.source
        if one.scope == "env" and one.value is not None:
            assert one.setting in settings_of(known.nccl)
            assert wrong_value(one.setting, one.value, known.nccl) is None


@pytest.mark.slow
@given(known=some_facts)
def test_advice_is_not_to_unset_what_is_not_set(known):
    for one in advise(known).advice:
        if one.scope == "env" and one.value is None:
            assert known.value_of(one.setting) is not None


@given(known=some_facts)
def test_forms_hold_all_advice(known):
    report = advise(known)
    text = as_env(known, report)
    for line in text.splitlines():
        assert not line or line.startswith(("# ", "export ", "unset "))
        if not line.startswith("#"):
            assert len(shlex.split(line)) in (0, 2)
    found = {one.setting for one in changes(known, report)}
    assert found >= {one.setting for one in report.advice if one.scope != "host"}
    lines = 1 + bool(report.longest_flap) + len(found) + len(report.gaps)
    assert len(as_diff(known, report).splitlines()) == lines


@given(known=some_facts)
def test_advice_that_is_followed_is_not_repeated_as_another(known):
    """What is set as advised stays as it is, or is at least not turned back."""
    report = advise(known)
    taken = {o.setting: o.value for o in report.advice if o.scope == "env"}
    kept = tuple(one for one in known.settings if one.name not in taken)
    added = tuple(
        Assignment(name=name, value=value)
        for name, value in taken.items()
        if value is not None
    )
    again = advise(replace(known, settings=(*added, *kept)))
    for one in again.advice:
        if one.scope == "env" and taken.get(one.setting) is not None:
            assert one.value == taken[one.setting]
