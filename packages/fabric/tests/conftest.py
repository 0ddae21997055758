"""What several files of tests share."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Runs torch on one thread: ranks share the cores."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)
