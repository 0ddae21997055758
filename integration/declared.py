"""What the packages of this repository declare: what they need, and what builds them."""

from __future__ import annotations

from pathlib import Path

import nox
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PACKAGES = {
    file.parent.name: nox.project.load_toml(file)
    for file in sorted(ROOT.glob("packages/*/pyproject.toml"))
}


def requirements(package: str, *, extras: bool = False) -> list[Requirement]:
    """Returns what a package declares, with its optional dependencies if asked."""
    project = PACKAGES[package]["project"]
    lines = list(project.get("dependencies", []))
    for extra in project.get("optional-dependencies", {}).values():
        lines += extra if extras else []
    return [Requirement(line) for line in lines]


def closure(*packages: str) -> list[str]:
    """Returns packages with those of this repository that they declare."""
    here = {PACKAGES[p]["project"]["name"]: p for p in PACKAGES}
    found = dict.fromkeys(packages)
    for package in packages:
        needs = [here[r.name] for r in requirements(package) if r.name in here]
        found.update(dict.fromkeys(closure(*needs)))
    return list(found)


def build_requirements(*packages: str) -> list[str]:
    """Returns what builds packages in place, with those that they declare."""
    needs = {"editables>=0.5", "hatchling>=1.27"}
    for package in closure(*packages):
        needs.update(PACKAGES[package]["build-system"]["requires"])
    if any(need.startswith("scikit-build-core") for need in needs):
        needs |= {"cmake>=3.18", "ninja"}
    return sorted(needs)


def third_party(*, extras: bool) -> list[Requirement]:
    """Returns what all packages declare from outside this repository."""
    ours = {PACKAGES[p]["project"]["name"] for p in PACKAGES}
    every = [r for p in PACKAGES for r in requirements(p, extras=extras)]
    return [r for r in every if r.name not in ours]
