"""A training script as anybody writes it: DistributedDataParallel on Gloo, and SGD.

Every rank prints one line of JSON in the end: the seconds of each step, the losses, and
a checksum of the parameters.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from rig.models import make_model


def main():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", default="even")
    parser.add_argument("--compute-s", type=float, default=0.3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--bucket-cap-mb", type=float)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = make_model(arguments.model, arguments.compute_s)
    model = model.to(getattr(torch, arguments.dtype))
    ddp = DistributedDataParallel(model, bucket_cap_mb=arguments.bucket_cap_mb)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)

    data = torch.Generator().manual_seed(1000 + dist.get_rank())
    steps_s, losses = [], []
    dist.barrier()
    for _ in range(arguments.steps):
        start = time.perf_counter()
        batch = float(torch.rand((), generator=data))
        optimizer.zero_grad()
        loss = ddp(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        steps_s.append(time.perf_counter() - start)

    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    line = {"rank": dist.get_rank(), "steps_s": steps_s, "losses": losses}
    print(json.dumps({**line, "checksum": digest.hexdigest()}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
