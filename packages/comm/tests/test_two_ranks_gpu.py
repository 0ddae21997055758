"""Two ranks share the only GPU there is, which NCCL allows from 2.30 on."""

import pytest
import torch
import torch.distributed as dist

from drivetrain_testing import run_ranks

NEEDS = (2, 30)
HERE = torch.cuda.nccl.version() if torch.cuda.is_available() else ()

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.skipif(
        HERE < NEEDS,
        reason=f"needs NCCL {'.'.join(map(str, NEEDS))}, here {'.'.join(map(str, HERE))}",
    ),
]


def reduce_and_gather(size):
    torch.cuda.set_device(0)
    group = dist.new_group(backend="nccl")
    rank = dist.get_rank()
    x = torch.full((size,), float(rank + 1), device="cuda")
    dist.all_reduce(x, group=group)
    found = torch.empty(2 * size, device="cuda")
    dist.all_gather_into_tensor(found, x * (rank + 1), group=group)
    dist.destroy_process_group(group)
    return float(x.sum()), float(found.sum())


@pytest.mark.parametrize("size", [8, 1 << 22])
def test_two_ranks_of_one_gpu_reduce_and_gather(size):
    both = run_ranks(reduce_and_gather, 2, size, timeout_s=120)
    assert both == [(3.0 * size, 9.0 * size)] * 2
