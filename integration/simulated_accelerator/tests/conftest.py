"""Tests on the simulated device: they run in a process that has loaded it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
WHY = (
    "needs the simulated accelerator: run `python -m drivetrain_simulated_accelerator "
    "build`, then `SIMULATED_ACCELERATOR=1 pytest integration/simulated_accelerator`"
)


def pytest_configure(config: pytest.Config) -> None:
    """Names the marker, for a run of this folder alone."""
    config.addinivalue_line(
        "markers", "simulated_accelerator: needs the simulated accelerator"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips the tests that need the device where it is not loaded."""
    if "torch.sim" in sys.modules:
        return
    for item in items:
        here = HERE in item.path.parents
        if here and item.get_closest_marker("simulated_accelerator"):
            item.add_marker(pytest.mark.skip(reason=WHY))


@pytest.fixture(scope="session", autouse=True)
def server() -> Iterator[None]:
    """The server that child processes are forked off; it starts with the first one."""
    if "torch.sim" not in sys.modules:
        yield
        return
    from drivetrain_simulated_accelerator import testing

    testing.start_server()
    yield
    testing.stop_server()


@pytest.fixture(autouse=True)
def device_as_before() -> Iterator[None]:
    """Each test begins with a device that works and has nothing to do."""
    yield
    if "torch.sim" not in sys.modules:
        return
    import torch
    from drivetrain_simulated_accelerator import control

    for index in range(torch.sim.device_count()):
        control.restore(index)
        torch.sim.synchronize(index)
    torch.sim.set_device(0)
    torch.sim.set_stream(torch.sim.default_stream(0))
