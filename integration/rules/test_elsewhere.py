"""Core tells what to install for each command and optimization that a package brings."""

from __future__ import annotations

import pytest

from drivetrain_core import _elsewhere


@pytest.mark.parametrize("kind", ["commands", "optimizations"])
def test_what_a_package_brings_is_known_without_it(package, kind):
    known = getattr(_elsewhere, kind.upper())
    declared = package.project.get("entry-points", {}).get(f"drivetrain.{kind}", {})
    mine = {name for name, brings in known.items() if brings == package.project["name"]}
    assert mine == set(declared)
