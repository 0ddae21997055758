"""A double and its client; modules that tests share lie beside them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from double_samples import RawClient, clean_up, definition
from drivetrain_cluster_double import ClusterDouble


@pytest.fixture(scope="module")
def shared():
    """One double for a module, without nodes, that knows widgets."""
    with ClusterDouble(nodes=0, run="simulated", bookmark_s=0.05) as cluster:
        cluster.apply(definition())
        yield cluster


@pytest.fixture
def cluster(shared):
    """The double, left empty and without faults."""
    yield shared
    shared.faults.clear()
    shared.faults.hook = None
    clean_up(shared)


@pytest.fixture
def client(cluster):
    """A client of the double that hides nothing."""
    return RawClient(cluster)
