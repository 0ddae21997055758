"""Recovery over the network, in times of the wire; and what replicas take of it."""

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from workload import MIB, new_place

from drivetrain_checkpoint import Checkpointer
from drivetrain_testing import Row

sys.path.append(str(Path(__file__).parents[3] / "integration"))
from rig.namespaces import missing_because
from rig.network import Network
from rig.shape import Link

_LINK = Link(rate_mbit_per_s=400)
_RATE = 20e6
_PORT = 29517


def recovery_from_peer(size_mib, most):
    """A fresh node restores from the memory of the only other one.

    Half of what it needs is the other's own part, half is the replica of what the lost
    node had. The wire time is that of as many bytes through one plain socket between
    the same nodes, in turns with the restorations.

    Args:
        size_mib: The size of the state; a quick form takes a quarter.
        most: The bound in wire times.
    """

    def measure(quick):
        size = (size_mib // 4 if quick else size_mib) * MIB
        with _network() as found:
            if isinstance(found, Row):
                return found
            network, place = found
            job = _Job(network, place, (0, 1), size, replicas=1)
            job.ask("save", 1)
            job.ask("wait")
            network.cut(1)
            network.kill(1)
            job.end()
            fresh = network.add_node()
            ours, wire = [], []
            for _ in range(3):
                wire.append(_transfer(network, 0, fresh, size))
                job = _Job(network, place, (0, fresh), size, replicas=1)
                ours.append(job.ask("restore")[1])
                job.end()
        ratio = statistics.median(ours) / statistics.median(wire)
        return Row(
            figure=f"{ratio:.2f} x ({statistics.median(ours):.2f} s)",
            holds=ratio <= most,
            details={"size_bytes": size, "times_s": ours, "wire_s": wire},
        )

    return measure


def replica_rate(quick):
    """How fast replicas go that have a rate, and whether saves wait for them."""
    size = (64 if quick else 192) * MIB
    with _network() as found:
        if isinstance(found, Row):
            return found
        network, place = found
        job = _Job(network, place, (0, 1), size)
        alone = [took for step in range(2, 9) for took in job.ask("save", step)][4:]
        job.end()
        network.kill(0)
        network.kill(1)
        job = _Job(network, place, (0, 1), size, replicas=1, replica_bytes_per_s=_RATE)
        job.ask("save", 10)
        job.ask("wait")  # the first save makes memory here and there
        beside, rates = [], []
        for step in (11, 13, 15):
            start = time.perf_counter()
            job.ask("save", step)
            beside += job.ask("save", step + 1)  # beside the replica of the last
            job.ask("wait")
            # Each node sends its half of the state twice.
            rates.append(size / (time.perf_counter() - start))
        job.end()
    share = statistics.median(rates) / _RATE
    stall = statistics.median(beside) / statistics.median(alone)
    return Row(
        figure=f"{share:.3f} x the rate, saves {stall:.2f} x",
        holds=0.95 <= share <= 1.0 and stall <= 1.5,
        details={
            "size_bytes": size,
            "alone_s": alone,
            "beside_s": beside,
            "rates": rates,
        },
    )


@contextlib.contextmanager
def _network():
    because = missing_because()
    if because is not None:
        yield Row(figure=because, holds=None, details={})
        return
    with new_place() as place, Network(2, _LINK) as network:
        yield network, place


class _Job:
    """One trainer on each of some nodes; all do what they are told together."""

    def __init__(self, network, place, nodes, size_bytes, **options):
        self._trainers = []
        for rank, node in enumerate(nodes):
            runtime = Path(place.runtime, str(node))
            runtime.mkdir(mode=0o700, exist_ok=True)
            env = {
                **place.environment(),
                "XDG_RUNTIME_DIR": str(runtime),
                "MASTER_ADDR": network.address(nodes[0]),
                "MASTER_PORT": str(_PORT),
                "GLOO_SOCKET_IFNAME": "eth0",
                "WORLD_SIZE": str(len(nodes)),
                "RANK": str(rank),
            }
            text = json.dumps({"folder": str(place.folder / "run"), **options})
            command = [sys.executable, __file__, "trainer", text, str(size_bytes)]
            pipes = {"text": True, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self._trainers.append(network.start(node, command, env=env, **pipes))

    def ask(self, *question):
        """What each rank took for it, in seconds."""
        for trainer in self._trainers:
            trainer.stdin.write(json.dumps(question) + "\n")
            trainer.stdin.flush()
        return [json.loads(trainer.stdout.readline()) for trainer in self._trainers]

    def end(self):
        for trainer in self._trainers:
            trainer.kill()
            trainer.communicate()


def _trainer(options, size_bytes):
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    checkpointer = Checkpointer(job="bench", **options)
    count = dist.get_world_size()
    state = {f"t{i}": torch.zeros(size_bytes // 4 // count) for i in range(count)}
    handle = None
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        dist.barrier()
        start = time.perf_counter()
        if name == "save":
            for tensor in state.values():
                tensor.fill_(arguments[0])
            start = time.perf_counter()
            handle = checkpointer.save(arguments[0], state, persist=False)
        elif name == "wait":
            assert handle is not None
            assert handle.wait(300, until="replicated")
        else:
            step = checkpointer.restore(state)
            assert all(bool((tensor == step).all()) for tensor in state.values())
        print(json.dumps(time.perf_counter() - start), flush=True)


def _transfer(network, source, target, size_bytes):
    """How many seconds so many bytes take from one node to another."""
    server = [sys.executable, __file__, "send", network.address(source)]
    client = [sys.executable, __file__, "receive", network.address(source)]
    pipes = {"text": True, "stdout": subprocess.PIPE}
    sending = network.start(source, [*server, str(size_bytes)], **pipes)
    sending.stdout.readline()  # it listens
    receiving = network.start(target, [*client, str(size_bytes)], **pipes)
    took = float(receiving.communicate(timeout=300)[0])
    sending.communicate(timeout=60)
    return took


def _send(address, size_bytes):
    with socket.create_server((address, _PORT + 1)) as listener:
        print("listening", flush=True)
        sock, _ = listener.accept()
        with sock, os.fdopen(os.memfd_create("wire"), "r+b") as file:
            file.truncate(size_bytes)
            sock.recv(1)
            sock.sendfile(file)


def _receive(address, size_bytes):
    target = memoryview(bytearray(size_bytes))
    with socket.create_connection((address, _PORT + 1)) as sock:
        start = time.perf_counter()
        sock.sendall(b"x")
        done = 0
        while done < size_bytes:
            done += sock.recv_into(target[done:])
        print(time.perf_counter() - start)


if __name__ == "__main__":
    role, where, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if role == "trainer":
        _trainer(json.loads(where), length)
    else:
        {"send": _send, "receive": _receive}[role](where, length)
