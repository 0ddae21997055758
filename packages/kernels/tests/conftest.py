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
