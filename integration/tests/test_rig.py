"""The rig's networks: whether links are as they should be, and what is left behind."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
sys.path.append(str(HERE))
from rig.__main__ import main
from rig.goodput import measure_goodput
from rig.namespaces import missing_because, namespace_file, remove_leftovers
from rig.network import Network
from rig.scenarios import Scenario
from rig.shape import Link
from rig.trainers import TrainingError, loss_difference, train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(missing_because() is not None, reason=str(missing_because())),
]


def say(network, node, *command, text=None):
    """What a program prints on a node."""
    pipes = {"text": True, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = network.start(node, command, **pipes)
    return process.communicate(text, timeout=60)[0].strip()


def reaches(network, one, other, timeout_s=2):
    """Whether a TCP connection from one node to another comes about."""
    server = f"import socket; s = socket.create_server(('{network.address(other)}', 7))"
    server += "; print(1, flush=True); s.accept()"
    client = f"import socket; socket.create_connection(('{network.address(other)}', 7)"
    client += f", timeout={timeout_s})"
    listening = network.start(other, [sys.executable, "-c", server], stdout=-1)
    listening.stdout.readline()
    quiet = {"stderr": subprocess.DEVNULL}
    code = network.start(one, [sys.executable, "-c", client], **quiet).wait(60)
    listening.kill()
    listening.communicate()
    return code == 0


@pytest.mark.slow
@pytest.mark.parametrize("rtt_ms", [0, 10])
def test_link_has_its_rate_and_round_trip(rtt_ms):
    link = Link(rate_mbit_per_s=100, rtt_ms=rtt_ms)
    with Network(2, link) as network:
        found = measure_goodput(network)
        both = measure_goodput(network, num_flows=2)
        more = [measure_goodput(network, seconds=0.1) for _ in range(3)]
    for goodput in (found, both):
        # A loaded machine may be slower; faster only by what a bucket let through at once.
        assert 50 < goodput.mbit_per_s < 110
    # What waits for a processor comes on top: of several the least is the link's.
    trips_ms = [1e3 * goodput.rtt_s for goodput in (found, both, *more)]
    assert rtt_ms <= min(trips_ms) < rtt_ms + 10


@pytest.mark.slow
@pytest.mark.parametrize("rtt_ms", [0, 10])
def test_every_flow_has_its_own_cap_within_the_port(rtt_ms):
    link = Link(rate_mbit_per_s=120, rtt_ms=rtt_ms, flow_cap_mbit_per_s=20)
    with Network(2, link) as network:
        one, four, eight = (
            measure_goodput(network, num_flows=count).mbit_per_s for count in (1, 4, 8)
        )
    assert 10 < one < 21
    assert 2.5 < four / one < 4.5
    assert 1.1 * four < eight < 122


def test_delay_line_carries_every_byte_in_order():
    program = """
        import hashlib, os, socket, sys
        role, address, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
        digest, done = hashlib.sha256(), 0
        if role == "take":
            with socket.create_server((address, 7)) as listener:
                print("listening", flush=True)
                with listener.accept()[0] as sock:
                    while block := sock.recv(1 << 16):
                        digest.update(block)
        else:
            with socket.create_connection((address, 7)) as sock:
                while done < size:
                    block = os.urandom(min(99_991, size - done))
                    digest.update(block)
                    sock.sendall(block)
                    done += len(block)
        print(digest.hexdigest())
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    pipes = {"text": True, "stdout": subprocess.PIPE}
    with Network(3, None, rtt_ms=4) as network:
        where = [network.address(0), "20000003"]
        taking = network.start(0, [*command, "take", *where], **pipes)
        taking.stdout.readline()
        giving = network.start(2, [*command, "give", *where], **pipes)
        sent = giving.communicate(timeout=60)[0].strip()
        assert taking.communicate(timeout=60)[0].strip() == sent
        stats = network.stats()
        counters = say(network, 0, "cat", "/proc/net/netstat")
    assert len(sent) == len(hashlib.sha256().hexdigest())
    assert stats["drops"] == 0
    assert stats["bytes"] > 20_000_003
    lines = [line.split() for line in counters.splitlines()]
    titles, values = [line for line in lines if line[0] == "TcpExt:"]
    found = dict(zip(titles, values, strict=True))
    assert int(found["TCPOFOQueue"]) == 0  # nothing came before what precedes it


@pytest.mark.slow
@pytest.mark.parametrize("rtt_ms", [0, 4])
def test_cut_and_partition_stop_what_they_should(rtt_ms):
    with Network(3, Link(rate_mbit_per_s=100, rtt_ms=rtt_ms)) as network:
        assert reaches(network, 0, 1)
        network.part(0, 1)
        assert not reaches(network, 0, 1)
        assert not reaches(network, 1, 0)
        assert reaches(network, 0, 2)
        assert reaches(network, 2, 1)
        network.cut(2)
        assert not reaches(network, 0, 2)
        fresh = network.add_node()
        assert reaches(network, fresh, 1)


def test_node_has_a_name_and_memory_of_its_own():
    with Network(2) as network:
        write = ["sh", "-c", "hostname; echo here > /dev/shm/mark"]
        assert say(network, 0, *write) == "node0"
        assert say(network, 0, "cat", "/dev/shm/mark") == "here"
        assert say(network, 1, "ls", "/dev/shm") == ""
        name = say(network, 1, "getent", "hosts", f"::ffff:{network.address(0)}")
        assert name.split()[-1] == "node0"
        assert network.settings(0)["net.ipv4.tcp_wmem"] == "4096 16384 4194304"
        with pytest.raises(ValueError, match="round trip is 0 ms"):
            network.shape(0, Link(rate_mbit_per_s=1, rtt_ms=1))


@pytest.mark.parametrize("rtt_ms", [0, 4])
def test_network_leaves_nothing_behind(rtt_ms):
    with Network(2, Link(rate_mbit_per_s=100, rtt_ms=rtt_ms)) as network:
        # A daemon of a node, in a session of its own.
        say(network, 0, "sh", "-c", "setsid sleep 600 > /dev/null 2>&1 &")
        network.kill(0)
        daemon = network.start(1, ["sleep", "600"])
    assert daemon.wait(60) == -signal.SIGKILL
    assert left(os.getpid()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_leave_nothing_behind(number):
    program = f"""
        import signal, sys, time
        # What was started in the background may have been told to ignore it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.path.append({str(HERE)!r})
        from rig.network import Link, Network
        with Network(2, Link(rate_mbit_per_s=100, rtt_ms=4)) as network:
            network.start(0, ["sh", "-c", "echo $$; exec sleep 600"])
            time.sleep(600)
    """
    pipes = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, **pipes) as process:
        child = int(process.stdout.readline())
        assert left(process.pid)
        process.send_signal(number)
        process.wait(60)
    if number == signal.SIGKILL:
        remove_leftovers()  # or another rig has, which began meanwhile
    assert left(process.pid) == []
    status = Path("/proc", str(child), "status")
    # It may still be there for its parent of last resort, dead.
    assert not status.exists() or "State:\tZ" in status.read_text()


def left(pid):
    """What is there of the rigs of a process."""
    folders = [namespace_file("."), Path("/etc/netns"), Path("/dev/shm")]
    return [
        file
        for folder in folders
        if folder.is_dir()
        for file in folder.glob(f"dt-{pid}-*")
    ]


@pytest.mark.faults
def test_training_agrees_on_all_ranks_and_with_itself():
    pytest.importorskip("torch")
    scenario = Scenario(
        num_hosts=2,
        ranks_per_host=1,
        link=Link(rate_mbit_per_s=1000, rtt_ms=2),
        model="many",
        compute_s=0.01,
    )
    with Network(2, scenario.link) as network:
        options = ["--steps", 3, "--dtype", "float64"]
        one = train(network, scenario, *options)
        other = train(network, scenario, *options, "--bucket-cap-mb", 1)
        with pytest.raises(TrainingError, match="No module named missing_launcher"):
            train(network, scenario, launcher="missing_launcher")
    assert one.ranks_agree
    assert len(one.steps_s) == 3
    assert loss_difference(one, other) < 1e-12
    assert one.losses[0][0] > one.losses[0][-1] or one.losses[0] != one.losses[1]


@pytest.mark.faults
def test_run_prints_what_it_measured(capsys):
    pytest.importorskip("torch")
    arguments = ["run", "8x1-1000mbit-rtt10-many", "--steps", "2", "--warmup", "1"]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["topology"]["measured_rtt_ms"] >= 10
    assert found["run"]["ranks_agree"]
    assert found["run"]["median_s"] > found["topology"]["compute_s"]
    assert found["run"]["switch"]["bytes"] > 8 * 24e6
