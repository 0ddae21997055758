"""What the files of the repository must have in common."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

MOST_LINES = 600
PARTS = ["## Install", "## Use", "## What it does not do", "## More"]


def changelog_version(text: str) -> str | None:
    """Returns the version of the first entry of a changelog."""
    found = re.search(r"^## \[?(\d+\.\d+\.\d+\S*?)\]?(?:\s|$)", text, re.MULTILINE)
    return found and found[1]


def commands(readme: str) -> dict[str, str]:
    """Returns the README's commands by the nox session that they end with."""
    lines = re.findall(r"^(python3 -m venv .* -s (\w+))$", readme, re.MULTILINE)
    return {session: line for line, session in lines}


def test_changelog_starts_with_the_version_of_the_package(package):
    text = (package.folder / "CHANGELOG.md").read_text()
    assert changelog_version(text) == package.project["version"]


def test_licence_is_the_one_of_the_repository(package, root):
    own = (package.folder / "LICENSE").read_bytes()
    assert own == (root / "LICENSE").read_bytes()


def test_package_has_types_and_five_parts_in_its_readme(package):
    assert (package.folder / "src" / package.module / "py.typed").exists()
    lines = (package.folder / "README.md").read_text().splitlines()
    assert lines[0].startswith(f"# {package.project['name']}")
    assert [line for line in lines if line.startswith("## ")] == PARTS


def test_source_files_are_short(package):
    lengths = {str(f): len(f.read_text().splitlines()) for f in package.sources}
    assert {name: n for name, n in lengths.items() if n > MOST_LINES} == {}


def test_readme_commands_are_the_ones_that_ci_and_the_container_run(root):
    found = commands((root / "README.md").read_text())
    assert list(found) == ["quickstart", "tests"]
    container = (root / "Containerfile").read_text()
    assert re.findall(r"^RUN (python3 .*)$", container, re.MULTILINE) == [
        *found.values()
    ]
    pattern = re.search(r"grep -- '(.*)' README.md", (root / ".ci" / "run").read_text())
    assert pattern
    grep = ["grep", "--", pattern[1], str(root / "README.md")]
    done = subprocess.run(grep, check=True, capture_output=True, text=True)
    assert done.stdout == found["tests"] + "\n"


def test_table_of_packages_in_the_readme_is_complete(root: Path):
    rows = re.findall(
        r"^\| \[`([\w-]+)`\]\((\S+)\)", (root / "README.md").read_text(), re.MULTILINE
    )
    for name, page in rows:
        text = (root / page).read_text()
        assert text.startswith(f"# {name}\n")
    folders = {p.parent.name for p in root.glob("packages/*/pyproject.toml")}
    assert {Path(page).parent.name for _, page in rows} == folders


def test_changelog_version_reads_the_first_entry():
    assert changelog_version("# Log\n\n## 0.2.0 - 2026-01-01\n\n## 0.1.0\n") == "0.2.0"
    assert changelog_version("# Log\n\n## [1.0.0rc1]\n") == "1.0.0rc1"
    assert changelog_version("# Log\n\n## Unreleased\n") is None


def test_commands_ignore_other_lines():
    text = "```\npython3 -m venv v && v/bin/nox -s a\npython3 -m venv v\n```\n"
    assert commands(text) == {"a": "python3 -m venv v && v/bin/nox -s a"}
