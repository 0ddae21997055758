"""One rank that measures all-reduces in turns; rank 0 prints the medians as JSON.

Its argument is a JSON list of cases: an algorithm, a number of streams, a size in bytes.
"""

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist

from drivetrain_comm import Choice, TunedProcessGroupFactory
from drivetrain_core.services import destroy_process_group, init_process_group

_NUM_ROUNDS = 7


def main():
    cases = json.loads(sys.argv[1])
    group = init_process_group(TunedProcessGroupFactory("gloo"))
    seconds = [[] for _ in cases]
    for turn in range(_NUM_ROUNDS + 2):
        for at, (algorithm, num_streams, size) in enumerate(cases):
            # Not zeros, whose memory the kernel would only make when it is written.
            vector = torch.ones(size // 4)
            dist.barrier()
            start = time.perf_counter()
            if algorithm == "stock":
                group.inner.allreduce([vector]).wait()
            else:
                choice = Choice(algorithm=algorithm, num_streams=num_streams)
                group.reduce_pieces([vector], "SUM", choice).finish()
            mine = torch.tensor([time.perf_counter() - start])
            dist.all_reduce(mine, op=dist.ReduceOp.MAX)
            if turn >= 2:
                seconds[at].append(mine.item())
    if dist.get_rank() == 0:
        print(json.dumps([statistics.median(each) for each in seconds]), flush=True)
    destroy_process_group()


if __name__ == "__main__":
    main()
