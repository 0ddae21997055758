"""What the pages for newcomers promise is what the packages declare."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

RELATIVE = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)[^)]*\)")


def promised(page: str, name: str) -> tuple[Version, Version]:
    """Returns the oldest and the newest version of something that a page names."""
    found = re.search(rf"{name} (\d\.\d+) to (\d\.\d+)", page)
    assert found
    return Version(found[1]), Version(found[2])


def test_range_of_torch_is_the_one_that_pages_promise(package, root):
    needs = [Requirement(line) for line in package.project["dependencies"]]
    ranges = {str(need.specifier) for need in needs if need.name == "torch"}
    for page in ("README.md", "docs/how-to/install.md"):
        oldest, newest = promised((root / page).read_text(), "torch")
        after = f"{newest.major}.{newest.minor + 1}"
        expected = SpecifierSet(f">={oldest},<{after}")
        assert ranges <= {str(expected)}


def test_range_of_python_is_the_one_that_pages_promise(package, root):
    for page in ("README.md", "docs/how-to/install.md"):
        oldest, newest = promised((root / page).read_text(), "Python")
        after = f"{newest.major}.{newest.minor + 1}"
        assert package.project["requires-python"] == f">={oldest},<{after}"


def test_doctor_judges_torch_by_the_same_range(root):
    core = root / "packages" / "core" / "src" / "drivetrain_core"
    source = core / "_command_line" / "doctor.py"
    limits = re.findall(r"parts [<>] \((\d), (\d+)\)", source.read_text())
    found = tuple(Version(".".join(limit)) for limit in limits)
    assert found == promised((root / "README.md").read_text(), "torch")


def test_readme_of_a_package_has_no_link_that_needs_the_repository(package):
    # A package index shows it alone.
    text = (package.folder / "README.md").read_text()
    assert RELATIVE.findall(text) == []


def test_pages_that_a_readme_of_a_package_names_are_there(package, root):
    text = (package.folder / "README.md").read_text()
    named = re.findall(
        r"`(?:docs/)?((?:how-to|explanation|reference)/[\w/-]+\S*?)`", text
    )
    assert [name for name in named if not (root / "docs" / name).exists()] == []


def test_address_of_the_project_is_the_one_setting(package, root):
    tools = tomllib.loads((root / "pyproject.toml").read_text())["tool"]
    address = tools["drivetrain"]["address"]
    expected = {"Documentation": address} if address else {}
    assert package.project.get("urls", {}) == expected


def test_extras_stand_on_the_page_that_installs(package, root):
    page = (root / "docs" / "how-to" / "install.md").read_text()
    (row,) = re.findall(
        rf"^\| .*`{package.project['name']}`.* \| (.*) \|$", page, re.MULTILINE
    )
    extras = set(package.project.get("optional-dependencies", {}))
    assert set(re.findall(r"`([\w]+)`", row)) == extras


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_page_begins_with_the_lines_for_pip(page, root):
    text = (root / page).read_text()
    lines = [line for line in text.splitlines() if line.startswith("pip install ")]
    names = [re.search(r"drivetrain[\w-]*(\[\w+\])?", line)[0] for line in lines]
    assert names == ["drivetrain", "drivetrain-elastic", "drivetrain[plot]"]
    assert text.index(lines[0]) < text.index(
        "```python" if "README" in page else "include"
    )


@pytest.mark.parametrize(
    "question",
    [
        "install",
        "make my script faster",
        "save and resume",
        "my worker dies",
        "train on 8 GPUs",
    ],
)
def test_front_page_answers_first_questions_in_their_words(question, root):
    docs: Path = root / "docs"
    rows = re.findall(
        r"^\| (.+) \| \[[^\]]+\]\((\S+)\) \|$",
        (docs / "index.md").read_text(),
        re.MULTILINE,
    )
    (page,) = [page for words, page in rows if question in words]
    assert (docs / page).is_file()


def test_relative_links_are_found():
    text = "[a](../b.md) [c](https://x.example/) [d](#part) [e](CHANGELOG.md)"
    assert RELATIVE.findall(text) == ["../b.md", "CHANGELOG.md"]
