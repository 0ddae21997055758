"""Nodes reach each other, or do not, each way alone; nothing of them is left behind."""

import select
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_core import ProgramError
from drivetrain_health.faults import (
    Chaos,
    ChaosSpec,
    MissingPrivilegeError,
    Network,
    missing_because,
)

WHY = missing_because("network")
needs_network = pytest.mark.skipif(WHY is not None, reason=f"no network faults: {WHY}")

PORT = 4000


@pytest.fixture(scope="module")
def network():
    with Network(3) as network:
        yield network


@pytest.fixture
def sockets():
    made = []
    yield made
    for one in made:
        one.close()


def connect(network, one, other, sockets):
    """Returns both ends of a connection between two nodes."""
    with network.entered(other), socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((network.address(other), PORT))
        listener.listen()
        with network.entered(one):
            here = socket.create_connection((network.address(other), PORT), 10)
        there, _ = listener.accept()
    sockets += [here, there]
    return here, there


def datagrams(network, sockets):
    """Returns a datagram socket of each node."""
    for node in range(network.num_nodes):
        with network.entered(node):
            sockets.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sockets[-1].bind((network.address(node), PORT))
        sockets[-1].setblocking(False)
    return sockets


def reached(network, ends, expected):
    """Returns the pairs of nodes of which the first reaches the second now."""
    for end in ends:
        while select.select([end], [], [], 0)[0]:
            end.recv(100)
    nodes = range(network.num_nodes)
    for here in nodes:
        for there in nodes:
            if here != there:
                ends[here].sendto(bytes([here]), (network.address(there), PORT))
    found = set()
    while True:
        # A switch in the kernel delivers at once: what is late is lost.
        wait_s = 0.005 if found >= expected else 2.0
        ready, _, _ = select.select(ends, [], [], wait_s)
        if not ready:
            return found
        found |= {(end.recv(1)[0], ends.index(end)) for end in ready}


EVERY = {(a, b) for a in range(3) for b in range(3) if a != b}


@needs_network
def test_nodes_reach_each_other_and_nobody_else(network, sockets):
    here, there = connect(network, 0, 1, sockets)
    here.sendall(b"hello")
    assert there.recv(5) == b"hello"
    assert there.getpeername()[0] == network.address(0)
    with network.entered(0), pytest.raises(OSError, match="unreachable"):
        socket.create_connection(("192.0.2.1", 80), 5)


@needs_network
def test_connection_waits_behind_a_cut_and_goes_on_when_it_is_healed(network, sockets):
    here, there = connect(network, 0, 1, sockets)
    there.settimeout(0.3)
    with network.partition([0], [1, 2]):
        here.sendall(b"later")
        with pytest.raises(TimeoutError):
            there.recv(5)
        # It is still there, for both.
        here.sendall(b"!")
    # One with a time-out does not wait for all, whatever it is asked.
    there.settimeout(60)
    heard = b""
    while len(heard) < 6:
        heard += there.recv(6 - len(heard))
    assert heard == b"later!"


@needs_network
def test_one_way_cut_loses_one_direction_only(network, sockets):
    ends = datagrams(network, sockets)
    with network.partition([0], [1, 2], one_way=True):
        left = EVERY - {(0, 1), (0, 2)}
        assert reached(network, ends, left) == left
    assert reached(network, ends, EVERY) == EVERY


@needs_network
def test_cut_node_is_alone_until_the_block_ends_also_by_an_error(network, sockets):
    ends = datagrams(network, sockets)
    with suppress(ZeroDivisionError), network.cut(1):
        left = {(0, 2), (2, 0)}
        assert reached(network, ends, left) == left
        raise ZeroDivisionError
    assert reached(network, ends, EVERY) == EVERY


@pytest.mark.slow
@needs_network
@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_what_is_cut_is_what_cuts_that_stand_have_cut(network, data):
    sockets = []
    try:
        ends = datagrams(network, sockets)
        standing = []
        for _ in range(4):
            action = data.draw(st.sampled_from(["cut", "cut", "heal one", "heal all"]))
            if action == "cut":
                one, other = data.draw(st.permutations(range(3)))[:2]
                way = data.draw(st.booleans())
                pairs = {(one, other)} | (set() if way else {(other, one)})
                cut = network.partition([one], [other], one_way=way)
                standing.append((cut, pairs))
            elif action == "heal one" and standing:
                standing.pop(0)[0].heal()
            elif action == "heal all":
                network.heal()
                for cut, _ in standing:
                    cut.heal()
                standing.clear()
            left = EVERY - set().union(*(pairs for _, pairs in standing))
            assert reached(network, ends, left) == left
    finally:
        network.heal()
        for one in sockets:
            one.close()


@needs_network
def test_chaos_cuts_nodes_off_and_heals_them(network, sockets):
    ends = datagrams(network, sockets)
    spec = ChaosSpec(
        seed=0, num_targets=3, every_s=0.01, kinds={"cut": 1}, lasts_s=(60, 60)
    )
    acts = {"cut": lambda node, _: network.cut(node)}
    with Chaos(range(3), spec, acts=acts) as chaos:
        end_s = time.monotonic() + 60
        while len(chaos.log) < 3:
            assert time.monotonic() < end_s
            time.sleep(0.01)
        assert reached(network, ends, set()) == set()
    assert reached(network, ends, EVERY) == EVERY


@needs_network
def test_link_with_a_rate_takes_its_time(network, sockets):
    here, there = connect(network, 0, 1, sockets)
    size_bytes = 500_000

    def send():
        reader = threading.Thread(target=there.recv, args=(size_bytes, FLAGS))
        began_s = time.monotonic()
        reader.start()
        here.sendall(bytes(size_bytes))
        reader.join()
        return time.monotonic() - began_s

    with network.shape(0, 8.0):
        with pytest.raises(ProgramError, match="has a limit already"):
            network.shape(0, 8.0)
        # A second carries a megabyte, of which the bucket gives the first part at once.
        assert send() > 0.3
    tools = network.start(0, ["tc", "qdisc", "show", "dev", "eth0"], **PIPED)
    assert "tbf" not in tools.communicate()[0]
    send()


FLAGS = socket.MSG_WAITALL
PIPED = {"stdout": subprocess.PIPE, "text": True}


def kept_namespaces():
    found = 0
    for file in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            found += str(file.readlink()).startswith("net:")
    return found


def own_namespace():
    return Path("/proc/thread-self/ns/net").stat().st_ino


@needs_network
def test_nothing_is_left_of_a_network_after_an_error():
    before = kept_namespaces(), own_namespace()
    # A daemon, which has left its parent and its session.
    code = "import os, time; os.fork() and os._exit(0); os.setsid(); time.sleep(600)"
    with suppress(ZeroDivisionError), Network(2) as network:
        assert kept_namespaces() == before[0] + 3
        first = network.start(0, [sys.executable, "-S", "-c", code])
        first.wait()
        (daemon,) = network._nodes[0].pids()
        second = network.start(1, ["sleep", "600"])
        raise ZeroDivisionError
    assert second.poll() == -9
    assert not psutil.pid_exists(daemon) or psutil.Process(daemon).status() == "zombie"
    assert (kept_namespaces(), own_namespace()) == before


@needs_network
def test_two_networks_at_once_know_nothing_of_each_other(network, sockets):
    with Network(2) as other:
        here, there = connect(network, 0, 1, sockets)
        mine, theirs = connect(other, 0, 1, sockets)
        with other.cut(0):
            here.sendall(b"a")
            mine.sendall(b"b")
            assert there.recv(1) == b"a"
        theirs.settimeout(60)
        assert theirs.recv(1) == b"b"


@needs_network
@pytest.mark.parametrize(
    ("do", "says"),
    [
        (lambda network: network.cut(3), "there are nodes 0 to 2, and no 3"),
        (lambda network: network.start(-1, ["true"]), "and no -1"),
        (lambda network: network.partition([0, 1], [1]), r"\[1\] are on both sides"),
        (lambda network: network.shape(0, 0), "over 0 Mbit/s"),
        (lambda network: Network(0), "1 to 100 nodes, got 0"),
    ],
)
def test_network_says_what_is_wrong(network, do, says):
    with pytest.raises(ProgramError, match=says):
        do(network)


@contextmanager
def without(monkeypatch, *, capabilities=0, path=None):
    from drivetrain_health.faults import _privileges

    with monkeypatch.context() as patch:
        patch.setattr(_privileges, "_held_capabilities", lambda: capabilities)
        if path is not None:
            patch.setenv("PATH", str(path))
        yield


def test_network_says_which_privilege_is_missing(monkeypatch, tmp_path):
    with without(monkeypatch):
        lacks = "CAP_NET_ADMIN and CAP_SYS_ADMIN: run it as root"
        with pytest.raises(MissingPrivilegeError, match=lacks):
            Network(2)
    with without(monkeypatch, capabilities=-1, path=tmp_path):
        assert "ip and tc" in missing_because("network")
    with without(monkeypatch, capabilities=1 << 21):
        assert missing_because("disk") is None
        assert missing_because("network") == "it needs CAP_NET_ADMIN: run it as root"
    with pytest.raises(ProgramError, match="clock, disk, network, not 'fire'"):
        missing_because("fire")
