"""Saves beside the training, by torch's own process and with this package's stager."""

import dataclasses
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.tensor import Shard, distribute_tensor

from drivetrain_checkpoint import list_checkpoints
from drivetrain_checkpoint.dcp import Reader, Stager, Writer
from drivetrain_testing import run_ranks

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@dataclasses.dataclass(frozen=True)
class Statistics:
    mean: torch.Tensor
    names: list


def stagers():
    warnings.simplefilter("ignore")
    options = StagingOptions(use_pinned_memory=False, use_non_blocking_copy=False)
    options.use_async_staging = False
    return {"torch": DefaultStager(options), "here": Stager()}


@pytest.mark.parametrize("which", ["torch", "here"])
def test_staged_state_is_one_of_its_own(which):
    base = torch.arange(12.0).view(3, 4)
    tensors = {
        "base": base,
        "flat": base.view(12),
        "column": base[:, 1],
        "part": base[1:, 2:],
        "turned": base.t(),
        "scalar": torch.tensor(7),
        "empty": torch.empty(0, 3, dtype=torch.bfloat16),
    }
    for dtype in (torch.float64, torch.int8, torch.bool, torch.complex64):
        tensors[str(dtype)] = torch.ones(2, dtype=dtype)
    state = {
        "tensors": tensors,
        "list": [1, (base, "text")],
        "object": Statistics(base[0], ["a"]),
        "parameter": nn.Parameter(torch.ones(2)),
    }
    expected = {name: tensor.clone() for name, tensor in tensors.items()}
    staged = stagers()[which].stage(state)
    for tensor in tensors.values():
        tensor.zero_()
    state["object"].names.append("b")
    for name, tensor in expected.items():
        found = staged["tensors"][name]
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found, tensor), name
    assert staged["list"][0] == 1
    assert torch.equal(staged["list"][1][0], expected["base"])
    assert staged["object"].names == ["a"]
    assert torch.equal(staged["object"].mean, expected["base"][0])
    assert staged["parameter"].tolist() == [1, 1]


def save_in_the_process(folder):
    """One save is refused there; the ones before and after it are not."""
    warnings.simplefilter("ignore")
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    state = {
        "w": distribute_tensor(torch.zeros(6, 4), mesh, [Shard(0)]),
        "seen": 0,
    }
    writer = Writer(folder, job="process")
    said = ""
    for step in range(3):
        state["w"].to_local().fill_(step)
        state["seen"] = step
        odd = {"odd": torch.ones(2, dtype=torch.float8_e4m3fnuz)} if step == 1 else {}
        future = dcp.async_save(
            state | odd,
            storage_writer=writer,
            checkpoint_id=f"step-{step}",
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
        )
        state["w"].to_local().fill_(-1)
        try:
            future.result(timeout=60)
        except CheckpointException as error:
            said = str(error)
    return said


@pytest.mark.slow
@pytest.mark.parametrize("env", [{}, {"DCP_USE_PREFIX_STORE": "1"}], ids=["", "store"])
def test_process_that_refused_a_save_goes_on(tmp_path, env):
    for said in run_ranks(save_in_the_process, 2, str(tmp_path), env=env):
        assert "float8_e4m3fnuz" in said
    assert [info.step for info in list_checkpoints(tmp_path)] == [0, 2]
    into = {"w": torch.zeros(6, 4), "seen": -1}
    dcp.load(into, storage_reader=Reader(tmp_path))
    assert (into["w"] == 2).all()
    assert into["seen"] == 2
