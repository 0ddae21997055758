"""Overlapped tensor parallel over the tuned process group."""

import pytest
import torch
import torch.distributed as dist

from drivetrain_parallel.overlap import (
    all_gather_matmul,
    matmul_reduce_scatter,
)
from drivetrain_testing import run_ranks


def leaf(*shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64) / 3
    return x.to(dtype).requires_grad_()


def tuned():
    from drivetrain_comm import TunedProcessGroup, enable

    enable(algorithm="ring")
    dist.init_process_group("gloo")
    assert isinstance(dist.group.WORLD, TunedProcessGroup)
    x = leaf(4, 8, dtype=torch.float32, seed=dist.get_rank())
    gathered = all_gather_matmul(x, torch.eye(8))
    matmul_reduce_scatter(gathered, torch.eye(8)).sum().backward()
    assert torch.equal(x.grad, torch.full((4, 8), 2.0))


@pytest.mark.slow
def test_tuned_groups_carry_it():
    run_ranks(tuned, 2, process_group=False)
