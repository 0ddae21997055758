"""Detached copies of sharded tensors; the others are in the examples of the class."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from drivetrain_checkpoint._save.detached_tensors import DetachedTensors
from drivetrain_testing import run_ranks


def copies_of_shards():
    mesh = init_device_mesh("cpu", (1,))
    sharded = DTensor.from_local(torch.ones(2, 3), mesh, [Shard(0)])
    first = DetachedTensors({}).renewed({"weight": sharded})
    assert first.renewed({"weight": sharded}) is first
    # The same memory, which is another part of another whole.
    whole = DTensor.from_local(sharded._local_tensor, mesh, [Replicate()])
    second = first.renewed({"weight": whole})
    assert second is not first
    assert second.copies["weight"].placements == (Replicate(),)
    elsewhere = DTensor.from_local(torch.ones(2, 3), mesh, [Replicate()])
    assert second.renewed({"weight": elsewhere}) is not second


def test_copies_of_sharded_tensors_are_renewed_where_their_layout_or_place_changes():
    run_ranks(copies_of_shards, 1)
