"""Worlds of ranks with simulated devices, one after the other in the same processes."""

import itertools
import os

import torch
import torch.distributed as dist

from drivetrain_comm import _enable

_worlds = itertools.count()


def started(settings):
    """Starts this rank, and returns its number; settings of None mean stock DDP."""
    _enable.disable()
    if settings is not None:
        _enable.enable(cache=False, **settings)
    # What ranks tell each other in one world must not be mixed up with another's.
    place = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )
    rank = int(os.environ["RANK"])
    dist.init_process_group(
        "cpu:gloo,sim:simccl",
        store=dist.PrefixStore(str(next(_worlds)), place),
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    torch.accelerator.set_device_index(rank)
    return rank
