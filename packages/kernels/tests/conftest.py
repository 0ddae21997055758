"""One thread for every test: waiting for a second one takes longer than the work."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

# What several test files share lies beside them.
sys.path.insert(0, str(Path(__file__).parent))
collect_ignore = [] if find_spec("transformers") else ["families.py"]


@pytest.fixture(autouse=True)
def restored():
    """Puts the number of threads and the random state back."""
    num_threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.set_num_threads(1)
        yield
    torch.set_num_threads(num_threads)


@pytest.fixture
def ranks_of_one(tmp_path):
    """A device mesh of this process alone."""
    from torch.distributed.device_mesh import init_device_mesh

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()
