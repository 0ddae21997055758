"""What TCP gets between two nodes: the rate of some flows, and the round trip.

Run as a program it is one end of the measurement: `serve ADDRESS PORT` or
`measure ADDRESS PORT NUM_FLOWS SECONDS`.
"""

from __future__ import annotations

import contextlib
import math
import socket
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

_PORT = 29600
_NUM_TRIPS = 21
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Goodput:
    """A measurement between two nodes.

    Args:
        num_flows: How many TCP connections carried bytes at once.
        bytes_per_s: What they carried together, without headers, once they were fast.
        rtt_s: The median round trip of one byte on an idle link.
    """

    num_flows: int
    bytes_per_s: float
    rtt_s: float

    @property
    def mbit_per_s(self):
        """The rate in Mbit/s."""
        return self.bytes_per_s / 125e3


def measure_goodput(network, source=0, target=1, *, num_flows=1, seconds=1.0):
    """Measures what one node of an idle network can send to another one."""
    address = network.address(target)
    pipes = {"text": True, "stdout": subprocess.PIPE}
    serve = [sys.executable, __file__, "serve", address, _PORT]
    ask = [sys.executable, __file__, "measure", address, _PORT, num_flows, seconds]
    server = network.start(target, serve, **pipes)
    try:
        server.stdout.readline()  # it listens
        client = network.start(source, ask, **pipes)
        rtt_s = float(client.communicate(timeout=60 + 4 * seconds)[0])
        rates = [float(server.stdout.readline()) for _ in range(num_flows)]
    finally:
        server.kill()
        server.communicate()
    return Goodput(num_flows=num_flows, bytes_per_s=sum(rates), rtt_s=rtt_s)


def flows_that_fill(link):
    """How many flows it takes to fill a port.

    >>> from rig.shape import Link
    >>> flows_that_fill(Link(rate_mbit_per_s=800, flow_cap_mbit_per_s=200))
    4
    """
    return math.ceil(link.rate_mbit_per_s / (link.flow_cap_mbit_per_s or math.inf)) or 1


def _serve(address, port):
    with socket.create_server((address, port)) as listener:
        print("listening", flush=True)
        while True:
            sock, _ = listener.accept()
            threading.Thread(target=_answer, args=(sock,), daemon=True).start()


def _answer(sock):
    """Sends a byte back for each, or counts bytes for a while and prints how fast."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with sock, sock.makefile("r") as words:
        kind, *numbers = words.readline().split()
        sock.sendall(b"x")
        if kind == "trips":
            while sock.recv(1):
                sock.sendall(b"x")
        else:
            # One write: other threads do the same.
            sys.stdout.write(f"{_rate(sock, *map(float, numbers))}\n")
            sys.stdout.flush()


def _rate(sock, skip_s, seconds):
    """Bytes per second that arrive, after a while that does not count."""
    buffer = bytearray(_CHUNK)
    begin = time.perf_counter() + skip_s
    while time.perf_counter() < begin:
        sock.recv_into(buffer)
    start, num_bytes = time.perf_counter(), 0
    while (passed := time.perf_counter() - start) < seconds:
        num_bytes += sock.recv_into(buffer)
    return num_bytes / passed


def _connect(address, port, words):
    sock = socket.create_connection((address, port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(f"{words}\n".encode())
    sock.recv(1)
    return sock


def _trip_s(sock):
    start = time.perf_counter()
    sock.sendall(b"x")
    sock.recv(1)
    return time.perf_counter() - start


def _send(sock):
    """Sends until the other end has counted enough, and closes."""
    chunk = bytes(_CHUNK)
    with sock, contextlib.suppress(OSError):
        while True:
            sock.sendall(chunk)


def _measure(address, port, num_flows, seconds):
    with _connect(address, port, "trips") as sock:
        rtt_s = statistics.median(_trip_s(sock) for _ in range(_NUM_TRIPS))
    skip_s = 0.3 + 20 * rtt_s  # until flows have found their speed
    words = f"count {skip_s} {seconds}"
    socks = [_connect(address, port, words) for _ in range(num_flows)]
    threads = [threading.Thread(target=_send, args=(sock,)) for sock in socks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(rtt_s)


if __name__ == "__main__":
    role, where, number, *rest = sys.argv[1:]
    if role == "serve":
        _serve(where, int(number))
    else:
        _measure(where, int(number), int(rest[0]), float(rest[1]))
