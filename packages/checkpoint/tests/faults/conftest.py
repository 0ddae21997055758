"""What the tests of faults share: the compiled shim, and the table at the end."""

import json
from pathlib import Path

import pytest

from faults.shim import build, find_compiler
from faults.tally import Tally

TALLY = Tally()


def pytest_addoption(parser):
    parser.addoption("--faults-json", metavar="FILE", help="write the table there too")


def pytest_terminal_summary(terminalreporter, config):
    if not TALLY.rows():
        return
    terminalreporter.section("faults")
    terminalreporter.write_line(TALLY.table())
    file = config.getoption("--faults-json", default=None)
    if file:
        Path(file).write_text(json.dumps(TALLY.rows(), indent=2) + "\n")


@pytest.fixture(scope="session")
def tally():
    """Counts the points that are tried, and what is violated."""
    return TALLY


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The shim, compiled."""
    if find_compiler() is None:
        pytest.skip("no C++ compiler to build the library that spoils storage")
    return build(tmp_path_factory.mktemp("shim"))
