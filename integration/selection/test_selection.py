"""Which tests changed files can reach, and which of them are chosen."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from choose import Choice, changed_files, choose, main, near_tests, reach, sources_of
from graph import distances
from plant import Fault, is_found, kept, planted, read_faults, trial
from references import Reference, references
from seconds import seconds_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import a.b", {Reference("a.b")}),
        ("from a import b, c as d", {Reference("a", "b"), Reference("a", "c")}),
        ("def f():\n    from a import b", {Reference("a", "b")}),
        ("if TYPE_CHECKING:\n    import a", set()),
        ("if t.TYPE_CHECKING:\n    import a\nelse:\n    import b", {Reference("b")}),
        ("run = '-m a.b'", {Reference("a.b")}),
        ("code = 'import a\\nfrom b import c'", {Reference("a"), Reference("b", "c")}),
        ("part = 'import a\\nwhile {x}'", {Reference("a")}),
        ("part = f'from a import {x}'", {Reference("a")}),
        ("load(f'a.b.{x}:run')", {Reference("a.b"), Reference("a.b", "*")}),
        ("x = f'a.b.{x}'", {Reference("a.b")}),
    ],
)
def test_references_of_a_file(text, found):
    assert references(text) == found


@pytest.fixture
def checkout(tmp_path):
    """A package with a stub, an entry point, native code, and tests of three kinds."""
    files = {
        "packages/one/pyproject.toml": (
            "[project]\nname = 'one'\n[project.entry-points.group]\nit = 'one._late:It'\n"
        ),
        "packages/one/csrc/fast.cpp": "",
        "packages/one/src/one/__init__.py": "",
        "packages/one/src/one/__init__.pyi": "from one._api import call as call\n",
        "packages/one/src/one/_api.py": "from one._deep import x\n",
        "packages/one/src/one/_deep.py": "x = 1\n",
        "packages/one/src/one/_late.py": "class It: pass\n",
        "packages/one/src/one/_native.py": "",
        "packages/one/src/one/_commands/__init__.py": "",
        "packages/one/src/one/_commands/run.py": "from one._commands.late import x",
        "packages/one/src/one/_commands/late.py": "x = 1\n",
        "packages/one/src/one/__main__.py": "load(f'one._commands.{name}')\n",
        "packages/one/src/one/traces/big/a.bin": "",
        "packages/one/src/one/traces/__init__.py": "",
        "packages/one/tests/test_trace.py": "import one.traces\n",
        "packages/one/tests/test_command.py": "run('python', '-m', 'one.cli')\n",
        "packages/one/src/one/cli.py": "import one.__main__\n",
        "packages/one/tests/test_gone.py": "from one._gone import x\n",
        "packages/one/tests/conftest.py": "",
        "packages/one/tests/cases.py": "from one._native import run\n",
        "packages/one/tests/test_api.py": "from one import call\n",
        "packages/one/tests/test_cases.py": "from cases import run\n",
        "packages/one/tests/test_process.py": "CODE = 'import one._late'\n",
        "integration/tests/test_all.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "reached"),
    [
        ("src/one/_deep.py", {"tests/test_api.py": 2}),
        ("src/one/_api.py", {"tests/test_api.py": 1}),
        (
            "src/one/__init__.pyi",
            {
                "tests/test_api.py": 1,
                "tests/test_process.py": 1,
                "tests/test_trace.py": 1,
                "tests/test_gone.py": 1,
                "tests/test_command.py": 1,
                "tests/test_cases.py": 2,
            },
        ),
        ("src/one/_commands/late.py", {"tests/test_command.py": 3}),
        ("src/one/traces/big/a.bin", {"tests/test_trace.py": 1}),
        ("csrc/fast.cpp", {"tests/test_cases.py": 2}),
        ("tests/cases.py", {"tests/test_cases.py": 1}),
        ("tests/test_api.py", {"tests/test_api.py": 0}),
        ("src/one/_gone.py", {"tests/test_gone.py": 1}),
        ("README.md", {}),
    ],
)
def test_tests_that_a_change_reaches(checkout, changed, reached):
    found = near_tests(checkout, [f"packages/one/{changed}"])
    mine = {
        name.removeprefix("packages/one/"): steps
        for name, steps in found.items()
        if name.startswith("packages/")
    }
    assert mine == reached


def test_files_that_no_test_reaches_are_named(checkout):
    for name in ("_alone", "_api"):
        file = checkout / f"packages/one/src/one/{name}.py"
        file.write_text(f"{file.read_text() if file.exists() else ''}\ny = 2\n")
    changed = ["packages/one/src/one/_alone.py", "packages/one/src/one/_api.py", "a.md"]
    near, alone = reach(checkout, changed)
    assert near == {"packages/one/tests/test_api.py": 1}
    assert alone == ["packages/one/src/one/_alone.py"]


@pytest.mark.parametrize(
    ("words", "says"),
    [(["nosuch.py"], "no file nosuch.py"), (["--since", "nosuch"], "is no commit")],
)
def test_what_is_not_there_is_refused(words, says, capsys):
    with pytest.raises(SystemExit):
        main(words)
    assert says in capsys.readouterr().err


def test_entry_points_are_reached_by_tests_of_all_packages(checkout):
    found = near_tests(checkout, ["packages/one/src/one/_late.py"])
    assert found == {
        "packages/one/tests/test_process.py": 1,
        "integration/tests/test_all.py": 1,
    }


def test_conftest_reaches_the_tests_below_it(checkout):
    found = near_tests(checkout, ["packages/one/tests/conftest.py"])
    assert set(found.values()) == {1}
    assert len(found) == 6


def test_distances_are_the_shortest():
    a, b, c, d = map(Path, "abcd")
    graph = {a: {b, c}, b: {c}, c: set(), d: set()}
    assert distances(graph, [c]) == {c: 0, a: 1, b: 1}


def test_nearest_and_quickest_come_first_as_long_as_there_is_time():
    near = {"far": 2, "slow": 1, "quick": 1, "new": 1}
    seconds = {"far": 1.0, "slow": 30.0, "quick": 1.0}
    assert choose(near, seconds, 10.0) == Choice(["quick", "new", "far"], ["slow"])
    assert choose(near, seconds, 0.5).run == ["quick"]
    assert choose(near, seconds, 60.0).left == []
    assert choose({}, {}, 10.0) == Choice([], [])


def test_native_sources_stand_for_what_calls_them():
    (native,) = (ROOT / "packages/comm/csrc").glob("frame_queue.cpp")
    found = sources_of(str(native.relative_to(ROOT)), ROOT)
    assert found
    assert all(file.exists() for file in found)


def test_report_of_a_run_is_summed_by_file():
    report = """<testsuites><testsuite>
    <testcase file="b.py" time="1.25"/><testcase file="a.py" time="0.06"/>
    <testcase file="b.py" time="2"/><testcase time="9"/></testsuite></testsuites>"""
    assert seconds_of(report) == {"a.py": 0.1, "b.py": 3.2}


@pytest.mark.parametrize("fault", read_faults(ROOT), ids=lambda fault: fault.file)
def test_fault_can_be_planted_and_is_gone_afterwards(fault, tmp_path):
    file = tmp_path / fault.file
    file.parent.mkdir(parents=True)
    text = (ROOT / fault.file).read_text()
    file.write_text(text)
    with planted(fault, tmp_path):
        changed = file.read_text()
        compile(changed, fault.file, "exec")
    assert changed != text
    assert file.read_text() == text


def test_fault_whose_text_is_gone_is_told(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    wrong = planted(Fault("a.py", "y = 1", "y = 2"), tmp_path)
    with pytest.raises(ValueError, match="0 times 'y = 1', not once"), wrong:
        pass


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (0, False),
        (1, True),
        (2, True),
        (None, False),
        (3, False),
        (4, False),
        (5, False),
    ],
)
def test_fault_is_found_by_tests_that_ran(code, found):
    assert is_found(code) == found


def test_fault_that_no_test_is_near_is_not_found(checkout):
    (checkout / "packages/one/src/one/_alone.py").write_text("x = 1\n")
    row = trial(Fault("packages/one/src/one/_alone.py", "1", "2"), checkout, "")
    assert (row["found"], row["by"]) == (False, "no test is near")


def test_rows_of_other_faults_sources_and_selections_are_made_again():
    faults = [Fault("a.py", "1", "2"), Fault("b.py", "1", "2")]
    of_code = {"commit": "abc", "mark": "not slow"}
    row = {**faults[1]._asdict(), **of_code, "found": True}
    for other in ({"commit": "abd"}, {"mark": ""}, {"now": "3"}):
        assert kept({"1": {**row, **other}}, faults, of_code) == {}
    assert kept({"0": row, "1": row, "2": row}, faults, of_code) == {"1": row}


def test_changed_files_are_called_as_they_are(tmp_path):
    def git(*arguments):
        name = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *name, *arguments], check=True)

    git("init", "-q")
    (tmp_path / "old.py").write_text("x = 1\n" * 9)
    git("add", ".")
    git("commit", "-qm", "one")
    (tmp_path / "old.py").rename(tmp_path / "a b.py")
    git("add", ".")
    (tmp_path / "test_é.py").touch()
    assert changed_files(tmp_path, "HEAD") == ["a b.py", "old.py", "test_é.py"]


def test_every_package_has_three_faults():
    packages = [Path(fault.file).parts[1] for fault in read_faults(ROOT)]
    every = {p.parent.name for p in ROOT.glob("packages/*/pyproject.toml")}
    assert all(packages.count(name) >= 3 for name in every)


@pytest.mark.slow
def test_change_of_a_real_module_reaches_its_tests():
    found = near_tests(ROOT, ["packages/core/src/drivetrain_core/_compose.py"])
    assert found["packages/core/tests/test_compose.py"] == 1
    assert "packages/comm/tests/test_transport.py" not in found
