"""The meta package brings every other package, with the extras of some.

What its own code imports besides stands in core's dependencies, with the same bounds.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

PACKAGES = Path(__file__).parents[2] / "packages"


def project(package):
    return tomllib.loads((PACKAGES / package / "pyproject.toml").read_text())["project"]


def test_dependencies_are_all_other_packages():
    lines = project("drivetrain")["dependencies"]
    folders = [file.parent.name for file in PACKAGES.glob("*/pyproject.toml")]
    ours = {project(folder)["name"] for folder in folders} - {"drivetrain"}
    siblings = [line for line in lines if line.startswith("drivetrain-")]
    assert {line.split(">=")[0] for line in siblings} == ours
    assert all(line.endswith(">=0.1,<0.2") for line in siblings)
    assert set(lines) - set(siblings) <= set(project("core")["dependencies"])


def test_extras_are_those_of_search_and_parallel():
    found = project("drivetrain")["optional-dependencies"]
    assert found.keys() == {"examples", "plot"}
    for extra, lines in found.items():
        ours = [line for line in lines if line.startswith("drivetrain-")]
        theirs = set()
        for line in ours:
            package = line.removeprefix("drivetrain-").partition("[")[0]
            assert line == f"drivetrain-{package}[{extra}]>=0.1,<0.2"
            theirs |= set(project(package)["optional-dependencies"][extra])
        assert ours
        assert set(lines) - set(ours) <= theirs
