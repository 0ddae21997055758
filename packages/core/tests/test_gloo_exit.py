"""Exit with Gloo: work that its threads have not dropped yet does not abort a program."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

OURS = """
from drivetrain_core import init_process_group
group = init_process_group()
"""
FACTORY = """
from datetime import timedelta
from drivetrain_core.services import TorchProcessGroupFactory
limit = timedelta(seconds=60)
group = TorchProcessGroupFactory("gloo")(dist.HashStore(), 0, 1, limit)
"""
USERS = """
from drivetrain_core import accelerate
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
accelerate(
    torch.nn.Linear(2, 1),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    data=[(torch.ones(2, 2), torch.ones(2, 1))],
    loss=lambda output, batch: (output - batch[1]).square().mean(),
    strategy=[],
)
group = dist.group.WORLD
"""
# The thread is left waiting for the interpreter, with work that holds a Python object,
# as that of a backward pass does.
LEAVE_WORK = """
import ctypes
def stash(value):
    before = sys.getrefcount(value)
    torch._C._stash_obj_in_tls("context", value)
    if sys.getrefcount(value) == before:  # torch 2.11 takes a reference that is not its own
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
sys.setswitchinterval(1000)
stash(object())
work = group.allreduce([torch.ones(1 << 20)])
stash(None)
while not work.is_completed():
    pass
del work
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "begin", [OURS, FACTORY, USERS], ids=["ours", "of_a_factory", "the_users"]
)
def test_program_ends_well_with_work_that_gloo_has_not_dropped(begin):
    code = f"import sys, torch\nimport torch.distributed as dist\n{begin}{LEAVE_WORK}"
    for _ in range(3):  # without the wait, two of three end in SIGABRT
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
