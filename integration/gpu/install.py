"""Installs the packages without a network, each native one with the compiler that is here."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

__all__ = [
    "PEERS",
    "Package",
    "SetupError",
    "find_packages",
    "find_wheel",
    "install",
    "missing_tools",
    "requirements",
    "resolve",
    "stale_files",
    "wheels_of",
]

# What benchmarks compare with where it is there; without what it requires.
PEERS = ("liger-kernel",)
_OFFLINE = ("--isolated", "--no-index", "--no-deps", "--no-build-isolation")


class SetupError(Exception):
    """The machine or the checkout lacks something that the run needs."""


@dataclass(frozen=True, kw_only=True)
class Package:
    """One folder of packages/, by name, with what its pyproject.toml says."""

    folder: Path
    distribution: str
    is_native: bool
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def module(self) -> str:
        return self.distribution.replace("-", "_")


def find_packages(root: Path, only: Sequence[str] = ()) -> list[Package]:
    """Returns the packages of a checkout, or those that are named.

    Raises:
        SetupError: No package has one of the names.
    """
    found = {}
    for file in sorted(root.glob("packages/*/pyproject.toml")):
        content = tomllib.loads(file.read_text())
        build = content["build-system"]
        is_native = not build["build-backend"].startswith("hatch")
        needs = [*content["project"].get("dependencies", [])]
        # What is pure comes as a wheel, so that it needs nothing to be built.
        needs += build.get("requires", []) if is_native else []
        found[file.parent.name] = Package(
            folder=file.parent,
            distribution=content["project"]["name"],
            is_native=is_native,
            needs=tuple(needs),
        )
    if unknown := [name for name in only if name not in found]:
        message = f"no package {unknown[0]!r}; there are {', '.join(found)}"
        raise SetupError(message)
    return [package for name, package in found.items() if not only or name in only]


def requirements(packages: Sequence[Package], root: Path) -> list[str]:
    """Returns what packages need from outside this repository, and their tests do."""
    tools = tomllib.loads((root / "pyproject.toml").read_text())
    needs = list(tools.get("dependency-groups", {}).get("test", []))
    needs += [need for package in packages for need in package.needs]
    return sorted({need for need in needs if not need.startswith("drivetrain")})


def missing_tools(packages: Sequence[Package]) -> list[str]:
    """Returns what this machine lacks to install packages, by name."""
    # To look for it as an import would turn setuptools' own distutils off, for good.
    found = [] if importlib.machinery.PathFinder.find_spec("pip") else ["pip"]
    if not any(package.is_native for package in packages):
        return found
    compiler = os.environ.get("CXX", "c++").split()[0]
    found += [] if shutil.which(compiler) else [f"a C++ compiler ({compiler})"]
    for names in (("cmake",), ("ninja", "make")):
        if not any(shutil.which(n) or importlib.util.find_spec(n) for n in names):
            found.append(" or ".join(names))
    return found


def find_wheel(folder: Path, distribution: str) -> Path | None:
    """Returns the wheel of a distribution in a folder, or None."""
    wanted = re.sub(r"[-_.]+", "_", distribution).lower()
    for wheel in sorted(folder.glob("*.whl"), reverse=True):
        if re.sub(r"[-_.]+", "_", wheel.name.split("-")[0]).lower() == wanted:
            return wheel
    return None


def stale_files(wheel: Path, package: Package) -> list[str]:
    """Returns the sources of a package that its wheel holds otherwise, or lacks."""
    source = package.folder / "src"
    files = [(f, f.relative_to(source)) for f in source.rglob("*") if f.is_file()]
    mine = {
        str(name): file.read_bytes()
        for file, name in files
        if not any(part[0] == "." or part == "__pycache__" for part in name.parts)
    }
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.startswith(f"{package.module}/")]
        packed = {name: archive.read(name) for name in names}
    return sorted(n for n in mine | packed if mine.get(n) != packed.get(n))


def wheels_of(packages: Sequence[Package], dist: Path) -> dict[str, Path]:
    """Returns the wheel of each pure package, by the package's name.

    Raises:
        SetupError: A wheel is missing, or older than the sources.
    """
    found = {}
    for package in packages:
        if package.is_native:
            continue
        wheel = find_wheel(dist, package.distribution)
        if wheel is None:
            message = f"{dist} has no wheel of {package.distribution}; run `nox -s gpu`"
            raise SetupError(message)
        if stale := stale_files(wheel, package):
            message = f"{wheel.name} differs in {stale[0]}; run `nox -s gpu` again"
            raise SetupError(message)
        found[package.name] = wheel
    return found


def resolve(needs: Sequence[str], dist: Path) -> list[Path]:
    """Returns the wheels of a folder that meet what this Python does not meet already.

    Raises:
        SetupError: Something is neither installed, as new as is needed, nor there.
    """
    options = ["--dry-run", "-q", "--report", "-", "--isolated", "--no-index"]
    done = _pip([*options, "-f", str(dist), *needs]) if needs else None
    if done is None:
        return []
    if done.returncode:
        lines = [x for x in done.stderr.splitlines() if "No matching" in x]
        reason = (lines or done.stderr.strip().splitlines() or ["pip failed"])[-1]
        message = f"{reason.removeprefix('ERROR: ')} in {dist}; run `nox -s gpu`"
        raise SetupError(message)
    urls = [i["download_info"]["url"] for i in json.loads(done.stdout)["install"]]
    return [Path(url2pathname(urlsplit(url).path)) for url in urls]


def install(
    packages: Sequence[Package],
    wheels: Mapping[str, Path],
    others: Sequence[Path],
    site: Path,
) -> tuple[list[Path], dict[str, str]]:
    """Installs packages side by side, each into a folder of its own.

    Args:
        packages: What is installed.
        wheels: Of the pure packages, by name; the others are compiled.
        others: Wheels that are needed beside them.
        site: Where the folders are made.

    Returns:
        The folders for `PYTHONPATH`, and what went wrong, by the package's name.
    """
    jobs = {p.name: [wheels.get(p.name, p.folder)] for p in packages}
    if others:
        jobs["others"] = list(others)
    targets = {name: site / name for name in jobs}

    def make(name: str) -> str:
        options = ["-q", *_OFFLINE, "--target", str(targets[name])]
        done = _pip([*options, *map(str, jobs[name])])
        if done.returncode:
            return f"is not installed, as its build failed:\n{done.stderr[-3000:]}"
        return ""

    with ThreadPoolExecutor(len(jobs)) as pool:
        problems = dict(zip(jobs, pool.map(make, jobs), strict=True))
    for package in packages:
        if package.is_native and not problems[package.name]:
            problems[package.name] = _native_problem(targets[package.name])
    return list(targets.values()), {n: text for n, text in problems.items() if text}


def _native_problem(target: Path) -> str:
    """What is wrong with an installed native package; "" if it has its library."""
    if any(target.rglob("*.so")):
        return ""
    return "has no native part: the compiler failed, and it would run in pure Python"


def _pip(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "install", *arguments]
    environment: dict[str, Any] = {**os.environ, "PIP_CONFIG_FILE": os.devnull}
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    return subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment
    )
