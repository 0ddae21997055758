"""On a GPU a tuned group hands everything on to NCCL."""

import pytest
import torch
import torch.distributed as dist

from drivetrain_comm import TunedProcessGroupFactory
from drivetrain_core.services import destroy_process_group, init_process_group

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def test_ddp_on_one_gpu_steps():
    init_process_group(TunedProcessGroupFactory())
    model = torch.nn.Linear(64, 64).cuda()
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for _ in range(3):
        ddp(torch.ones(4, 64, device="cuda")).square().mean().backward()
        optimizer.step()
    x = torch.ones(3, device="cuda")
    dist.all_reduce(x)
    assert x.tolist() == [1, 1, 1]
    assert not torch.equal(model.weight, before)
    destroy_process_group()
