"""Writes down which tests wait, start a process or open a port: a plugin of pytest.

    pytest -p waits --waiting FILE

What a test does decides, in its own process; each worker appends to the file.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Waits", "pytest_addoption", "pytest_configure"]

_START = threading.Thread.start.__code__
_EVENTS = {"subprocess.Popen", "os.fork", "os.posix_spawn", "socket.bind"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that names the file."""
    parser.addoption("--waiting", type=Path, help="file of tests that wait")


def pytest_configure(config: pytest.Config) -> None:
    """Begins to look."""
    if config.getoption("waiting"):
        config.pluginmanager.register(Waits(config.getoption("waiting")))


class Waits:
    """Notes the test that is under way when something waits, forks or binds."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._does = False
        sys.addaudithook(lambda event, _: self._note(event in _EVENTS))
        time.sleep = self._noted(time.sleep)
        threading.Condition.wait = self._noted(  # type: ignore[method-assign]
            threading.Condition.wait
        )

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
