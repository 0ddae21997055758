"""Masters for tests, and no settings of the user's."""

import os

import pytest

from drivetrain_elastic import Master, ShardClient


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in list(os.environ):
        if name.startswith("DRIVETRAIN_ELASTIC_"):
            monkeypatch.delenv(name)


@pytest.fixture
def job(tmp_path):
    """Starts masters of one journal, at one address with one token."""
    masters = []

    def start(**options):
        if masters:
            first = masters[0]
            options = {"address": first.address, "token": first.token, **options}
        masters.append(Master(tmp_path / "job.db", **options))
        return masters[-1]

    yield start
    for master in masters:
        master.stop()


@pytest.fixture
def client(job):
    """Makes shard clients of a master that is started when it is needed."""
    clients, masters = [], []

    def make(name="d", num=20, **options):
        master = options.pop("master", None)
        if master is None:
            if not masters:
                masters.append(job())
            master = masters[0]
        options = {"shard_size": 4, "shuffle": "none", **options}
        clients.append(
            ShardClient(
                name, num, address=master.address, token=master.token, **options
            )
        )
        return clients[-1]

    yield make
    for one in clients:
        one.close()


def pytest_collection_modifyitems(config, items):
    """Leaves the long forms out unless `-m` asks for them."""
    if "faults" in (config.getoption("markexpr", default="") or ""):
        return
    long = [item for item in items if item.get_closest_marker("faults")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
