"""Writes down which tests wait, start a process or open a port, and repeats them.

    pytest -p waits --waiting FILE
    pytest -p waits --times NUMBER @FILE

A plugin of pytest. What a test does decides, in its own process; each worker appends to the
file.
"""

from __future__ import annotations

import multiprocessing.process
import os
import select
import selectors
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.doctest import DoctestItem
from _pytest.runner import runtestprotocol

__all__ = ["Repeats", "Waits", "pytest_addoption", "pytest_configure"]

_START = threading.Thread.start.__code__
_EVENTS = {
    "subprocess.Popen",
    "os.fork",
    "os.posix_spawn",
    "socket.bind",
    "socket.connect",
}
# What waits without an event of the interpreter: who has it, and its name.
_CALLS: list[tuple[Any, str]] = [
    (time, "sleep"),
    (threading.Condition, "wait"),
    (threading.Thread, "join"),
    (select, "select"),
    (selectors.DefaultSelector, "select"),
    (multiprocessing.process.BaseProcess, "start"),
]
if find_spec("torch"):
    from torch.distributed import TCPStore

    _CALLS.append((TCPStore, "__init__"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    parser.addoption("--waiting", type=Path, help="file of tests that wait")
    parser.addoption("--times", type=int, default=1, help="how often each test is run")


def pytest_configure(config: pytest.Config) -> None:
    """Begins to look, or to repeat."""
    if config.getoption("times") > 1:
        config.pluginmanager.register(Repeats(config.getoption("times")))
    if config.getoption("waiting"):
        config.pluginmanager.register(Waits(config.getoption("waiting")))


class Repeats:
    """Runs each test some times, one after the other, and tells of its first failure."""

    def __init__(self, times: int) -> None:
        self._times = times

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool:
        """Runs a test; what its file shares is made once."""
        hook, where = item.ihook, {"nodeid": item.nodeid, "location": item.location}
        hook.pytest_runtest_logstart(**where)
        # Another one of the same file, to whoever asks what may be kept for it.
        sibling = SimpleNamespace(listchain=lambda: [*item.listchain()[:-1], None])
        following = [sibling] * (self._times - 1) + [nextitem]
        # What an example's names stand for is gone after its first run.
        names = item.dtest.globs if isinstance(item, DoctestItem) else {}
        given, runs = dict(names), []
        for one in following:
            names.update(given)
            runs.append(runtestprotocol(item, log=False, nextitem=one))
        failed = (one for one in runs if any(report.failed for report in one))
        for report in next(failed, runs[-1]):
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(**where)
        return True


class Waits:
    """Notes the test that is under way when something waits, forks or binds."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._does = False
        sys.addaudithook(lambda event, _: self._note(event in _EVENTS))
        for owner, name in _CALLS:
            setattr(owner, name, self._noted(getattr(owner, name)))

    def _note(self, does: bool) -> None:
        if does:
            self._does = True

    def _noted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            # Each thread waits for its own start, which is there at once.
            asked = sys._getframe(1).f_back
            self._note(asked is None or asked.f_code is not _START)
            return call(*args, **kwargs)

        return noted

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """Writes a test's name once it is over, with what its fixtures did."""
        self._does = False
        result = yield
        if self._does:
            line = f"{item.nodeid}\n".encode()
            # One call appends whole lines, whoever else writes.
            descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(descriptor, line)
            os.close(descriptor)
        return result
