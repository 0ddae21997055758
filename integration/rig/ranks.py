"""The ranks of one program on the nodes of a network."""

from __future__ import annotations

import os
import subprocess

_PORT = "29511"


def run_ranks(network, hosts, words, *, timeout_s):
    """Runs a program on each rank, and returns what rank 0 printed.

    Args:
        network: A `Network`.
        hosts: The ranks of each node, from the first one on.
        words: The command of the program.
        timeout_s: After which the ranks are killed.

    Raises:
        subprocess.TimeoutExpired: Rank 0 had not ended.
    """
    world_size = sum(map(len, hosts))
    ranks = []
    for host, members in enumerate(hosts):
        for local, rank in enumerate(members):
            env = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(world_size),
                "LOCAL_RANK": str(local),
                "MASTER_ADDR": network.address(0),
                "MASTER_PORT": _PORT,
                "GLOO_SOCKET_IFNAME": "eth0",
                "OMP_NUM_THREADS": "1",
            }
            out = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            ranks.append(network.start(host, words, env=env, stdout=out))
    try:
        return ranks[0].communicate(timeout=timeout_s)[0]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
