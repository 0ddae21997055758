"""The meta package brings every other package, with the extras of core.

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


def test_extras_are_those_of_core():
    extras = project("core")["optional-dependencies"]
    for extra, lines in project("drivetrain")["optional-dependencies"].items():
        assert lines[0] == f"drivetrain-core[{extra}]>=0.1,<0.2"
        assert set(lines[1:]) <= set(extras[extra])
    assert project("drivetrain")["optional-dependencies"].keys() == extras.keys()
