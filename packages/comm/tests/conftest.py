"""Nothing that a test enables or starts outlives it."""

import os
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from drivetrain_comm._enable import disable
from drivetrain_comm.stores import RedisStore

# What several test files share lies beside them.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from redis_server import RedisServer

# They fill one table, which a second import, for doctests, would fill twice.
collect_ignore_glob = ["torch_*rows.py"]


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


@pytest.fixture(scope="module")
def server_of_a_file():
    with RedisServer() as server:
        yield server


@pytest.fixture
def shared_server(server_of_a_file):
    """One server for all tests of a file, empty for each."""
    import redis

    with redis.Redis(port=server_of_a_file.port) as client:
        client.flushall()
    return server_of_a_file


@pytest.fixture
def server():
    """One that a test may kill."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def opened(request):
    """Makes stores that are closed at the end."""
    stores = []

    def make(url, **options):
        options.setdefault("retry", timedelta(seconds=0.5))
        store = RedisStore(url, **options)
        stores.append(store)
        return store

    yield make
    for store in stores:
        store.close()


def pytest_collection_modifyitems(config, items):
    """Leaves out what is marked `faults`, unless `-m` asks for it."""
    if "faults" in (config.getoption("markexpr", default="") or ""):
        return
    long = [item for item in items if item.get_closest_marker("faults")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
