"""One rank that times schedules in turns on the engine; rank 0 prints medians as JSON.

Its arguments are a size in bytes and files of schedules.
"""

import json
import statistics
import sys
import time
import zlib
from pathlib import Path

import torch
import torch.distributed as dist

from drivetrain_comm import TunedProcessGroupFactory
from drivetrain_comm.backend import _native
from drivetrain_comm.compiler import Schedule
from drivetrain_core.services import destroy_process_group, init_process_group

_NUM_ROUNDS = 7
_SEGMENT_BYTES = 128 << 10


def main():
    size = int(sys.argv[1])
    texts = [Path(name).read_text() for name in sys.argv[2:]]
    schedules = [Schedule.from_json(text) for text in texts]
    group = init_process_group(TunedProcessGroupFactory("gloo"))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    programs = [
        _native.make_program(list(s.programs[rank]), s.num_chunks, world_size)
        for s in schedules
    ]
    seconds = [[] for _ in schedules]
    right = True
    for turn in range(_NUM_ROUNDS + 2):
        for at, program in enumerate(programs):
            vector = torch.full((size // 4,), float(rank + 1))
            plan = zlib.crc32(texts[at].encode())
            dist.barrier()
            start = time.perf_counter()
            group.transport.run(
                program, plan, [vector], "SUM", 1, _SEGMENT_BYTES, 60.0
            ).finish()
            mine = torch.tensor([time.perf_counter() - start])
            dist.all_reduce(mine, op=dist.ReduceOp.MAX)
            whole = world_size * (world_size + 1) / 2
            right = right and bool((vector == whole).all())
            if turn >= 2:
                seconds[at].append(mine.item())
    said = [None] * world_size
    dist.all_gather_object(said, right)
    if rank == 0:
        medians = [statistics.median(each) for each in seconds]
        print(json.dumps({"seconds": medians, "right": all(said)}), flush=True)
    destroy_process_group()


if __name__ == "__main__":
    main()
