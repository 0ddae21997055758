"""Nothing that a test enables outlives it."""

import os

import pytest
import torch

from drivetrain_comm._enable import disable


@pytest.fixture(autouse=True)
def as_before(monkeypatch, tmp_path_factory):
    """Restores torch's functions, and hides the user's settings."""
    monkeypatch.setenv("DRIVETRAIN_COMM_CACHE", str(tmp_path_factory.mktemp("cache")))
    for name in list(os.environ):
        if name.startswith("DRIVETRAIN_COMM_") and not name.endswith("_CACHE"):
            monkeypatch.delenv(name)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)
    disable()
