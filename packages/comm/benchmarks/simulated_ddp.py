"""DDP on two simulated accelerators, stock and tuned, in turns.

The device's collectives take a time for each call and for each byte, its ops a time each,
all asleep: what is measured is how much of one lies under the other. It needs the
simulated accelerator (`python -m drivetrain_simulated_accelerator build`).
"""

import os
import statistics
import time
from importlib.util import find_spec

from drivetrain_testing import Row, run_ranks

_DELAYS = (
    "devices=2,op_delay_us=1500,collective_delay_us=300,collective_us_per_mib=9000"
)
_NUM_LAYERS, _WIDTH = 12, 512
_NUM_SEARCH, _NUM_STEPS, _NUM_TURNS = 30, 6, 5


def simulated_ddp(quick):
    """The claim: faster than stock where communication can be hidden, without a GPU."""
    if find_spec("drivetrain_simulated_accelerator") is None:
        return Row(figure="the simulated accelerator is not installed", holds=None)
    before = os.environ.get("SIMULATED_ACCELERATOR")
    os.environ["SIMULATED_ACCELERATOR"] = _DELAYS
    try:
        num_turns = 2 if quick else _NUM_TURNS
        found = run_ranks(trained, 2, num_turns, process_group=False, timeout_s=300)
    finally:
        del os.environ["SIMULATED_ACCELERATOR"]
        if before is not None:
            os.environ["SIMULATED_ACCELERATOR"] = before
    stock, tuned, plan, is_equal = found[0]
    gain = statistics.median(stock) / statistics.median(tuned)
    return Row(
        figure=f"{gain:.2f} x stock ({1e3 * statistics.median(stock):.0f} to "
        f"{1e3 * statistics.median(tuned):.0f} ms a step; {plan}), parameters "
        f"{'equal to the bit' if is_equal else 'DIFFER'}",
        holds=gain >= 1.15 and all(one[-1] for one in found),
        proven_on="simulated-accelerator",
        details={"stock_s": stock, "tuned_s": tuned},
    )


def trained(num_turns):
    """Trains two copies of a model over two groups; returns the seconds of steps."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from drivetrain_comm import _enable

    backend = "cpu:gloo,sim:simccl"
    dist.init_process_group(backend)
    rank = dist.get_rank()
    torch.accelerator.set_device_index(rank)
    modules = []
    for is_tuned in (False, True):
        if is_tuned:
            _enable.enable(cache=False)
        group = dist.new_group(backend=backend)
        torch.manual_seed(0)
        layers = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(_NUM_LAYERS)]
        model = torch.nn.Sequential(*layers).to("sim")
        modules.append(DistributedDataParallel(model, process_group=group))
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-3) for m in modules]

    def step(at, number):
        generator = torch.Generator().manual_seed(2 * number + rank)
        x = torch.rand(4, _WIDTH, generator=generator).to("sim")
        torch.accelerator.synchronize()
        began = time.perf_counter()
        modules[at](x).square().mean().backward()
        torch.accelerator.synchronize()
        spent = time.perf_counter() - began
        optimizers[at].step()
        optimizers[at].zero_grad()
        return spent

    for at in (0, 1):
        for number in range(_NUM_SEARCH):
            step(at, number)
    times = [[], []]
    for turn in range(num_turns):
        for at in (0, 1) if turn % 2 == 0 else (1, 0):
            first = _NUM_SEARCH + turn * _NUM_STEPS
            times[at] += [step(at, first + i) for i in range(_NUM_STEPS)]
    plan = str(_enable._fusions[modules[1].reducer].tuner.plan)
    pairs = zip(modules[0].parameters(), modules[1].parameters(), strict=True)
    is_equal = all(torch.equal(one.cpu(), other.cpu()) for one, other in pairs)
    dist.barrier()
    dist.destroy_process_group()
    return *times, plan, is_equal


if __name__ == "__main__":
    print(simulated_ddp(False))
