"""200 steps of a training that learns: the losses of stock DDP, and those over the engine.

Four ranks on two hosts; the tuner tries and commits meanwhile.
"""

import argparse
import json
import os
import sys
import time

from drivetrain_testing import Row, run_ranks

_NUM_STEPS = 200
_BOUNDS = {"float64": 1e-9, "float32": 1e-3}


def losses(quick):
    """The claim: the same sums but for the order of additions, over a whole training."""
    names = ["float64"] if quick else _BOUNDS
    found = {name: compare(name, 60 if quick else _NUM_STEPS) for name in names}
    shown = [
        f"{name} {one['difference']:.1e} relative, loss {one['first']:.2g} to "
        f"{one['last']:.2g}"
        for name, one in found.items()
    ]
    holds = all(
        one["difference"] <= _BOUNDS[name]
        and one["ranks_agree"]
        and one["last"] < one["first"] / 2
        for name, one in found.items()
    )
    return Row(
        figure="; ".join(shown), holds=holds, proven_on="cpu-gloo", details=found
    )


def compare(dtype, num_steps):
    """Returns the largest relative difference of a loss, and how well it learned."""
    runs = [
        run_ranks(train, 4, is_tuned, dtype, num_steps, process_group=False)
        for is_tuned in (False, True)
    ]
    stock, tuned = ([losses for losses, _ in run] for run in runs)
    pairs = [
        (one, other)
        for ours, theirs in zip(tuned, stock, strict=True)
        for one, other in zip(ours, theirs, strict=True)
    ]
    return {
        "difference": max(abs(one - other) / abs(other) for one, other in pairs),
        "ranks_agree": len({state for _, state in runs[1]}) == 1,
        "first": tuned[0][0],
        "last": tuned[0][-1],
    }


def train(is_tuned, dtype, num_steps):
    """Learns a smooth function; returns the losses and a digest of the parameters."""
    import hashlib

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import drivetrain_comm

    rank = int(os.environ["RANK"])
    os.environ["DRIVETRAIN_COMM_HOST"] = str(rank // 2)
    if is_tuned:
        drivetrain_comm.enable(cache=False)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 256), torch.nn.Tanh(), torch.nn.Linear(256, 256)]
    model = torch.nn.Sequential(*layers, torch.nn.Tanh(), torch.nn.Linear(256, 1))
    ddp = DistributedDataParallel(model.to(getattr(torch, dtype)))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.003, momentum=0.9)
    data = torch.Generator().manual_seed(1 + rank)
    found = []
    for _ in range(num_steps):
        x = torch.rand(64, 8, generator=data, dtype=torch.float64).to(
            getattr(torch, dtype)
        )
        wanted = torch.sin(3 * x).sum(1, keepdim=True)
        loss = (ddp(x) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    dist.barrier()
    dist.destroy_process_group()
    # A thread of Gloo may free a tensor yet, and needs the GIL for it.
    time.sleep(0.1)
    return found, digest.hexdigest()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--quick", action="store_true", help="sixty steps, in float64 only"
    )
    row = losses(parser.parse_args().quick)
    print(row.figure)
    print(json.dumps(row.details, indent=2))
    sys.exit(not row.holds)
