"""The rows of a run: all of them exist, fit their time, and become commands."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from install import find_packages
from rows import FIRST, SECOND, choose, command_of, whole

ROOT = Path(__file__).parents[2]
EVERY = [*FIRST, *SECOND]
FOLDERS = {package.name: package.folder for package in find_packages(ROOT)}


def test_rows_of_the_first_call_fit_nine_minutes():
    # Tests run side by side: they take what the longest does, and some more.
    tests = [row.estimate_s for row in FIRST if row.kind == "tests"]
    bars = [row.estimate_s for row in FIRST if row.kind == "bars"]
    assert max(tests) * 1.5 + sum(bars) + 60 <= 540


@pytest.mark.parametrize("row", EVERY, ids=lambda row: row.name)
def test_row_names_what_is_there(row):
    assert row.limit_s == 2 * row.estimate_s
    if row.kind == "tests":
        files = [ROOT / word for word in row.arguments if word.endswith(".py")]
        assert files
        assert all("mark.gpu" in file.read_text() for file in files)
        return
    folder = FOLDERS[row.package] / "benchmarks"
    texts = [file.read_text() for file in folder.glob("*.py")]
    names = {
        node.value
        for text in texts
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    for bar in row.arguments:
        # Some are made from the name of an op.
        assert bar in names or any(bar.endswith(n) for n in names if n.startswith("-"))


def test_every_package_with_gpu_tests_has_rows():
    listed = {row.package for row in FIRST if row.kind == "tests"}
    assert listed == {row.package for row in whole(FOLDERS) if row.kind == "tests"}


def test_choice_keeps_the_order_of_a_run():
    names = [row.name for row in choose(["bars-comm", "tests-memory"], FOLDERS)]
    assert names == ["tests-memory", "bars-comm"]
    assert choose(["first"], FOLDERS) == list(FIRST)
    assert choose(["second"], {"core": FOLDERS["core"]}) == [
        row for row in SECOND if row.package == "core"
    ]


def test_package_that_is_new_is_in_the_first_rows_with_all_it_has(tmp_path):
    tests, benchmarks = tmp_path / "tests", tmp_path / "benchmarks"
    tests.mkdir()
    benchmarks.mkdir()
    (tests / "test_a.py").write_text("pytest.mark.gpu")
    (tests / "test_b.py").write_text("pytest.mark.slow")
    (benchmarks / "bars.py").write_text("")
    rows = choose(["first"], {"new": tmp_path})
    assert [row.name for row in rows] == ["tests-new", "bars-new"]
    assert rows[0].arguments == (str(tests / "test_a.py"),)
    assert all(row.limit_s for row in rows)


def test_tests_become_a_command_of_pytest(tmp_path):
    row = next(row for row in FIRST if row.name == "tests-optim")
    command = command_of(row, ROOT, tmp_path / "junit.xml", quick=True)
    assert command[:3] == [sys.executable, "-m", "pytest"]
    assert f"--junitxml={tmp_path / 'junit.xml'}" in command
    assert f"faulthandler_timeout={0.8 * row.limit_s:g}" in command
    assert "faulthandler_exit_on_timeout=false" in command
    # A test that takes long in a run without limits is no hang yet.
    (whole_row, *_) = whole({"optim": FOLDERS["optim"]})
    command = command_of(whole_row, ROOT, tmp_path / "junit.xml", quick=True)
    assert "faulthandler_timeout=1800" in command
    assert "faulthandler_exit_on_timeout=false" not in command


def test_bars_become_a_command_that_names_them(tmp_path):
    row = next(row for row in FIRST if row.name == "bars-kernels-host")
    command = command_of(row, ROOT, tmp_path / "junit.xml", quick=True)
    assert command[1].endswith("packages/kernels/benchmarks/bars.py")
    assert command[2:4] == ["--json", "--quick"]
    assert command[4:] == ["--only", "host-forward-gpu", "--only", "host-backward-gpu"]
