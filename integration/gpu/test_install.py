"""What is installed from where, and what is said when it cannot be."""

from __future__ import annotations

import pytest
from install import (
    SetupError,
    find_packages,
    install,
    missing_tools,
    requirements,
    resolve,
    wheels_of,
)
from small_package import PROJECT


def test_packages_are_found_with_what_they_need(checkout):
    (package,) = find_packages(checkout)
    assert (package.name, package.module) == ("one", "drivetrain_one")
    assert requirements([package], checkout) == ["not-there-a>=0.1", "pytest"]
    settings = '[dependency-groups]\ntest = ["pytest>=9"]\n'
    (checkout / "pyproject.toml").write_text(settings)
    assert "pytest>=9" in requirements([package], checkout)


def test_only_what_is_not_met_is_taken_from_the_folder(checkout):
    found = resolve(["not-there-a>=0.1", "pytest"], checkout / "dist")
    names = sorted(path.name.split("-")[0] for path in found)
    assert names == ["not_there_a", "not_there_b"]
    assert resolve([], checkout / "dist") == []


@pytest.mark.parametrize("removed", ["not_there_a", "not_there_b"])
def test_what_is_needed_and_nowhere_is_named(checkout, removed):
    (checkout / "dist" / f"{removed}-0.1.0-py3-none-any.whl").unlink()
    with pytest.raises(SetupError, match=removed.replace("_", "-")):
        resolve(["not-there-a>=0.1"], checkout / "dist")


def test_version_that_is_too_old_is_not_enough(checkout):
    with pytest.raises(SetupError, match="pytest"):
        resolve(["pytest>=9999"], checkout / "dist")


def test_wheel_that_differs_from_the_sources_is_refused(checkout):
    source = checkout / "packages" / "one" / "src" / "drivetrain_one"
    (source / "new.py").write_text("x = 1\n")
    with pytest.raises(SetupError, match=r"differs in drivetrain_one/new\.py"):
        wheels_of(find_packages(checkout), checkout / "dist")


def test_wheel_that_is_missing_is_named(checkout):
    (checkout / "dist" / "drivetrain_one-0.1.0-py3-none-any.whl").unlink()
    with pytest.raises(SetupError, match="has no wheel of drivetrain-one"):
        wheels_of(find_packages(checkout), checkout / "dist")


def native(checkout, name="two", backend="setuptools.build_meta"):
    folder = checkout / "packages" / name
    (folder / "src" / f"drivetrain_{name}").mkdir(parents=True)
    (folder / "src" / f"drivetrain_{name}" / "__init__.py").write_text("")
    text = PROJECT.format(name=name, backend=backend, needs="[]")
    version = f'name = "drivetrain-{name}"\nversion = "0.1"'
    (folder / "pyproject.toml").write_text(
        text.replace(f'name = "drivetrain-{name}"', version)
    )
    return folder


@pytest.mark.slow
def test_package_without_its_native_part_is_told_and_spoils_no_other(checkout):
    native(checkout)
    native(checkout, "three", backend="not_there.build")
    packages = find_packages(checkout)
    wheels = wheels_of(packages, checkout / "dist")
    assert list(wheels) == ["one"]
    paths, problems = install(packages, wheels, [], checkout / "site")
    assert set(problems) == {"two", "three"}
    assert problems["two"].startswith("has no native part")
    assert problems["three"].startswith("is not installed")
    assert (checkout / "site" / "one" / "drivetrain_one").is_dir()
    assert checkout / "site" / "one" in paths


def test_compiler_that_is_missing_is_named(checkout, monkeypatch):
    packages = find_packages(checkout)
    monkeypatch.setenv("CXX", "/not/there/c++ -O2")
    assert missing_tools(packages) == []
    native(checkout)
    assert "a C++ compiler (/not/there/c++)" in missing_tools(find_packages(checkout))
