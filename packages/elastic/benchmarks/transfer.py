"""A gigabyte of state from one rank to another, beside the bytes alone."""

import socket
import statistics
import time

import torch
import torch.distributed as dist

from drivetrain_elastic._training._state_transfer import give_state, take_state
from drivetrain_testing import Row, run_ranks

_PART_BYTES = 8 << 20


def transfer(quick):
    """Takes turns: the state between two processes, and as many bytes over loopback."""
    num_bytes = (1 << 28) if quick else (1 << 30)
    rounds = 2 if quick else 5
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(max(run_ranks(state, 2, num_bytes, timeout_s=300)))
        theirs.append(max(run_ranks(loopback, 2, num_bytes, timeout_s=300)))
    ratio = statistics.median(ours) / statistics.median(theirs)
    return Row(
        figure=f"{statistics.median(ours):.2f} s for {num_bytes / 1e9:.2f} GB with "
        f"checksums, {ratio:.2f} x loopback's {statistics.median(theirs):.2f} s",
        holds=ratio <= 1.5,
        proven_on="cpu-gloo",
        details={"ours": ours, "loopback": theirs},
    )


def make(num_bytes):
    model = torch.nn.ParameterList(
        torch.full((num_bytes // 32 // 4,), float(at)) for at in range(32)
    )
    return {"model": model}


def state(num_bytes):
    group, rank = dist.group.WORLD, dist.get_rank()
    into = make(num_bytes)
    dist.barrier()
    began_s = time.perf_counter()
    if rank == 0:
        give_state(group, 1, into)
    else:
        take_state(group, 0, into)
    return time.perf_counter() - began_s


def loopback(num_bytes):
    """The same number of bytes, all of them others, from memory to memory."""
    rank, buffer = dist.get_rank(), bytearray(num_bytes)
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as server:
            store.set("port", str(server.getsockname()[1]))
            line, _ = server.accept()
    else:
        line = socket.create_connection(("127.0.0.1", int(store.get("port"))))
    memory = memoryview(buffer)
    for at in range(0, num_bytes, 4096):
        memory[at] = 1
    dist.barrier()
    began_s = time.perf_counter()
    with line:
        at = 0
        while at < num_bytes:
            part = memory[at : at + _PART_BYTES]
            if rank == 0:
                line.sendall(part)
            at += len(part) if rank == 0 else line.recv_into(part)
    return time.perf_counter() - began_s
