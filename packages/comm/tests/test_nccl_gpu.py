"""On a GPU NCCL itself loads the plug-in, which says which table it follows."""

import os
import subprocess
import sys

import pytest
import torch

from drivetrain_comm.nccl import environment_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

TABLE = """drivetrain-nccl-table 1
all_reduce  0B..64KiB  *  *  ring  ll
"""
PROGRAM = """
import torch
import torch.distributed as dist

torch.cuda.set_device(0)
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(8, device="cuda")
dist.all_reduce(x)
assert x.tolist() == [1.0] * 8
dist.destroy_process_group()
"""


def test_nccl_loads_the_tuner_of_a_table(tmp_path):
    table = tmp_path / "table"
    table.write_text(TABLE)
    told = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, **environment_of(table), **told},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = f"{table}: 1 of 1 rules are for 1 ranks on 1 nodes"
    assert told in done.stdout, done.stdout[-4000:]
