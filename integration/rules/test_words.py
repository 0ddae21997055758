"""Nothing in the repository depends on, or tells of, the machine it was written on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

KINDS = {
    ".cfg",
    ".cpp",
    ".hpp",
    ".md",
    ".proto",
    ".py",
    ".toml",
    ".txt",
    ".yaml",
    ".yml",
}
PLACES = ["packages", "integration", "docs", ".ci"]
RULES = {
    "a path of one machine": r"(?<![\w.$}/-])/(?:work|opt|root|home|Users|mnt)/",
    "the number of a task": r"\b(?:issue|ticket|task) #?\d{1,3}\b",
    "a package index": r"(?i)\b(?:[p]ypi\b|[p]ythonhosted|https?://\S+/(?:simple|whl)\b)",
    "an index of one machine": r"--(?:extra-)?index-url|--find-links",
    "unfinished work": r"\b(?:TO[D]O|FIX[M]E|XX[X])\b",
}


def telltales(text: str) -> list[str]:
    """Returns the lines of a text that break a rule, with the rule."""
    return [
        f"{number}: {rule}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), 1)
        for rule, pattern in RULES.items()
        if re.search(pattern, line)
    ]


def texts(root: Path) -> Iterator[Path]:
    """Yields the files that people wrote: sources, pages, settings."""
    places = [file for place in PLACES for file in (root / place).rglob("*")]
    for file in [*root.glob("*"), *places]:
        made = {"_build", "build", "dist", "__pycache__"} & set(file.parts)
        known = file.suffix in KINDS or file.name in {"run", "Containerfile", "LICENSE"}
        if file.is_file() and known and not made:
            yield file


@pytest.mark.slow
def test_files_tell_nothing_of_one_machine(root):
    found = {
        str(file.relative_to(root)): wrong
        for file in texts(root)
        if file != Path(__file__) and (wrong := telltales(file.read_text()))
    }
    assert found == {}


def test_texts_reach_sources_pages_and_settings(root):
    names = {str(file.relative_to(root)) for file in texts(root)}
    assert {"README.md", "noxfile.py", ".ci/run", "docs/index.md"} <= names
    assert "packages/core/src/drivetrain_core/__init__.py" in names


@pytest.mark.parametrize(
    "line",
    [
        "see /home/somebody/README.md",
        "`/opt/wheels`",
        "as issue 2 asks",
        "pip install --extra-index-url somewhere",
        "https://example.org/whl/cpu",
        "# TODO later",
    ],
)
def test_telltales_finds_what_breaks_the_rule(line):
    assert telltales(line)


@pytest.mark.parametrize(
    "line",
    [
        "packages/core/home/x.py",
        "https://github.com/pytorch/pytorch/issues/126600",
        "pip install drivetrain-core",
        "/usr/bin/env bash",
    ],
)
def test_telltales_lets_ordinary_lines_pass(line):
    assert telltales(line) == []
