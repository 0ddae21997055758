"""What several files of tests share."""

import os
import sys
from pathlib import Path

import pytest
import torch

from drivetrain_comm import disable

# Modules that tests share lie beside them.
sys.path.insert(0, str(Path(__file__).parent))
# A script that is run, and imports what only its launcher can.
collect_ignore = ["horovod_story.py"]


@pytest.fixture(autouse=True)
def as_before(monkeypatch, tmp_path_factory):
    """Hides the user's settings, and undoes what a test enables."""
    for name in list(os.environ):
        if name.startswith(("DRIVETRAIN_COMM_", "DRIVETRAIN_ELASTIC_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("DRIVETRAIN_COMM_CACHE", str(tmp_path_factory.mktemp("cache")))
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)
    disable()
