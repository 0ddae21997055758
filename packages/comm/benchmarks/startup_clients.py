"""Many simulated ranks in a few processes, each with a connection and its program."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import time
from datetime import timedelta

import torch.distributed as dist

from drivetrain_comm.stores import RedisStore
from drivetrain_comm.stores import _scripts as scripts

_TIMEOUT = timedelta(minutes=10)
_LEASE_MS = 600_000


class TcpClient:
    """A rank with a client of a `TCPStore`."""

    def __init__(self, where, rank, world_size):
        self.store = dist.TCPStore(
            *where, is_master=False, wait_for_workers=False, timeout=_TIMEOUT
        )
        self.store.add("init/", 1)  # as each rank does that does not hold the store
        self.num_extra = 1

    def arrive(self):
        """Has nothing to wait for: only rank 0 waits for all."""


class RedisClient:
    """A rank with a `RedisStore`, which it joins as `init_process_group` does."""

    def __init__(self, where, rank, world_size):
        self.store = RedisStore(where, rank=rank, timeout=_TIMEOUT)
        client = self.store.client
        ask = (client.ttl_ms, rank, world_size, str(rank), _LEASE_MS)
        self.start = int(client.script(scripts.JOIN, "join", *ask))
        # The greeting, the joining and the wait for all.
        self.num_extra = 3

    def arrive(self):
        client = self.store.client
        self.store.wait([f"{self.start}/complete"])
        client.enter(f"{client.data}:{self.start}")


def simulate(make, where, world_size, program, num_processes=2):
    """Returns the seconds until the last rank is through, and the operations of all.

    Args:
        make: `TcpClient` or `RedisClient`.
        where: What it connects to.
        world_size: The number of ranks.
        program: Given a rank, returns its phases.
        num_processes: Among how many processes the ranks are divided.
    """
    context = mp.get_context("spawn")
    ready, results = context.Barrier(num_processes + 1), context.Queue()
    parts = [range(i, world_size, num_processes) for i in range(num_processes)]
    processes = [
        context.Process(
            target=_run,
            args=(make, where, world_size, program, part, ready, results),
            daemon=True,
        )
        for part in parts
    ]
    for process in processes:
        process.start()
    ready.wait(300)
    started = time.perf_counter()
    found = [results.get(timeout=600) for _ in processes]
    seconds = time.perf_counter() - started
    for process in processes:
        process.join()
    errors = [error for _, error in found if error]
    if errors:
        raise RuntimeError(errors[0])
    return seconds, sum(count for count, _ in found)


def _run(make, where, world_size, program, ranks, ready, results):
    programs = {rank: program(rank) for rank in ranks}
    num_phases = max(len(phases) for phases in programs.values())
    with contextlib.suppress(ValueError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    ready.wait(300)
    try:
        clients = {rank: make(where, rank, world_size) for rank in ranks}
        count = sum(client.num_extra for client in clients.values())
        for client in clients.values():
            client.arrive()
        for number in range(num_phases):
            for rank, phases in programs.items():
                if number < len(phases):
                    count += _do(clients[rank].store, phases[number])
    except Exception as error:  # noqa: BLE001 (the parent raises it)
        results.put((0, repr(error)))
    else:
        results.put((count, ""))


def _do(store, operations):
    count = 0
    for name, key, size in operations:
        count += 1
        if name == "set":
            store.set(key, "x" * size)
        elif name == "compare_set":
            store.compare_set(key, "", "x" * size)
        elif name == "wait":
            store.wait([key])
        elif name == "get":
            store.get(key)
        else:
            assert name == "arrive", name
            # torch adds 1, then reads by adding 0; the last one lets all go.
            store.add(key, 1)
            count += 1
            if store.add(key, 0) == size:
                store.set(f"{key}:last_worker", "1")
                count += 1
    return count
