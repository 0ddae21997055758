"""What strangers cost a daemon: random bytes at each of its sockets, while a job saves."""

import contextlib
import gc
import json
import os
import random
import socket
import struct
import threading
import time
from pathlib import Path

import torch
from workload import new_place

from drivetrain_checkpoint import Checkpointer
from drivetrain_testing import Row

_MOST_MIB = 32
_NUM = 10_000
_AT_ONCE = 200
"""How many of the connections that say nothing are open together."""

_MEMORY_S = 5.0
_PATIENCE_S = 60.0


def strangers(quick):
    """10,000 connections of strangers: what the daemon grows by, and whom it serves."""
    num = _NUM // 10 if quick else _NUM
    with new_place() as place:
        checkpointer = Checkpointer(place.folder, job="strangers", memory_s=_MEMORY_S)
        state = {"w": torch.zeros(1000)}
        for step in range(5):
            checkpointer.save(step, state).wait()
        client = checkpointer._job.client
        pid = client.hello()["pid"]
        question = {"op": "listen", "host": "127.0.0.1", "secret": "nobody's"}
        addresses = [str(client._path), ("127.0.0.1", client.ask(question)["port"])]
        before, peak, longest_s, num_saves = _anonymous_mib(pid), 0.0, 0.0, 0
        crowd = threading.Thread(target=_crowd, args=(addresses, num), daemon=True)
        crowd.start()
        while crowd.is_alive():
            began = time.perf_counter()
            checkpointer.save(100 + num_saves, state).wait()
            longest_s = max(longest_s, time.perf_counter() - began)
            num_saves += 1
            peak = max(peak, _anonymous_mib(pid))
            crowd.join(0.02)
        is_same = client.hello()["pid"] == pid
        del checkpointer, client
        gc.collect()
        ends = _ends(pid)
    grown = peak - before
    return Row(
        figure=f"{num:,} connections: {grown:.1f} MiB, {num_saves} saves in between, the "
        f"longest {longest_s:.2f} s; it {'ends' if ends else 'lives on'}",
        holds=grown <= _MOST_MIB and num_saves > 0 and is_same and ends,
        details={"grown_mib": grown, "longest_s": longest_s, "num_saves": num_saves},
    )


def _crowd(addresses, num):
    """Connects again and again, says something odd or nothing, and stays for a while."""
    draw = random.Random(0)
    silent = []
    for number in range(num):
        address = addresses[number % 2]
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.settimeout(_PATIENCE_S)
        with contextlib.suppress(OSError):
            sock.connect(address)
            sock.sendall(_words(draw))
        silent.append(sock)
        if len(silent) > _AT_ONCE:
            silent.pop(0).close()
    for sock in silent:
        sock.close()


def _words(draw):
    """Returns what a stranger says."""
    text = draw.randbytes(draw.choice((0, 1, 5, 100, 60_000)))
    fields = {"op": draw.choice(("adopt", "claim", "fetch")), "rank": text.hex()[:20]}
    return draw.choice(
        (
            text,
            struct.pack("<I", len(text)) + text,
            struct.pack("<I", draw.getrandbits(32)) + text,
            struct.pack("<I", 4000) + text[:3000],
            _frame(b"[" * 4000),
            _frame(json.dumps(fields).encode()),
            b"",
        )
    )


def _frame(text):
    return struct.pack("<I", len(text)) + text


def _anonymous_mib(pid):
    """Returns the memory that is a process's own; that of saves is shared."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _ends(pid):
    """Returns whether a process ends, of itself."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False
