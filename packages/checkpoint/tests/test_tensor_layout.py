"""The formula of who holds what agrees with torch, and finds every saver."""

import math
import random

import pytest
import torch
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Replicate, Shard, _StridedShard

from drivetrain_checkpoint import CorruptCheckpointError
from drivetrain_checkpoint._layout.tensor_layout import (
    Layout,
    Mesh,
    TensorLayout,
    intersect,
)


def drawn(seed):
    """A layout of one tensor, torch's placements, and a block that somebody wants."""
    draw = random.Random(seed)
    shape = tuple(draw.randint(1, 13) for _ in range(draw.randint(1, 3)))
    grid = tuple(draw.randint(1, 4) for _ in range(draw.randint(1, 3)))
    names, placements = [], []
    for _ in grid:
        dim, factor = draw.randrange(len(shape)), draw.randint(2, 3)
        kinds = {
            "R": Replicate(),
            f"S{dim}": Shard(dim),
            f"S{dim}/{factor}": _StridedShard(dim, split_factor=factor),
        }
        name = draw.choice(list(kinds))
        names.append(name)
        placements.append(kinds[name])
    copies = math.prod(n for n, name in zip(grid, names, strict=True) if name == "R")
    mesh = Mesh(grid, tuple(range(math.prod(grid))))
    tensor = TensorLayout("x", "F32", shape, 0, tuple(names), draw.randrange(copies))
    starts = [draw.randrange(size) for size in shape]
    wanted = tuple(
        ((start, draw.randint(1, size - start)),)
        for start, size in zip(starts, shape, strict=True)
    )
    return Layout((mesh,), (tensor,)), tensor, placements, wanted


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_formula_is_that_of_torch_and_every_element_is_saved_once(first):
    for seed in range(first, first + 50):
        layout, tensor, placements, wanted = drawn(seed)
        mesh = layout.meshes[0]
        count = torch.zeros(tensor.shape)
        blocks = {rank: layout.block(tensor, rank) for rank in mesh.ranks}
        for rank, block in blocks.items():
            if block is None:
                continue
            shape, _ = _compute_local_shape_and_global_offset(
                tensor.shape, mesh.shape, list(mesh.coordinate(rank)), placements
            )
            assert tuple(sum(n for _, n in ranges) for ranges in block) == tuple(shape)
            places = [
                torch.cat([torch.arange(at, at + n) for at, n in ranges])
                for ranges in block
            ]
            count[torch.meshgrid(*places, indexing="ij")] += 1
        assert (count == 1).all(), seed
        savers = dict(layout.savers(tensor, wanted))
        assert savers == {
            rank: block
            for rank, block in blocks.items()
            if block is not None and list(intersect(wanted, block))
        }, seed


def test_layout_comes_back_from_plain_data():
    layout, *_ = drawn(3)
    assert Layout.from_plain(layout.to_plain()) == layout
    with pytest.raises(CorruptCheckpointError, match="has no layout of tensors"):
        Layout.from_plain({"meshes": [], "tensors": [["x"]]})
