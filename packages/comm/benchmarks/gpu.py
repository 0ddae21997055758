"""What a tuned group costs where it has nothing to tune: DDP on a single GPU."""

import os
import statistics
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from drivetrain_comm import TunedProcessGroupFactory
from drivetrain_core.services import (
    TorchProcessGroupFactory,
    destroy_process_group,
    init_process_group,
)
from drivetrain_testing import Row

_ABSENT = Row(figure="-", holds=None, proven_on="-", needs_gpu=True)
_NUM_STEPS, _NUM_ROUNDS = 30, 5


def step_s(factory):
    """The median time of a step over a group that a factory makes."""
    init_process_group(factory)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(2048, 2048) for _ in range(12)]
    model = torch.nn.Sequential(*layers).cuda()
    ddp = DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    x = torch.randn(256, 2048, device="cuda")
    times = []
    for _ in range(_NUM_STEPS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        ddp(x).square().mean().backward()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    dist.barrier()
    destroy_process_group()
    return statistics.median(times[5:])


def overhead(quick):
    """Stock NCCL and a tuned group over it, in turns."""
    if not torch.cuda.is_available():
        return _ABSENT
    os.environ.setdefault("LOCAL_RANK", "0")
    stock, tuned = [], []
    turns = [(stock, TorchProcessGroupFactory), (tuned, TunedProcessGroupFactory)]
    step_s(TorchProcessGroupFactory())  # the first group of a process is slower
    for _ in range(2 if quick else _NUM_ROUNDS):
        for times, factory in turns:
            times.append(step_s(factory()))
        turns.reverse()
    ratio = statistics.median(tuned) / statistics.median(stock)
    return Row(
        figure=f"{ratio - 1:+.2%} of {1e3 * statistics.median(stock):.2f} ms",
        holds=ratio <= 1.01,
        proven_on=torch.cuda.get_device_name(),
    )


if __name__ == "__main__":
    print(overhead(False))
