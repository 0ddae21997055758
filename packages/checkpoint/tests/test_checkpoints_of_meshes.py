"""A program over a mesh is saved with its parts, and restored on any other mesh."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from drivetrain_checkpoint import Checkpointer
from drivetrain_checkpoint._layout.tensor_layout import (
    Layout,
    Mesh,
    TensorLayout,
    size_of,
)
from drivetrain_checkpoint._save.joined_tensor import has_partial_entries
from drivetrain_checkpoint._save.remote_shard import RemoteShard
from drivetrain_core import CheckpointError
from drivetrain_core.services.chunked_tensor import Chunk, ChunkedTensor
from drivetrain_core.services.state_entry import StateEntry
from drivetrain_testing import run_ranks


class Tensors(StateEntry):
    """Some tensors by name, of which a rank may have parts."""

    kind = "model"

    def __init__(self, tensors):
        self.tensors = tensors

    def pack(self, key, state):
        tensors = {f"{key}.{name}": t for name, t in self.tensors.items()}
        entry = {
            "kind": self.kind,
            "plain": ["dict", []],
            "tensors": list(tensors),
            "is_partial": True,
        }
        return entry, tensors

    def plan(self, key, into, plan, entry, specs, saved):
        targets = {f"{key}.{name}": t for name, t in self.tensors.items()}
        missing = [name for name in targets if name not in saved]
        plan.mismatches += [f"{name!r} is not in the checkpoint" for name in missing]
        plan.targets.append(lambda: targets)


def fused(values):
    """The whole of a fused matrix: three sections of 8, 4 and 4 rows."""
    return torch.arange(values, values + 16 * 6.0).view(16, 6)


SECTIONS = (8, 4, 4)


def sections(whole, mesh, placements):
    """The matrix as tensor parallelism has it: each section is shared by itself."""
    chunks, at = [], 0
    for size in SECTIONS:
        part = whole[at : at + size].clone()
        tensor = distribute_tensor(part, mesh, placements, src_data_rank=None)
        chunks.append(Chunk(offset=(at, 0), tensor=tensor))
        at += size
    return ChunkedTensor((16, 6), chunks)


def _save(folder):
    """Each of two stages has a matrix, shared by two ranks."""
    rank = torch.distributed.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pipeline", "tensor"))
    stage, axis = rank // 2, mesh["tensor"]
    own = {
        f"stage{stage}": sections(fused(100.0 * stage), axis, [Shard(0)]),
        "bias": ChunkedTensor(
            (3,),
            [Chunk(offset=(0,), tensor=torch.ones(3) * 5, writes=stage == 0)],
        ),
    }
    checkpointer = Checkpointer(folder, job="mesh")
    checkpointer.save(4, {"model": Tensors(own), "position": 9}).wait()
    checkpointer.save(5, {"model": Tensors(own), "position": rank}, under="own").wait()
    into = {"position": -1}
    assert checkpointer.restore(into, under="own") == 5
    assert into == {"position": rank}
    torch.distributed.barrier()
    if rank == 0:
        checkpointer.stop_daemon()


def _restore(folder):
    """All of it lies on one mesh of two ranks, split along columns."""
    mesh = init_device_mesh("cpu", (2,))
    into = {
        "stage0": sections(torch.zeros(16, 6), mesh, [Shard(1)]),
        "stage1": sections(torch.zeros(16, 6), mesh, [Replicate()]),
        "bias": ChunkedTensor((3,), [Chunk(offset=(0,), tensor=torch.zeros(3))]),
    }
    state = {"model": Tensors(into), "position": 0}
    checkpointer = Checkpointer(folder, job="other", adopt=True)
    step = checkpointer.restore(state)
    for stage in range(2):
        for offset, local in into[f"stage{stage}"].local_chunks():
            where = tuple(
                slice(o, o + n) for o, n in zip(offset, local.shape, strict=True)
            )
            assert torch.equal(local, fused(100.0 * stage)[where])
    assert into["bias"].chunks[0].tensor.tolist() == [5.0] * 3
    with pytest.raises(
        CheckpointError, match=r"'model\.more' is not in the checkpoint"
    ):
        checkpointer.restore({"model": Tensors({**into, "more": into["bias"]})})
    torch.distributed.barrier()
    if torch.distributed.get_rank() == 0:
        checkpointer.stop_daemon()
    return step, state["position"]


@pytest.mark.faults
def test_a_fused_matrix_on_two_stages_is_restored_on_one_mesh(tmp_path):
    run_ranks(_save, 4, tmp_path, timeout_s=120)
    assert run_ranks(_restore, 2, tmp_path, timeout_s=120) == [(4, 9)] * 2
    model = nn.Module()
    model.stage0 = nn.Parameter(torch.zeros(16, 6))
    model.stage1 = nn.Parameter(torch.zeros(16, 6))
    model.bias = nn.Parameter(torch.zeros(3))
    checkpointer = Checkpointer(tmp_path, job="alone", adopt=True)
    checkpointer.restore({"model": model})
    assert torch.equal(model.stage0, fused(0.0))
    assert torch.equal(model.stage1, fused(100.0))
    checkpointer.stop_daemon()


@pytest.mark.parametrize(
    "placements",
    [("S0:8,4,4",), ("S0/2:8,4,4", "S0:8,4,4"), ("S1", "S0:8,4,4"), ("R", "S0:7,6,3")],
)
def test_sections_are_covered_once_and_found_by_whoever_asks(placements):
    shape = (2,) * len(placements)
    ranks = tuple(range(2 ** len(placements)))
    tensor = TensorLayout("w", "F32", (16, 6), 0, placements, 0)
    layout = Layout((Mesh(shape, ranks),), (tensor,))
    seen = torch.zeros(16, 6)
    for rank in ranks:
        block = layout.block(tensor, rank)
        if block is not None:
            rows = [r for at, n in block[0] for r in range(at, at + n)]
            columns = [c for at, n in block[1] for c in range(at, at + n)]
            seen[torch.tensor(rows)[:, None], torch.tensor(columns)] += 1
    assert bool((seen == 1).all())
    wanted = (((3, 6), (12, 2)), ((1, 3),))
    found = sum(
        size_of(
            tuple(
                tuple(
                    (max(a, b), min(a + n, b + m) - max(a, b))
                    for a, n in ours
                    for b, m in theirs
                    if max(a, b) < min(a + n, b + m)
                )
                for ours, theirs in zip(block, wanted, strict=True)
            )
        )
        for _, block in layout.savers(tensor, wanted)
    )
    assert found == 8 * 3
    assert Layout.from_plain(layout.to_plain()) == layout


def test_a_state_without_parts_asks_no_other_rank():
    assert not has_partial_entries({"model": nn.Linear(2, 2), "position": 3})
    assert not has_partial_entries(7)
    assert has_partial_entries({"model": Tensors({})})


def test_a_remote_shard_cannot_be_changed():
    joined = RemoteShard(torch.float32, (3,), Mesh((1,), (0,)), ())
    with pytest.raises(dataclasses.FrozenInstanceError):
        joined.shape = (4,)
    assert joined.numel() == 3
