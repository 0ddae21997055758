"""Random tensors on several streams under memory pressure: what was written is read."""

import json
import random
import sys

import torch

import drivetrain_memory

STREAMS = 4
MIB = 2**20


def main():
    operations = int(sys.argv[1])
    drivetrain_memory.enable(headroom=0.0, capacity_bytes=4 << 30)
    torch.cuda.init()
    streams = [torch.cuda.Stream() for _ in range(STREAMS)]
    draw = random.Random(5)
    wrong = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in streams]
    # How many tensors had a wrong byte: their sum would need eight bytes for each.
    torch.cuda.synchronize()
    held = []
    total = 0
    for number in range(operations):
        while held and (total > 3400 * MIB or draw.random() < 0.45):
            tensor, value, stream, size = held.pop(draw.randrange(len(held)))
            reader = draw.randrange(STREAMS)
            user = streams[reader]
            with torch.cuda.stream(user):
                user.wait_stream(stream)
                wrong[reader].add_((tensor != value).any())
                tensor.record_stream(user)
            del tensor
            total -= size
        size = int(MIB * 2 ** draw.uniform(-4, 7))
        stream = draw.choice(streams)
        with torch.cuda.stream(stream):
            tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
            tensor.fill_(number % 251)
        held.append((tensor, number % 251, stream, size))
        total += size
    torch.cuda.synchronize()
    stats = drivetrain_memory.stats()
    print(
        json.dumps(
            {
                "operations": operations,
                "wrong": sum(map(int, wrong)),
                "streams": STREAMS,
                "stolen": stats.stolen,
                "stream_waits": stats.stream_waits,
                "host_waits": stats.host_waits,
            }
        )
    )


if __name__ == "__main__":
    main()
