"""How long a job has no master, when the one that serves is killed or stops."""

import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from drivetrain_elastic._client._master_client import MasterClient
from drivetrain_elastic.protocol import messages as pb
from drivetrain_testing import Row

_LEASE_S = 1.0
_MORE_S = 1.0


def failover(quick):
    """Kills masters, and asks both addresses until the other one answers."""
    if not shutil.which("redis-server"):
        return Row(figure="no redis-server", holds=None)
    num = 3 if quick else 20
    killed = [gap_s(signal.SIGKILL) for _ in range(num)]
    stopped = [gap_s(signal.SIGTERM) for _ in range(num)]
    return Row(
        figure=f"killed: {words(killed)}; stopped: {words(stopped)} (lease {_LEASE_S:g} s)",
        holds=max(killed) <= _LEASE_S + _MORE_S and max(stopped) <= _MORE_S,
        details={"killed_s": killed, "stopped_s": stopped},
    )


def words(seconds):
    return f"median {statistics.median(seconds):.2f} s, most {max(seconds):.2f} s"


def gap_s(number):
    """Returns the seconds between a signal and the answer of the next master."""
    port, *ports = free_ports(3)
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder, "token")
        redis = start(
            *("redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", folder),
            *("--save", "", "--appendonly", "yes", "--appendfsync", "always"),
        )
        processes = [redis]
        try:
            until(redis, "Ready to accept")
            url = f"redis://127.0.0.1:{port}/0?job=j&lease_s={_LEASE_S}"
            for at, sign in zip(ports, ("master 1", "ready; "), strict=True):
                processes.append(
                    start(
                        *(sys.executable, "-m", "drivetrain_elastic.cli", "master"),
                        *("--journal", url, "--token-file", str(token)),
                        *("--address", f"127.0.0.1:{at}"),
                    )
                )
                until(processes[-1], sign)
            address = ",".join(f"127.0.0.1:{at}" for at in ports)
            with MasterClient(address, token.read_text()) as client:
                client.call("GetStatus", pb.StatusRequest())
                began_s = time.perf_counter()
                os.kill(processes[1].pid, number)
                while client.call("GetStatus", pb.StatusRequest()).incarnation != 2:
                    pass
                return time.perf_counter() - began_s
        finally:
            for process in processes:
                process.kill()
                process.communicate()


def start(*arguments):
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def until(process, sign):
    """Reads what a process says until it says what is waited for."""
    while sign not in process.stdout.readline():
        assert process.poll() is None


def free_ports(num):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(num)]
    ports = [str(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


if __name__ == "__main__":
    print(failover(False).figure)
