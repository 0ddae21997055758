"""What several files of tests share."""

import sys
from pathlib import Path

import pytest
import torch

# What several test files share lies beside them.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def one_thread():
    """Runs torch on one thread: ranks share the cores."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)
