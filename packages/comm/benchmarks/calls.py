"""What a small collective costs: the call, and until its end, beside Gloo's own."""

import statistics
import time

import torch
import torch.distributed as dist

import drivetrain_comm
from drivetrain_testing import Row, run_ranks

_MOST, _CALLS = 1.5, 200


def _block(group):
    """Returns the medians, in microseconds, of a call and of a call with its wait."""
    tensor, calls, wholes = torch.ones(64), [], []
    for _ in range(_CALLS):
        begin = time.perf_counter()
        work = dist.all_reduce(tensor, group=group, async_op=True)
        called = time.perf_counter()
        work.wait()
        wholes.append(1e6 * (time.perf_counter() - begin))
        calls.append(1e6 * (called - begin))
        tensor.fill_(1)
    return statistics.median(calls), statistics.median(wholes)


def _in_turns(num_turns):
    torch.set_num_threads(1)
    drivetrain_comm.register()
    ours, gloo = dist.new_group(backend="drivetrain"), dist.new_group(backend="gloo")
    _block(ours), _block(gloo)
    return [(_block(ours), _block(gloo)) for _ in range(num_turns)]


def calls(quick):
    """An all-reduce of 64 numbers over two processes of this machine."""
    turns = run_ranks(_in_turns, 2, 5 if quick else 25, timeout_s=300)[0]
    ratios = [one[1] / other[1] for one, other in turns]
    call, whole = (statistics.median(one[k] for one, _ in turns) for k in (0, 1))
    ratio = statistics.median(ratios)
    figure = f"{ratio:.2f} x ({call:.0f} us to begin, {whole:.0f} us in all)"
    return Row(figure=figure, holds=ratio <= _MOST, proven_on="cpu-gloo")
